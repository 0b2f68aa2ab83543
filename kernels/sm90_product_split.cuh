// A matrix product on Hopper: the kernel body of sm90_product_few.cu.
//
// Where there are fewer tiles than multiprocessors, the blocks of a cluster share one: each sums a part of the steps,
// and sends its sums to the shared memory of the blocks that add them up, each an equal part of the tile. Weights are
// under way before earlier launches have ended: those of the first steps to shared memory, the others to the L2 cache.
// So are biases and scales; residuals come while blocks multiply. Everything else that does not depend on earlier launches
// comes before the wait for them, too: places of results, and the wait for the cluster's blocks. The next launch is let in
// behind the wait, so that its weights do not come beside this one's rows. Blocks of few steps that add a residual let it
// in before, in kernels without norms: what follows is a norm, which reads few weights.
#pragma once

#include "sm90_product.cuh"

// A thread's channel of a row of sums, and eight more: what OfChannels has of them, and the sums of their weights.
template <Norm kNorm> struct SplitChannels {
  float bias[2], scale[2], weight_sum[2];

  __device__ __forceinline__ SplitChannels(const Sm90ProductArgs &args, int32_t n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t at = n + 8 * i;
      bias[i] = load_early_or(args.bias + at, at < args.n && args.bias != nullptr, 0.0f);
      scale[i] = load_early_or(args.scale + at, at < args.n && args.scale != nullptr, 1.0f);
      weight_sum[i] = kNorm == Norm::kOfX ? load_early_or(args.weight_sums + at, at < args.n, 0.0f) : 0.0f;
    }
  }

  // A sum of channel i with its bias, of a row with this norm if there is one.
  __device__ __forceinline__ float add(int i, float sum, float factor, float of_weights) const {
    return kNorm == Norm::kOfX ? fmaf(factor, sum, fmaf(of_weights, weight_sum[i], bias[i])) : sum + bias[i];
  }
};

// Eights of rows that a block adds up of a tile that `parts` blocks share. The last blocks may have fewer, or none.
constexpr int part_eights(int eights, int parts) { return (eights + parts - 1) / parts; }

// Everything that follows from a tile's shape: a warpgroup for a slab of channels, a warp that loads, and with a norm one
// that makes norms of rows.
template <int kTileM_, int kStages_, int kMostParts_> struct SplitTile {
  static constexpr int kTileM = kTileM_, kStages = kStages_, kTileN = kSlabN;
  static constexpr int kMultiply = 128, kThreads = kMultiply + 32, kNormThreads = kThreads + 32, kMinBlocks = 2;
  static constexpr int kWBytes = kSlabBytes, kXBytes = kTileM * kRowBytes, kStageBytes = kWBytes + kXBytes;
  static constexpr int kMostParts = kMostParts_;  // blocks of a cluster
  // Sums of a thread are twos, of two rows of a channel: one for every eight rows, and one eight channels further. Blocks
  // of a cluster divide the eights among them.
  static constexpr int kEights = kTileM / 8;
  static constexpr int kEightBytes = kMultiply * 16;  // two twos of each thread
  static constexpr int kSumBytes = kMostParts > 1 ? kMostParts * part_eights(kEights, kMostParts) * kEightBytes : 0;
  static constexpr int kSumsAt = kStages * kStageBytes, kResidualsAt = kSumsAt + kSumBytes;
  static constexpr int kBarriersAt = kResidualsAt + kTileM * kRowBytes;
  static constexpr int kSharedBytes = kBarriersAt + 8 * (2 * kStages + 2);
  // Norms of the rows that a block adds up follow, and their barrier.
  static constexpr int kNormsAt = kSharedBytes, kNormedBytes = kNormsAt + kTileM * kNormBytes + 16;
  static_assert(kXBytes % 1024 == 0, "swizzled in 1024 bytes");
  static_assert(kTileM % 8 == 0 && kSumsAt % 1024 == 0 && kResidualsAt % 1024 == 0, "whole eights, swizzled");
  static_assert(kMinBlocks * (kNormedBytes + 1024) <= 228 * 1024, "what a multiprocessor has");
  static_assert(kNormsAt % 16 == 0, "two rows are read at once");
};

// What a block does: of one tile the steps from `begin` to `end`.
template <class Tile> struct SplitShare {
  uint32_t part, parts, log_parts;
  int32_t begin, end;
  ProductOrigin origin;

  __device__ __forceinline__ explicit SplitShare(const Sm90ProductArgs &args)
      : part(cluster_rank()), parts(cluster_blocks()), log_parts(31 - __clz(parts)),
        begin(args.steps * part >> log_parts), end(args.steps * (part + 1) >> log_parts),
        origin(product_origin<Tile>(args, blockIdx.x >> log_parts)) {}

  // Rows of the tile that this block adds up, from the first that it does, and those of the box of their residuals.
  __device__ __forceinline__ uint32_t rows() const {
    if constexpr (Tile::kEights % Tile::kMostParts == 0) return box_rows();
    const int32_t left = Tile::kTileM - static_cast<int32_t>(part * box_rows());
    return min(max(left, 0), static_cast<int32_t>(box_rows()));
  }
  __device__ __forceinline__ uint32_t box_rows() const {
    if constexpr (Tile::kEights % Tile::kMostParts == 0) return Tile::kTileM >> log_parts;
    else return (Tile::kEights + parts - 1 >> log_parts) * 8;
  }
  __device__ __forceinline__ int32_t first_m() const { return origin.m + part * box_rows(); }
  __device__ __forceinline__ int32_t steps() const { return end - begin; }
  // Steps that are copied before any stage is free again.
  __device__ __forceinline__ int32_t ahead() const { return min(steps(), Tile::kStages); }
};

// Shared memory: stages; sums as [blocks][eights that this block adds up][threads]; residuals of the rows that this block
// adds up; barriers.
template <class Tile> struct SplitShared {
  uint32_t base;

  __device__ __forceinline__ uint32_t w(uint32_t at) const { return base + at % Tile::kStages * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t x(uint32_t at) const { return w(at) + Tile::kWBytes; }
  __device__ __forceinline__ uint32_t full(uint32_t at) const {
    return base + Tile::kBarriersAt + at % Tile::kStages * 16;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t at) const { return full(at) + 8; }
  static __device__ __forceinline__ uint32_t parity(uint32_t at) { return at / Tile::kStages & 1; }
  __device__ __forceinline__ uint32_t residuals() const { return base + Tile::kResidualsAt; }
  // Completed by the residuals.
  __device__ __forceinline__ uint32_t added() const { return base + Tile::kSharedBytes - 16; }
  // Completed by all blocks' sums.
  __device__ __forceinline__ uint32_t received() const { return base + Tile::kSharedBytes - 8; }
  __device__ __forceinline__ uint32_t norms() const { return base + Tile::kNormsAt; }
  // Completed by the norms.
  __device__ __forceinline__ uint32_t normed() const { return norms() + Tile::kTileM * kNormBytes; }
};

// ---- load: one thread --------------------------------------------------------------------------------------------

template <class Tile>
TREFOIL_DEVICE void split_load(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                               const SplitShare<Tile> &share) {
  const int32_t steps = share.steps(), ahead = share.ahead();
#pragma unroll 1
  for (int32_t at = 0; at < ahead; ++at) {
    barrier_arrive_expect(shared.full(at), Tile::kStageBytes);
    copy_box_2d(shared.w(at), &args.w, shared.full(at), (share.begin + at) * kStepK, share.origin.n);
  }
  if (steps <= ahead) return;
  // Blocks of the same channels have a part of the others each.
  const int32_t m_tile = share.origin.m / Tile::kTileM, m_tiles = (args.m + Tile::kTileM - 1) / Tile::kTileM;
#pragma unroll 1
  for (int32_t at = ahead + m_tile; at < steps; at += m_tiles)
    prefetch_box_2d(&args.w, (share.begin + at) * kStepK, share.origin.n);
  wait_for_earlier_launches();
  if (share.parts > 1) cluster_wait_alone();
#pragma unroll 1
  for (int32_t at = ahead; at < steps; ++at) {
    const int32_t k = (share.begin + at) * kStepK;
    barrier_wait(shared.empty(at), shared.parity(at) ^ 1);
    barrier_arrive_expect(shared.full(at), Tile::kStageBytes);
    copy_box_2d(shared.x(at), &args.x, shared.full(at), k, share.origin.m);
    copy_box_2d(shared.w(at), &args.w, shared.full(at), k, share.origin.n);
  }
}

// ---- the first rows: a thread of those that multiply, beside the one that loads -----------------------------------

// The most steps of a block that lets the next launch in before it waits: it ends soon. Only where it adds a residual and
// leaves no statistics: then a norm is behind it, which wants little but to have begun before this launch ends.
constexpr int32_t kMostShortSteps = 6;

// Copies the rows of the first stages, whose weights the other thread copies, then residuals.
template <class Tile, Norm kNorm>
TREFOIL_DEVICE void split_load_rows(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                                    const SplitShare<Tile> &share) {
  const bool adds = args.residual_values != nullptr && share.rows() > 0;
  if (adds) barrier_arrive_expect(shared.added(), share.box_rows() * kRowBytes);
  const int32_t end = share.ahead(), first_m = share.first_m();
  const bool is_short = kNorm == Norm::kNone && adds && share.steps() <= kMostShortSteps;
  if (is_short) allow_next_launch();
  wait_for_earlier_launches();
#pragma unroll 1
  for (int32_t at = 0; at < end; ++at)
    copy_box_2d(shared.x(at), &args.x, shared.full(at), (share.begin + at) * kStepK, share.origin.m);
  if (adds) copy_box_2d(shared.residuals(), &args.residual, shared.added(), share.origin.n, first_m);
  if (!is_short) allow_next_launch();
}

// ---- norms: a warp -----------------------------------------------------------------------------------------------

// Makes the norms of the rows that this block adds up, with a lane for two.
template <class Tile>
TREFOIL_DEVICE void split_prepare_norms(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                                        const SplitShare<Tile> &share) {
  wait_for_earlier_launches();
  for (uint32_t row = threadIdx.x % 32 * 2; row < share.rows(); row += 64) {
    const int32_t m = share.first_m() + static_cast<int32_t>(row);
    if (m >= args.m) break;
    const float4 of_rows = norms_of_rows(args.normed, args.steps, args.statistics + m, statistics_pitch(args.m));
    store_shared_f32x2(shared.norms() + row * kNormBytes, {of_rows.x, of_rows.y});
    store_shared_f32x2(shared.norms() + (row + 1) * kNormBytes, {of_rows.z, of_rows.w});
  }
  barrier_arrive(shared.normed());  // each lane for what it wrote
}

// ---- multiply, add up and store: a warpgroup ---------------------------------------------------------------------

// Where a thread's part of the result lies: found before the wait for earlier launches.
template <class Tile> struct SplitPlace {
  uint32_t matrices;  // in shared memory: a row of two matrices of eight rows and eight of this warp's channels
  uint32_t chunk;     // in shared memory: 16 bytes of the first row that this thread stores; the next is 16 rows on
  int32_t rows;       // that are inside from that one on; none where the channels are outside
  uint32_t sums;      // in shared memory: of the first eight that it adds up, what the first block sends to it
  uint32_t sent;      // what this block sends, at the same place of other blocks
  uint16_t *y;        // where the 16 bytes go

  __device__ __forceinline__ SplitPlace(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                                        const SplitShare<Tile> &share) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    matrices = shared.residuals() + lane % 8 * kRowBytes + (warp * 2 + lane / 8 % 2 ^ lane % 8) * 16;
    const uint32_t row = threadIdx.x / 8, of_row = threadIdx.x % 8;
    chunk = shared.residuals() + row * kRowBytes + (of_row ^ row % 8) * 16;
    const int32_t n = share.origin.n + static_cast<int32_t>(of_row) * 8;
    rows = n < args.n ? min(static_cast<int32_t>(share.rows()), args.m - share.first_m()) - static_cast<int32_t>(row) : 0;
    y = args.y_values + (static_cast<int64_t>(share.first_m()) + row) * args.y_pitch + n;
    sums = shared.base + Tile::kSumsAt + threadIdx.x * 16;
    sent = sums + share.part * (share.box_rows() / 8) * Tile::kEightBytes;
    // Found here, and not where it is used.
    asm volatile("" : "+r"(matrices), "+r"(chunk), "+r"(rows), "+r"(sums), "+r"(sent), "+l"(y));
  }
};

template <class Tile>
TREFOIL_DEVICE void split_multiply(const SplitShared<Tile> &shared, int32_t steps, float (&d)[Tile::kTileM / 2]) {
  if (steps == 0) {
#pragma unroll
    for (float &sum : d) sum = 0.0f;
    return;
  }
  // A round of the stages is unrolled, so that nothing is computed between its products. Its addresses are those of the
  // first stage, given anew to each round: the compiler would find all of them before the loop, for which it has no
  // registers.
#pragma unroll 1
  for (int32_t first = 0; first < steps; first += Tile::kStages) {
    const uint32_t base = uniform(shared.base), full = base + Tile::kBarriersAt;
    const uint64_t a = wgmma_operand(base), b = wgmma_operand(base + Tile::kWBytes);
    const uint32_t parity = first / Tile::kStages & 1;
#pragma unroll
    for (int32_t stage = 0; stage < Tile::kStages; ++stage) {
      if (first + stage >= steps) break;
      barrier_wait(full + stage * 16, parity);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStepK / 16; ++k) {
        const int further = stage * (Tile::kStageBytes / 16) + 2 * k;
        Wgmma<Tile::kTileM, Element>::multiply(d, a + further, b + further, first + stage + k > 0);
      }
      wgmma_commit();
      // The stage before this one, if it is copied to again.
      if (first + stage > 0 && first + stage + Tile::kStages <= steps) {
        wgmma_wait<1>();
        if (threadIdx.x % 32 == 0) barrier_arrive(full + (stage + Tile::kStages - 1) % Tile::kStages * 16 + 8);
      }
    }
  }
}

// Eights and twos that a block adds up of a tile that kParts blocks share. What it has of those beyond its own is nothing.
template <class Tile, int kParts> constexpr uint32_t kEightsOf = part_eights(Tile::kEights, kParts);
template <class Tile, int kParts> constexpr uint32_t kTwosOf = 2 * kEightsOf<Tile, kParts>;

// The twos that this block adds up: its own, and what the other blocks of kParts send of them, in the blocks' order.
template <class Tile, int kParts>
TREFOIL_DEVICE void exchange(const SplitShared<Tile> &shared, const SplitShare<Tile> &share, const SplitPlace<Tile> &at,
                             const float (&d)[Tile::kTileM / 2], float2 (&sums)[kTwosOf<Tile, kParts>]) {
  constexpr uint32_t kEights = kEightsOf<Tile, kParts>;
  float4 parts[kParts][kEights] = {};  // this block's, then those that come in their place
#pragma unroll
  for (uint32_t eight = 0; eight < Tile::kEights; ++eight)
    parts[eight / kEights][eight % kEights] =
        make_float4(d[eight * 4], d[eight * 4 + 1], d[eight * 4 + 2], d[eight * 4 + 3]);
  if constexpr (kParts > 1) {
#pragma unroll
    for (uint32_t eight = 0; eight < Tile::kEights; ++eight) {
      const uint32_t to = eight / kEights, place = eight % kEights;
      if (to != share.part) send_four(at.sent + place * Tile::kEightBytes, shared.received(), to, parts[to][place]);
    }
    barrier_wait_cluster(shared.received());
#pragma unroll
    for (uint32_t i = 0; i < kParts * kEights; ++i)
      if (i / kEights != share.part) parts[i / kEights][i % kEights] = load_shared_four(at.sums + i * Tile::kEightBytes);
  }
#pragma unroll
  for (uint32_t i = 0; i < kEights; ++i) {
    float4 sum = parts[0][i];
#pragma unroll
    for (uint32_t part = 1; part < kParts; ++part) {
      const float4 add = parts[part][i];
      sum = make_float4(sum.x + add.x, sum.y + add.y, sum.z + add.z, sum.w + add.w);
    }
    sums[2 * i] = make_float2(sum.x, sum.y), sums[2 * i + 1] = make_float2(sum.z, sum.w);
  }
}

// What is added to this thread's twos, of a lane's row of each eight rows.
template <class Tile, int kParts>
TREFOIL_DEVICE void read_residuals(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                                   const SplitShare<Tile> &share, const SplitPlace<Tile> &place,
                                   uint32_t (&residuals)[kEightsOf<Tile, kParts>][2]) {
  if (args.residual_values == nullptr || share.rows() == 0) {
#pragma unroll
    for (auto &two : residuals) two[0] = two[1] = 0;
    return;
  }
  barrier_wait(shared.added(), 0);
#pragma unroll
  for (uint32_t eight = 0; eight < kEightsOf<Tile, kParts>; ++eight)
    ldmatrix_x2_trans(residuals[eight], place.matrices + eight * 8 * kRowBytes);
}

// Stores this block's part of the tile: elements go to shared memory, in the place of the residuals and swizzled like a
// tensor map's box, then rows are stored whole, by 16 bytes a thread. Twos go by eight rows, the first eight channels and
// the second of each: matrices that are transposed on their way.
template <class Tile, Norm kNorm, class Activation, int kParts>
TREFOIL_DEVICE void split_store(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                                const SplitShare<Tile> &share, const SplitChannels<kNorm> &of, const SplitPlace<Tile> &place,
                                const uint32_t (&residuals)[kEightsOf<Tile, kParts>][2],
                                const float2 (&sums)[kTwosOf<Tile, kParts>]) {
  constexpr uint32_t kEights = kEightsOf<Tile, kParts>;
  const uint32_t lane = threadIdx.x % 32;
  const Activation activation(args.activation_a, args.activation_b);
  if constexpr (kNorm == Norm::kOfX) barrier_wait(shared.normed(), 0);
#pragma unroll
  for (uint32_t eight = 0; eight < kEights; ++eight) {
    float4 norm = {};  // of this lane's two rows
    if constexpr (kNorm == Norm::kOfX) norm = load_shared_four(shared.norms() + (eight * 8 + lane % 4 * 2) * kNormBytes);
    uint32_t pairs[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 sum = sums[eight * 2 + i], add = unpack_elements(residuals[eight][i]);
      const float x = activation(of.add(i, sum.x, norm.x, norm.y)), next = activation(of.add(i, sum.y, norm.z, norm.w));
      pairs[i] = pack_elements(fmaf(x, of.scale[i], add.x), fmaf(next, of.scale[i], add.y));
    }
    stmatrix_x2_trans(place.matrices + eight * 8 * kRowBytes, pairs);
  }
  barrier_sync(1, Tile::kMultiply);
#pragma unroll
  for (int32_t row = 0; row < static_cast<int32_t>(kEights * 8); row += Tile::kMultiply / 8) {
    if (row < place.rows)
      store_global_u32x4(place.y + static_cast<int64_t>(row) * args.y_pitch,
                         load_shared_u32x4(place.chunk + row * kRowBytes));
  }
  if constexpr (kNorm == Norm::kOfY) {
    // Two threads have a row.
#pragma unroll
    for (uint32_t first = 0; first < kEights * 8; first += Tile::kMultiply / 2) {
      if (first + threadIdx.x / 32 * 16 < share.rows())
        store_statistics(args.statistics, shared.residuals(), threadIdx.x + first * 2, share.rows(), share.first_m(), args.m,
                         share.origin.n, args.n);
    }
  }
}

template <class Tile, Norm kNorm, class Activation, int kParts>
TREFOIL_DEVICE void split_finish(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                                 const SplitShare<Tile> &share, const SplitChannels<kNorm> &of,
                                 const SplitPlace<Tile> &place, float (&d)[Tile::kTileM / 2]) {
  // Beside the last step's products.
  uint32_t residuals[kEightsOf<Tile, kParts>][2];
  read_residuals<Tile, kParts>(args, shared, share, place, residuals);
  wgmma_wait<0>();
  wgmma_use(d);
  float2 sums[kTwosOf<Tile, kParts>];
  exchange<Tile, kParts>(shared, share, place, d, sums);
  if (share.rows() == 0) return;
  split_store<Tile, kNorm, Activation, kParts>(args, shared, share, of, place, residuals, sums);
}

// The kernel body.
template <class Tile, Norm kNorm, class Activation> TREFOIL_DEVICE void sm90_product_split(const Sm90ProductArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const SplitShared<Tile> shared{uniform(shared_address(shared_bytes))};
  const SplitShare<Tile> share(args);
  if (threadIdx.x == Tile::kMultiply)
    for (const TensorMap *map : {&args.w, &args.x, &args.residual}) prefetch_tensor_map(map);
  if (threadIdx.x == 0) {
    if (shared.base % 1024 != 0) __trap();  // the swizzle is of addresses
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      barrier_init(shared.full(stage), 1);
      barrier_init(shared.empty(stage), 4);
    }
    barrier_init(shared.added(), 1);
    barrier_init(shared.received(), 1);
    if constexpr (kNorm == Norm::kOfX) barrier_init(shared.normed(), 32);
    barrier_arrive_expect(shared.received(), (share.parts - 1) * (share.rows() / 8) * Tile::kEightBytes);
    fence_barrier_init();
  }
  __syncthreads();
  if (share.parts > 1) cluster_arrive();
  const uint32_t warp = uniform(threadIdx.x / 32);
  if (warp == Tile::kMultiply / 32) {
    if (is_elected()) split_load(args, shared, share);
    return;
  }
  if (kNorm == Norm::kOfX && warp == Tile::kThreads / 32) return split_prepare_norms(args, shared, share);
  const SplitChannels<kNorm> of(args, share.origin.n + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4);
  const SplitPlace<Tile> place(args, shared, share);
  if (warp == 0 && is_elected()) split_load_rows<Tile, kNorm>(args, shared, share);
  __syncwarp();
  wait_for_earlier_launches();  // for what it stores
  if (share.parts > 1) cluster_wait();  // all blocks have begun
  float d[Tile::kTileM / 2];
  split_multiply(shared, share.steps(), d);
  if constexpr (Tile::kMostParts == 1) return split_finish<Tile, kNorm, Activation, 1>(args, shared, share, of, place, d);
  switch (share.log_parts) {
    case 0: return split_finish<Tile, kNorm, Activation, 1>(args, shared, share, of, place, d);
    case 1: return split_finish<Tile, kNorm, Activation, 2>(args, shared, share, of, place, d);
    default: return split_finish<Tile, kNorm, Activation, Tile::kMostParts>(args, shared, share, of, place, d);
  }
}
