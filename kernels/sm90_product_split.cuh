// A matrix product on Hopper: the kernel body of sm90_product.cu, for few rows.
//
// Where there are fewer tiles than multiprocessors, the blocks of a cluster share one: each sums a part of the steps,
// and sends its sums to the shared memory of the blocks that add them up, each an equal part of the tile. Weights are
// under way before earlier launches have ended: those of the first steps to shared memory, the others to the L2 cache.
// So are biases and scales; residuals come while blocks multiply.
#pragma once

#include "sm90_product.cuh"

constexpr uint32_t kMostBlocks = 8;  // of a cluster that every device takes

// Everything that follows from a tile's shape: a warpgroup for each slab of channels, and a warp that loads.
template <int kSlabs_, int kTileM_, int kStages_> struct SplitTile {
  static constexpr int kSlabs = kSlabs_, kTileM = kTileM_, kStages = kStages_, kTileN = kSlabs * kSlabN;
  static constexpr int kMultiply = 128 * kSlabs, kThreads = kMultiply + 32, kMinBlocks = 2;
  static constexpr int kWBytes = kSlabs * kSlabBytes, kXBytes = kTileM * kRowBytes, kStageBytes = kWBytes + kXBytes;
  static constexpr uint32_t kTwos = kTileM / 4;    // sums of a thread, by twos: two rows of a channel
  static constexpr uint32_t kBatch = kTwos / kMostBlocks;  // twos that are finished together
  static constexpr int kTwoBytes = kMultiply * 8;  // a two of each thread
  static constexpr int kSumBytes = kTwos * kTwoBytes;
  static constexpr int kResidualsAt = kStages * kStageBytes, kResidualBytes = kSlabs * kTileM * kRowBytes;
  static constexpr int kBarriersAt = kResidualsAt + kResidualBytes;
  static constexpr int kSharedBytes = kBarriersAt + 8 * (2 * kStages + 2);
  static_assert(kXBytes % 1024 == 0, "swizzled in 1024 bytes");
  static_assert(kTwos % kMostBlocks == 0 && kBatch == 2, "equal parts, and batches of eight rows");
  static_assert(kSumBytes <= kResidualsAt, "sums take the place of stages");
  static_assert(kMinBlocks * (kSharedBytes + 1024) <= 228 * 1024, "what a multiprocessor has");
};

// What a block does: of one tile the steps from `begin` to `end`.
template <class Tile> struct SplitShare {
  uint32_t rank, blocks, log_blocks;
  int32_t begin, end;
  ProductOrigin origin;

  __device__ __forceinline__ explicit SplitShare(const Sm90ProductArgs &args)
      : rank(cluster_rank()), blocks(cluster_blocks()), log_blocks(31 - __clz(blocks)),
        begin(args.steps * rank >> log_blocks), end(args.steps * (rank + 1) >> log_blocks),
        origin(product_origin<Tile>(args, blockIdx.x >> log_blocks)) {}

  // Rows of the tile that this block adds up, from the first that it does.
  __device__ __forceinline__ uint32_t rows() const { return Tile::kTileM >> log_blocks; }
  __device__ __forceinline__ int32_t first_m() const { return origin.m + rank * rows(); }
};

// Shared memory: stages, later sums as [blocks][twos that this block adds up][threads]; residuals as [slabs][rows that
// this block adds up]; barriers.
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
  __device__ __forceinline__ uint32_t sum(uint32_t index) const {
    return base + index * Tile::kTwoBytes + threadIdx.x * 8;
  }
};

// ---- load: one thread --------------------------------------------------------------------------------------------

template <class Tile>
TREFOIL_DEVICE void split_load(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                               const SplitShare<Tile> &share) {
  allow_next_launch();
  const int32_t steps = share.end - share.begin, ahead = min(steps, Tile::kStages);
  for (int32_t at = 0; at < ahead; ++at) {
    barrier_arrive_expect(shared.full(at), Tile::kStageBytes);
    copy_box_2d(shared.w(at), &args.w, shared.full(at), (share.begin + at) * kStepK, share.origin.n);
  }
  prefetch_tensor_map(&args.x);
  prefetch_tensor_map(&args.residual);
  // Blocks of the same channels have a part of the others each.
  const int32_t m_tile = share.origin.m / Tile::kTileM, m_tiles = (args.m + Tile::kTileM - 1) / Tile::kTileM;
  for (int32_t at = ahead + m_tile; at < steps; at += m_tiles)
    prefetch_box_2d(&args.w, (share.begin + at) * kStepK, share.origin.n);
  wait_for_earlier_launches();
  for (int32_t at = 0; at < steps; ++at) {
    const int32_t k = (share.begin + at) * kStepK;
    if (at >= ahead) {
      barrier_wait(shared.empty(at), shared.parity(at) ^ 1);
      barrier_arrive_expect(shared.full(at), Tile::kStageBytes);
      copy_box_2d(shared.w(at), &args.w, shared.full(at), k, share.origin.n);
    }
    copy_box_2d(shared.x(at), &args.x, shared.full(at), k, share.origin.m);
  }
  if (args.residual_values == nullptr) return;
  const uint32_t slab_bytes = share.rows() * kRowBytes;
  barrier_arrive_expect(shared.added(), Tile::kSlabs * slab_bytes);
  for (int32_t slab = 0; slab < Tile::kSlabs; ++slab)
    copy_box_2d(shared.residuals() + slab * slab_bytes, &args.residual, shared.added(), share.origin.n + slab * kSlabN,
                share.first_m());
}

// ---- multiply, add up and store: a warpgroup ---------------------------------------------------------------------

template <class Tile>
TREFOIL_DEVICE void split_multiply(const SplitShared<Tile> &shared, int32_t steps, uint32_t slab,
                                   float (&d)[Tile::kTileM / 2]) {
  if (steps == 0) {
#pragma unroll
    for (float &sum : d) sum = 0.0f;
    return;
  }
  for (int32_t at = 0; at < steps; ++at) {
    barrier_wait(shared.full(at), shared.parity(at));
    const uint64_t a = wgmma_operand(shared.w(at) + slab * kSlabBytes), b = wgmma_operand(shared.x(at));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStepK / 16; ++k) Wgmma<Tile::kTileM>::multiply(d, a + 2 * k, b + 2 * k, at + k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (at > 0 && threadIdx.x % 32 == 0) barrier_arrive(shared.empty(at - 1));
  }
  wgmma_wait<0>();
  wgmma_use(d);
}

// Brings this block's sums to those that add them up. All of them have read their stages, in whose place sums lie.
template <class Tile>
TREFOIL_DEVICE void send_sums(const SplitShared<Tile> &shared, const SplitShare<Tile> &share,
                              const float (&d)[Tile::kTileM / 2]) {
  const uint32_t twos = Tile::kTwos >> share.log_blocks;
  if (share.blocks == 1) {
    barrier_sync(1, Tile::kMultiply);
#pragma unroll
    for (uint32_t two = 0; two < Tile::kTwos; ++two)
      store_shared_f32x2(shared.sum(two), make_float2(d[two * 2], d[two * 2 + 1]));
    return;
  }
  cluster_arrive_written();
  cluster_wait();
#pragma unroll
  for (uint32_t two = 0; two < Tile::kTwos; ++two)
    send_two(shared.sum(share.rank * twos + (two & twos - 1)), shared.received(), two * share.blocks / Tile::kTwos,
             d[two * 2], d[two * 2 + 1]);
  barrier_wait_cluster(shared.received());
}

// The `i`-th two that this block adds up: what all blocks have sent of it, in their order.
template <class Tile>
TREFOIL_DEVICE float2 add_sums(const SplitShared<Tile> &shared, const SplitShare<Tile> &share, uint32_t i) {
  float2 sum = load_shared_two(shared.sum(i));
  for (uint32_t rank = 1; rank < share.blocks; ++rank) {
    const float2 part = load_shared_two(shared.sum(rank * (Tile::kTwos >> share.log_blocks) + i));
    sum.x += part.x, sum.y += part.y;
  }
  return sum;
}

// Adds up and stores this block's part of the tile. Lanes of an even and an odd channel exchange a row: then each has
// two channels of one.
template <class Tile, class Activation>
TREFOIL_DEVICE void split_store(const Sm90ProductArgs &args, const SplitShared<Tile> &shared,
                                const SplitShare<Tile> &share, const OfChannels &of) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, odd = lane / 4 % 2, row = lane % 4 * 2 + odd;
  const Activation activation(args.activation_a, args.activation_b);
  const int32_t n = share.origin.n + warp * 16 + lane / 4 - odd, first_m = share.first_m() + row;
  const uint32_t residuals = shared.residuals() + warp / 4 * share.rows() * kRowBytes + row * kRowBytes;
  const bool has_residual = args.residual_values != nullptr;
  if (has_residual) barrier_wait(shared.added(), 0);
  // Twos go by eight rows, the first eight channels and the second of each.
#pragma unroll 2
  for (uint32_t eight = 0; eight < share.rows() / 8; ++eight) {
    const int32_t m = first_m + static_cast<int32_t>(eight) * 8;
    __half *const y = args.y_values + static_cast<int64_t>(m) * args.y_pitch + n;
#pragma unroll
    for (uint32_t i = 0; i < Tile::kBatch; ++i) {
      float2 sum = add_sums(shared, share, eight * Tile::kBatch + i);
      sum.x = activation(sum.x + of.bias[i]) * of.scale[i];
      sum.y = activation(sum.y + of.bias[i]) * of.scale[i];
      const float other = __shfl_xor_sync(0xffffffff, odd ? sum.x : sum.y, 4);
      const uint32_t in_row = (warp % 4 * 2 + i ^ row) * 16 + (lane / 4 - odd) * 2;
      const float2 add = has_residual ? unpack_half2(load_shared_u32(residuals + eight * 8 * kRowBytes + in_row))
                                      : float2{};
      const uint32_t two = odd ? pack_half2(other + add.x, sum.y + add.y) : pack_half2(sum.x + add.x, other + add.y);
      if (n + static_cast<int32_t>(i) * 8 < args.n && m < args.m) *reinterpret_cast<uint32_t *>(y + i * 8) = two;
    }
  }
}

// The kernel body.
template <class Tile, class Activation> TREFOIL_DEVICE void sm90_product_split(const Sm90ProductArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const SplitShared<Tile> shared{shared_address(shared_bytes)};
  const SplitShare<Tile> share(args);
  if (threadIdx.x == 0) {
    if (shared.base % 1024 != 0) __trap();  // the swizzle is of addresses
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      barrier_init(shared.full(stage), 1);
      barrier_init(shared.empty(stage), 4 * Tile::kSlabs);
    }
    barrier_init(shared.added(), 1);
    barrier_init(shared.received(), 1);
    barrier_arrive_expect(shared.received(), Tile::kSumBytes);
    fence_barrier_init();
  }
  __syncthreads();
  // The same for all lanes, and the compiler knows it.
  const uint32_t group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (group == Tile::kSlabs) {
    if (threadIdx.x % 32 == 0) split_load(args, shared, share);
    __syncwarp();
    if (share.blocks > 1) cluster_arrive();
    return;
  }
  const OfChannels of(args, share.origin.n + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4);
  float d[Tile::kTileM / 2];
  split_multiply(shared, share.end - share.begin, group, d);
  send_sums(shared, share, d);
  wait_for_earlier_launches();
  split_store<Tile, Activation>(args, shared, share, of);
}
