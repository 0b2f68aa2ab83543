// A matrix product on Hopper: the kernel body of sm90_product.cu, for many rows, and of sm90_product_e4m3.cu.
//
//   Y[m][n] = act(sum over k of X[m][k] * W[n][k] + bias[n]) * scale[n] + residual[m][n]
//
// Output channels n lie on the rows of the warpgroup product, 64 to a slab, rows m on its columns: then neither operand
// is transposed, and bias and scale are a few numbers of a thread. One thread copies operands through a ring of stages
// and runs ahead into the next tile. Two warpgroups multiply in turns, each a whole tile: while one multiplies, which
// takes hardly an instruction, the other has the instructions for its epilogue. What one has finished one more thread
// stores, so that its warps never wait for a store, nor for each other. Or two or three have a tile together, a slab each:
// a larger one then, that is copied less often, and fills the multiprocessors where that of turns does not.
//
// Nothing runs beside the epilogue of tiles that warpgroups have together, nor beside that of a block's last tile. Their
// residual comes into the ring, as steps behind the last one: all of it at once, as soon as stages are free, and the result
// takes its place there. Warpgroups that have a tile together store for themselves: the way to another thread takes longer.
#pragma once

#include "element.cuh"
#include "sm90_product_norm.cuh"
#include "sm90_ptx.cuh"
#include "sm90_ptx_e4m3.cuh"

// The one argument of every entry point. Mirrored in sm90_product.rs. Where bytes are read or written, the maps have pairs
// of them as elements.
struct Sm90ProductArgs {
  TensorMap w;         // elements {K, N}, box {64, channels of the tile}
  TensorMap x;         // elements {K, M}, box {64, rows of the tile that a block copies}
  TensorMap residual;  // elements {N, M}, box {64, rows of a chunk}, or {64, rows of a split tile that a block adds up}
  TensorMap y;         // elements {N, M}, box {64, rows of a chunk}, of bytes {32, 64}
  const float *bias;   // [n]; null: zeros
  const float *scale;  // [n]; null: ones
  const float *unit;   // [n], of bytes: what a sum of 1 stands for, before `factor`; null: ones
  const uint16_t *residual_values;  // what its map is of; null: there is none
  uint16_t *y_values;               // what its map is of
  int32_t m;
  int32_t n;
  int32_t steps;  // ceil(elements of K / 64)
  int32_t tiles;
  int32_t n_tiles;
  int32_t residual_pitch;  // elements from one row to the next
  int32_t y_pitch;
  float activation_a;  // the two numbers of the activation's kind
  float activation_b;
  FastDivide by_n_tiles;
  float factor;         // of bytes: of all sums
  float result_factor;  // of results in bytes
  int32_t first_m_tile;  // tiles of rows are taken from there on: from 0 up, or from the last down
  float2 *statistics;        // [parts][m, and one more if it is odd]; of x with Norm::kOfX, of y with Norm::kOfY
  const float *weight_sums;  // [n]; the sums of rows of w with Norm::kOfX
  NormedRows normed;         // x with Norm::kOfX
};
static_assert(sizeof(Sm90ProductArgs) == 640 && offsetof(Sm90ProductArgs, m) == 552, "mirrored in sm90_product.rs");

constexpr int kStepK = 64;              // of one stage: 128 bytes, the copy engine's widest swizzle
constexpr int kRowBytes = kStepK * 2;   // of a channel and of a row in a stage, and of 64 channels of a row of y
constexpr int kSlabN = 64;              // channels of a warpgroup product
constexpr int kSlabBytes = kSlabN * kRowBytes;
constexpr int kPrefetchFloats = 8;  // of a sector of the L2 cache

// The operands of a product, its sums, and its result.
struct ProductOfElements {
  using Operand = Element;
  static constexpr bool kHasUnits = false;      // whether sums have a unit, which they are multiplied by
  static constexpr bool kPromotes = false;      // whether the sums of each stage are added up apart from the tensor core
  static constexpr bool kWritesBytes = false;   // whether the result is codes of bytes
};

// Everything that follows from a tile's shape: whole slabs of channels, and eights of rows.
template <bool kInTurns_, int kTileN_, int kTileM_, int kStages_, int kBuffers_, class Numbers_ = ProductOfElements,
          int kBlocks_ = 1>
struct ProductTile {
  using Numbers = Numbers_;
  // Of a cluster, two at most: they have neighbouring channels of the same rows, of which each copies a half for both.
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kInTurns = kInTurns_;
  static constexpr int kTileN = kTileN_, kTileM = kTileM_, kStages = kStages_;
  static constexpr int kSlabs = kTileN / kSlabN, kGroups = kInTurns ? 2 : kSlabs, kThreads = 128 * (1 + kGroups);
  static constexpr int kGroupSlabs = kInTurns ? kSlabs : 1;   // that a warpgroup has of a tile
  static constexpr int kTileGroups = kInTurns ? 1 : kGroups;  // warpgroups that have a tile together
  static constexpr int kTurns = kInTurns ? kGroups : 1;       // tiles of a block from one of a warpgroup to its next
  static constexpr int kLoadRegisters = 24, kProductRegisters = kGroups == 2 ? 240 : 160;
  static constexpr bool kHasStorer = kInTurns;  // a thread for each warpgroup, which stores what that has finished

  // A stage: channels, then rows.
  static constexpr int kWBytes = kSlabs * kSlabBytes, kXBytes = kTileM * kRowBytes, kStageBytes = kWBytes + kXBytes;
  // Rows that a block copies: all, or a half in eights, so that the two halves may have eight rows in common.
  static constexpr int kCopiedM = (kTileM / kBlocks + 7) / 8 * 8;
  static constexpr int kCopiedBytes = kWBytes + kBlocks * kCopiedM * kRowBytes;  // into a stage

  // The residual comes, and the output goes, a slab of some rows at a time, in the same place: of a tile in turns, kBuffers
  // for each warpgroup beside the stages; of a block's last one, and where warpgroups have a tile together, stages behind
  // the tile's steps. The last of a slab ends where the tile does, and may begin with rows that the one before it has too.
  static constexpr int kChunkM = 64, kChunkBytes = kChunkM * kRowBytes, kBuffers = kBuffers_;
  static constexpr int kSlabChunks = (kTileM + kChunkM - 1) / kChunkM;
  static constexpr int kChunks = kSlabs * kSlabChunks;  // of a tile
  static __host__ __device__ constexpr int chunk_m(int of_slab) {
    return of_slab + 1 < kSlabChunks ? of_slab * kChunkM : kTileM - kChunkM;
  }
  static constexpr int kStageChunks = kInTurns ? kBuffers : kStageBytes / kChunkBytes;  // that a stage has
  static constexpr int kResultStages = (kChunks + kStageChunks - 1) / kStageChunks;     // that have a tile

  // Barriers: two of a stage; one of a buffer, ready; and two of a chunk of a warpgroup's tile, written: of a tile that has
  // buffers, and of one that has stages.
  static constexpr int kChunksAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kChunksAt + kGroups * kBuffers * kChunkBytes;
  static constexpr int kReadyAt = kBarriersAt + 8 * 2 * kStages;
  static constexpr int kWrittenAt = kReadyAt + 8 * kGroups * kBuffers;
  static constexpr int kSharedBytes = kWrittenAt + (kHasStorer ? 8 * 2 * kGroups * kChunks : 0);

  static_assert(kTileN % kSlabN == 0 && kTileM >= kChunkM && kTileM <= 256, "a chunk, and a box");
  static_assert(kTileM % (Numbers::kWritesBytes ? 32 : 8) == 0, "whole groups of sums");
  static_assert(kXBytes % 1024 == 0 && kBlocks <= 2, "swizzled in 1024 bytes, and two halves");
  static_assert(kResultStages <= kStages && kStageChunks * kChunkBytes <= kStageBytes, "a tile's chunks in stages");
  static_assert(kSharedBytes <= 227 * 1024, "what a block may have");
};

// The same for two blocks that share rows.
template <bool kInTurns, int kTileN, int kTileM, int kStages, int kBuffers>
using ProductPair = ProductTile<kInTurns, kTileN, kTileM, kStages, kBuffers, ProductOfElements, 2>;

// Shared memory: stages, chunks, barriers. Stages and chunks are counted over all tiles.
template <class Tile> struct Shared {
  uint32_t base;

  __device__ __forceinline__ uint32_t w(uint32_t at) const { return base + at % Tile::kStages * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t x(uint32_t at) const { return w(at) + Tile::kWBytes; }
  __device__ __forceinline__ uint32_t full(uint32_t at) const {
    return base + Tile::kBarriersAt + at % Tile::kStages * 16;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t at) const { return full(at) + 8; }
  static __device__ __forceinline__ uint32_t parity(uint32_t at) { return at / Tile::kStages & 1; }

  // A chunk of a tile whose residual and result have the stages from `at` on, and the stage that it lies in.
  static __device__ __forceinline__ uint32_t result_stage(uint32_t at, uint32_t chunk) {
    return at + chunk / Tile::kStageChunks;
  }
  __device__ __forceinline__ uint32_t result(uint32_t at, uint32_t chunk) const {
    return w(result_stage(at, chunk)) + chunk % Tile::kStageChunks * Tile::kChunkBytes;
  }

  // Of tiles that have buffers: a warpgroup's chunks, counted over all its tiles.
  __device__ __forceinline__ uint32_t buffer(uint32_t group, uint32_t count) const {
    return base + Tile::kChunksAt + (group * Tile::kBuffers + count % Tile::kBuffers) * Tile::kChunkBytes;
  }
  __device__ __forceinline__ uint32_t ready(uint32_t group, uint32_t count) const {
    return base + Tile::kReadyAt + 8 * (group * Tile::kBuffers + count % Tile::kBuffers);
  }
  static __device__ __forceinline__ uint32_t ready_parity(uint32_t count) { return count / Tile::kBuffers & 1; }

  // Completed by the warps that have written a chunk of a tile, for the thread that stores it. A tile that has stages has
  // barriers of its own, because its chunks may be written before those of the warpgroup's tile before have been stored.
  __device__ __forceinline__ uint32_t written(uint32_t group, bool in_stages, uint32_t chunk) const {
    const uint32_t of_last = in_stages ? 8 * Tile::kGroups * Tile::kChunks : 0;
    return base + Tile::kWrittenAt + 8 * (group * Tile::kChunks + chunk) + of_last;
  }
};

// The first channel and row of a tile. Channel tiles of the same rows follow each other, so that all but the first read
// the rows from the L2 cache.
struct ProductOrigin {
  int32_t n, m;
};

template <class Tile> TREFOIL_DEVICE ProductOrigin product_origin(const Sm90ProductArgs &args, int32_t tile) {
  const int32_t m_tile = divide(tile, args.by_n_tiles);
  return {(tile - m_tile * args.n_tiles) * Tile::kTileN, abs(args.first_m_tile - m_tile) * Tile::kTileM};
}

// Whether a tile's residual and result have stages: where nothing is beside its epilogue.
template <class Tile> TREFOIL_DEVICE bool is_in_stages(const Sm90ProductArgs &args, int32_t tile) {
  return !Tile::kInTurns || tile + static_cast<int32_t>(gridDim.x) >= args.tiles;
}

// The first tile that a warpgroup has a part in, and the first channel of its part of each.
template <class Tile> TREFOIL_DEVICE int32_t first_tile(uint32_t group) {
  return blockIdx.x + (Tile::kInTurns ? group * gridDim.x : 0);
}
template <class Tile> TREFOIL_DEVICE int32_t first_channel(uint32_t group) {
  return Tile::kInTurns ? 0 : group * kSlabN;
}

// ---- load: one thread --------------------------------------------------------------------------------------------

// Expects a stage's bytes, and copies its channels.
template <class Tile>
TREFOIL_DEVICE void load_channels(const Sm90ProductArgs &args, const Shared<Tile> &shared, uint32_t at, int32_t step,
                                  int32_t n) {
  barrier_arrive_expect(shared.full(at), Tile::kCopiedBytes);
  copy_box_2d(shared.w(at), &args.w, shared.full(at), step * kStepK, n);
}

// Copies a stage's rows, those of the tile from row m on: all of them, or this block's half for both.
template <class Tile>
TREFOIL_DEVICE void load_rows(const Sm90ProductArgs &args, const Shared<Tile> &shared, uint32_t at, int32_t step, int32_t m) {
  if constexpr (Tile::kBlocks == 1) {
    copy_box_2d(shared.x(at), &args.x, shared.full(at), step * kStepK, m);
  } else {
    const int32_t row = cluster_rank() * (Tile::kTileM - Tile::kCopiedM);
    copy_box_2d_to(3, shared.x(at) + row * kRowBytes, &args.x, shared.full(at), step * kStepK, m + row);
  }
}

// Says that a stage behind a tile's steps, the one of number `index`, is free for what it has of the result, with the
// residual in it if there is one.
template <class Tile>
TREFOIL_DEVICE void load_residual(const Sm90ProductArgs &args, const Shared<Tile> &shared, uint32_t at, int32_t index,
                                  const ProductOrigin &origin) {
  barrier_wait(shared.empty(at), shared.parity(at) ^ 1);
  if (args.residual_values == nullptr) {
    barrier_arrive(shared.full(at));
    return;
  }
  const int32_t first = index * Tile::kStageChunks, end = min(first + Tile::kStageChunks, Tile::kChunks);
  barrier_arrive_expect(shared.full(at), (end - first) * Tile::kChunkBytes);
  for (int32_t chunk = first; chunk < end; ++chunk) {
    const int32_t slab = chunk / Tile::kSlabChunks;
    copy_box_2d(shared.w(at) + (chunk - first) * Tile::kChunkBytes, &args.residual, shared.full(at),
                origin.n + slab * kSlabN, origin.m + Tile::chunk_m(chunk - slab * Tile::kSlabChunks));
  }
}

template <class Tile> TREFOIL_DEVICE void load(const Sm90ProductArgs &args, const Shared<Tile> &shared) {
  allow_next_launch();
  // Channels depend on no launch: those of the first stages come while earlier launches end.
  const uint32_t ahead = min(args.steps, Tile::kStages);
  const int32_t first_n = product_origin<Tile>(args, blockIdx.x).n;
  for (uint32_t at = 0; at < ahead; ++at) load_channels(args, shared, at, at, first_n);
  for (const TensorMap *map : {&args.x, &args.residual, &args.y}) prefetch_tensor_map(map);
  wait_for_earlier_launches();
  uint32_t at = 0;
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const ProductOrigin origin = product_origin<Tile>(args, tile);
    for (int32_t step = 0; step < args.steps; ++step, ++at) {
      if (at >= ahead) {
        barrier_wait(shared.empty(at), shared.parity(at) ^ 1);
        load_channels(args, shared, at, step, origin.n);
      }
      load_rows(args, shared, at, step, origin.m);
    }
    if (!is_in_stages<Tile>(args, tile)) continue;
    for (int32_t index = 0; index < Tile::kResultStages; ++index, ++at) load_residual(args, shared, at, index, origin);
  }
  if constexpr (Tile::kBlocks > 1) {
    // The block ends after the other has read what it copied there, and has given all stages back: of those that have the
    // result it has waited for that.
    for (int i = Tile::kResultStages; i < Tile::kStages; ++i, ++at) barrier_wait(shared.empty(at), shared.parity(at) ^ 1);
  }
}

// ---- store: one thread for a warpgroup ---------------------------------------------------------------------------

// A chunk of a warpgroup's tiles that have buffers, in the order in which they become ready.
struct ChunkAhead {
  int32_t tile, index;  // which of the tile's
  uint32_t count;       // those before it
};

// Says that a chunk's buffer, which is free, is ready, with the residual in it if there is one.
template <class Tile>
TREFOIL_DEVICE void prepare(const Sm90ProductArgs &args, const Shared<Tile> &shared, uint32_t group, ChunkAhead &chunk) {
  if (is_in_stages<Tile>(args, chunk.tile)) return;
  const uint32_t ready = shared.ready(group, chunk.count);
  if (args.residual_values != nullptr) {
    const ProductOrigin origin = product_origin<Tile>(args, chunk.tile);
    const int32_t slab = chunk.index / Tile::kSlabChunks;
    barrier_arrive_expect(ready, Tile::kChunkBytes);
    copy_box_2d(shared.buffer(group, chunk.count), &args.residual, ready, origin.n + slab * kSlabN,
                origin.m + Tile::chunk_m(chunk.index - slab * Tile::kSlabChunks));
  } else {
    barrier_arrive(ready);
  }
  ++chunk.count;
  if (++chunk.index == Tile::kChunks) chunk.index = 0, chunk.tile += Tile::kTurns * gridDim.x;
}

// Stores a chunk that begins at row m and channel n. The map's elements are pairs of bytes.
template <class Tile>
TREFOIL_DEVICE void store_chunk(const Sm90ProductArgs &args, uint32_t smem_chunk, int32_t n, int32_t m) {
  if (n < args.n) store_box_2d(&args.y, Tile::Numbers::kWritesBytes ? n / 2 : n, m, smem_chunk);
  else store_nothing();
}

// Stores all chunks of a warpgroup. Of those that have buffers, all but one are ready ahead: the next becomes so behind a
// store, in the buffer of the chunk before, which has left it then.
template <class Tile>
TREFOIL_DEVICE void store(const Sm90ProductArgs &args, const Shared<Tile> &shared, uint32_t group) {
  const int32_t first = first_tile<Tile>(group);
  wait_for_earlier_launches();
  ChunkAhead ahead{first, 0, 0};
  for (int i = 0; i < Tile::kBuffers - 1; ++i) prepare(args, shared, group, ahead);
  uint32_t at = group * args.steps, count = 0, parity = 0;
  for (int32_t tile = first; tile < args.tiles;
       tile += Tile::kTurns * gridDim.x, at += Tile::kTurns * args.steps, parity ^= 1) {
    const ProductOrigin origin = product_origin<Tile>(args, tile);
    const bool in_stages = is_in_stages<Tile>(args, tile);
#pragma unroll 1
    for (int index = 0; index < Tile::kChunks; ++index, ++count) {
      barrier_wait(shared.written(group, in_stages, index), in_stages ? 0 : parity);
      store_chunk<Tile>(args, in_stages ? shared.result(at + args.steps, index) : shared.buffer(group, count),
                        origin.n + index / Tile::kSlabChunks * kSlabN,
                        origin.m + Tile::chunk_m(index % Tile::kSlabChunks));
      if (in_stages) continue;
      wait_stores_read<1>();
      prepare(args, shared, group, ahead);
    }
  }
  wait_stores_read<0>();
}

// ---- multiply: a warpgroup ---------------------------------------------------------------------------------------

// Gives a stage back, once for each warp: to all who copy into it.
template <class Tile> TREFOIL_DEVICE void release(const Shared<Tile> &shared, uint32_t at) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (Tile::kBlocks == 1) {
    if (lane == 0) barrier_arrive(shared.empty(at));
  } else {
    if (lane < Tile::kBlocks) barrier_arrive_at(shared.empty(at), lane);
  }
}

// Begins the products of the stage `at`, of some slabs from `slab` on: 32 bytes of a row at a time. `add` false: the sums
// of before are overwritten.
template <class Tile>
TREFOIL_DEVICE void multiply_stage(const Shared<Tile> &shared, uint32_t at, uint32_t slab, bool add,
                                   float (&d)[Tile::kGroupSlabs][Tile::kTileM / 2]) {
  const uint64_t a = wgmma_operand(shared.w(at) + slab * kSlabBytes), b = wgmma_operand(shared.x(at));
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kRowBytes / 32; ++k) {
#pragma unroll
    for (int i = 0; i < Tile::kGroupSlabs; ++i)
      Wgmma<Tile::kTileM, typename Tile::Numbers::Operand>::multiply(d[i], a + i * (kSlabBytes >> 4) + 2 * k, b + 2 * k,
                                                                     add || k > 0);
  }
  wgmma_commit();
}

// The sums of a tile whose steps begin at stage `at`, from one of its slabs on; ends when all products are under way. The
// last stage is still to be released.
template <class Tile>
TREFOIL_DEVICE void multiply(const Sm90ProductArgs &args, const Shared<Tile> &shared, uint32_t at, uint32_t slab,
                             float (&d)[Tile::kGroupSlabs][Tile::kTileM / 2]) {
  if constexpr (Tile::Numbers::kPromotes) {
#pragma unroll
    for (auto &sums : d)
#pragma unroll
      for (float &sum : sums) sum = 0.0f;
    for (int32_t step = 0; step < args.steps; ++step, ++at) {
      float of_stage[Tile::kGroupSlabs][Tile::kTileM / 2];
      barrier_wait(shared.full(at), shared.parity(at));
      multiply_stage(shared, at, slab, false, of_stage);
      wgmma_wait<0>();
      if (step + 1 < args.steps) release(shared, at);
#pragma unroll
      for (int i = 0; i < Tile::kGroupSlabs; ++i) {
        wgmma_use(of_stage[i]);
#pragma unroll
        for (int j = 0; j < Tile::kTileM / 2; ++j) d[i][j] += of_stage[i][j];
      }
    }
  } else {
    for (int32_t step = 0; step < args.steps; ++step, ++at) {
      barrier_wait(shared.full(at), shared.parity(at));
      multiply_stage(shared, at, slab, step > 0, d);
      // One group stays in flight; the one before it has read its stage.
      wgmma_wait<1>();
      if (step > 0) release(shared, at - 1);
    }
  }
}

// ---- epilogue: a warpgroup ---------------------------------------------------------------------------------------

// The two channels of a thread's sums: bias and scale, and the unit where sums have one.
template <class Numbers = ProductOfElements> struct OfChannels {
  static constexpr int kApart = Numbers::kWritesBytes ? 1 : 8;

  float bias[2], scale[2], unit[2];

  // `n`: the first of the two.
  __device__ __forceinline__ OfChannels(const Sm90ProductArgs &args, int32_t n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t at = n + kApart * i;
      const bool inside = at < args.n;
      bias[i] = inside && args.bias != nullptr ? __ldg(args.bias + at) : 0.0f;
      scale[i] = inside && args.scale != nullptr ? __ldg(args.scale + at) : 1.0f;
      if (Numbers::kWritesBytes) scale[i] *= args.result_factor;
      unit[i] = 1.0f;
      if (Numbers::kHasUnits) unit[i] = args.factor * (inside && args.unit != nullptr ? __ldg(args.unit + at) : 1.0f);
    }
  }

  // A sum of the first or second channel with its bias.
  __device__ __forceinline__ float biased(float sum, int i) const {
    return Numbers::kHasUnits ? fmaf(sum, unit[i], bias[i]) : sum + bias[i];
  }
};

// The first of the two channels of a lane's sums among a warp's sixteen. Of a result in bytes they are neighbours: the
// matrix has even channels before odd ones there.
template <class Numbers> TREFOIL_DEVICE uint32_t first_of_two(uint32_t lane) {
  return Numbers::kWritesBytes ? lane / 4 * 2 : lane / 4;
}

// The place in a chunk of what a lane gives to or takes from sixteen rows of elements, or gives to 32 of bytes: a row of one
// of four matrices, swizzled like a tensor map's box.
template <class Numbers> TREFOIL_DEVICE uint32_t lane_offset(uint32_t warp, uint32_t lane) {
  if constexpr (Numbers::kWritesBytes) {
    return lane * kSlabN + (warp ^ lane / 2 % 4) * 16;
  } else {
    const uint32_t row = lane / 16 * 8 + lane % 8, eight = warp * 2 + lane / 8 % 2;
    return row * kRowBytes + (eight ^ lane % 8) * 16;
  }
}

// Sixteen rows of a slab: from sums to elements, in the place of the residual, which lies where the result will.
template <class Numbers, class Activation>
TREFOIL_DEVICE void finish_sixteen(const float *d, const OfChannels<Numbers> &of, const Activation &activation,
                                   bool has_residual, bool is_plain, uint32_t smem) {
  uint32_t out[4];
  float2 sums[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float low = of.biased(d[q * 2], q % 2), high = of.biased(d[q * 2 + 1], q % 2);
    if constexpr (Activation::kInHalves) out[q] = activation(low, high);
    else sums[q] = make_float2(activation(low), activation(high));
  }
  if (!is_plain) {
    uint32_t add[4] = {};
    if (has_residual) ldmatrix_x4_trans(add, smem);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if constexpr (Activation::kInHalves) sums[q] = unpack_elements(out[q]);
      const float2 residual = unpack_elements(add[q]);
      sums[q].x = fmaf(sums[q].x, of.scale[q % 2], residual.x);
      sums[q].y = fmaf(sums[q].y, of.scale[q % 2], residual.y);
    }
  }
#pragma unroll
  for (int q = 0; q < 4; ++q)
    if (!Activation::kInHalves || !is_plain) out[q] = pack_elements(sums[q].x, sums[q].y);
  stmatrix_x4_trans(smem, out);
}

// Thirty-two rows of a slab: from sums to bytes. Two neighbouring channels are the halves of an element that is transposed.
template <class Numbers, class Activation>
TREFOIL_DEVICE void finish_bytes(const float *d, const OfChannels<Numbers> &of, const Activation &activation,
                                 uint32_t smem) {
  uint32_t out[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    float sums[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = activation(of.biased(d[q * 4 + i], i / 2)) * of.scale[i / 2];
    out[q] = pack_e4m3(sums[0], sums[2]) | pack_e4m3(sums[1], sums[3]) << 16;
  }
  stmatrix_x4_trans(smem, out);
}

// The rows of a chunk: from sums to what is stored.
template <class Tile, class Activation>
TREFOIL_DEVICE void finish_chunk(const float *d, const OfChannels<typename Tile::Numbers> &of,
                                 const Activation &activation, bool has_residual, bool is_plain, uint32_t smem) {
  if constexpr (Tile::Numbers::kWritesBytes) {
#pragma unroll
    for (int j = 0; j < Tile::kChunkM / 32; ++j) finish_bytes(d + j * 16, of, activation, smem + j * 32 * kSlabN);
  } else {
#pragma unroll
    for (int j = 0; j < Tile::kChunkM / 16; ++j)
      finish_sixteen(d + j * 8, of, activation, has_residual, is_plain, smem + j * 16 * kRowBytes);
  }
}

// Brings biases and scales of a warpgroup's first tile into the L2 cache: nothing has read them before in a run.
template <class Tile>
TREFOIL_DEVICE void prefetch_channels(const Sm90ProductArgs &args, int32_t tile, int32_t first_n) {
  const int32_t n = product_origin<Tile>(args, tile).n + first_n + threadIdx.x % 128 * kPrefetchFloats;
  if (threadIdx.x % 128 >= Tile::kGroupSlabs * kSlabN / kPrefetchFloats || n >= args.n) return;
  if (args.bias != nullptr) prefetch_l2(args.bias + n);
  if (args.scale != nullptr) prefetch_l2(args.scale + n);
  if (Tile::Numbers::kHasUnits && args.unit != nullptr) prefetch_l2(args.unit + n);
}

template <class Tile, class Activation>
TREFOIL_DEVICE void multiply_and_finish(const Sm90ProductArgs &args, const Shared<Tile> &shared, uint32_t group) {
  const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  // Barriers of the block: a warpgroup's turn to multiply, which the other gives it; all of a warpgroup's chunk written.
  const uint32_t my_turn = 1 + group % 2, other_turn = 2 - group % 2, all_written = 3 + group;
  using Numbers = typename Tile::Numbers;
  const uint32_t lane_at = lane_offset<Numbers>(warp, lane);
  const Activation activation(args.activation_a, args.activation_b);
  const bool has_residual = args.residual_values != nullptr;

  const uint32_t slab = Tile::kInTurns ? 0 : group, turn = Tile::kInTurns ? group : 0;
  const int32_t first = first_tile<Tile>(group), first_n = first_channel<Tile>(group);
  prefetch_channels<Tile>(args, first, first_n);
  const bool stores = !Tile::kHasStorer && threadIdx.x % 128 == 0;
  if (turn == 1) barrier_pass(other_turn, 256);
  uint32_t at = turn * args.steps, count = 0;
  for (int32_t tile = first; tile < args.tiles; tile += Tile::kTurns * gridDim.x, at += Tile::kTurns * args.steps) {
    float d[Tile::kGroupSlabs][Tile::kTileM / 2];
    if constexpr (Tile::kInTurns) barrier_sync(my_turn, 256);
    multiply(args, shared, at, slab, d);
    if (Tile::kInTurns && tile + static_cast<int32_t>(gridDim.x) < args.tiles) barrier_pass(other_turn, 256);
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < Tile::kGroupSlabs; ++i) wgmma_use(d[i]);
    release(shared, at + args.steps - 1);

    const ProductOrigin origin = product_origin<Tile>(args, tile);
    const bool in_stages = is_in_stages<Tile>(args, tile);
    const uint32_t result_at = at + args.steps;  // the first of its stages
#pragma unroll
    for (int i = 0; i < Tile::kGroupSlabs; ++i) {
      const int32_t n = origin.n + first_n + i * kSlabN;
      const OfChannels<Numbers> of(args, n + warp * 16 + first_of_two<Numbers>(lane));
#pragma unroll
      for (int chunk = 0; chunk < Tile::kSlabChunks; ++chunk, ++count) {
        const uint32_t index = (slab + i) * Tile::kSlabChunks + chunk;  // of the tile
        const uint32_t stage = shared.result_stage(result_at, index);
        uint32_t smem_chunk = shared.result(result_at, index), ready = shared.full(stage), parity = shared.parity(stage);
        if constexpr (Tile::kInTurns) {
          // Where a tile uses each buffer twice, which one it is and its parity are known.
          const uint32_t of_all = Tile::kChunks % (2 * Tile::kBuffers) == 0 ? index : count;
          if (!in_stages)
            smem_chunk = shared.buffer(group, of_all), ready = shared.ready(group, of_all),
            parity = shared.ready_parity(of_all);
        }
        barrier_wait(ready, parity);
        // Of a slab beyond the last channel nothing is stored.
        if (n < args.n)
          finish_chunk<Tile>(d[i] + Tile::chunk_m(chunk) / 2, of, activation, has_residual,
                             !has_residual && args.scale == nullptr, smem_chunk + lane_at);
        fence_shared_for_copies();
        if constexpr (Tile::kHasStorer) {
          barrier_arrive_once(shared.written(group, in_stages, index));
        } else {
          barrier_sync(all_written, 128);
          if (stores) store_chunk<Tile>(args, smem_chunk, n, origin.m + Tile::chunk_m(chunk));
        }
      }
    }
    if constexpr (!Tile::kInTurns) {
      if (stores) wait_stores_read<0>();
      __syncwarp();
      for (int i = 0; i < Tile::kResultStages; ++i, ++at) {
        // A stage without chunks of this warpgroup may not be full yet: another one still has what was there before, and an
        // arrival would count for that.
        barrier_wait(shared.full(result_at + i), shared.parity(result_at + i));
        release(shared, result_at + i);
      }
    }
  }
}

// The kernel body.
template <class Tile, class Activation> TREFOIL_DEVICE void sm90_product(const Sm90ProductArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const Shared<Tile> shared{shared_address(shared_bytes)};
  if (threadIdx.x == 0) {
    if (shared.base % 1024 != 0) __trap();  // the swizzle is of addresses
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      barrier_init(shared.full(stage), 1);
      barrier_init(shared.empty(stage), 4 * Tile::kTileGroups * Tile::kBlocks);
    }
    if constexpr (Tile::kHasStorer) {
      for (int group = 0; group < Tile::kGroups; ++group) {
        for (int buffer = 0; buffer < Tile::kBuffers; ++buffer) barrier_init(shared.ready(group, buffer), 1);
        for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
          barrier_init(shared.written(group, false, chunk), 4);
          barrier_init(shared.written(group, true, chunk), 4);
        }
      }
    }
    fence_barrier_init();
  }
  __syncthreads();
  if constexpr (Tile::kBlocks > 1) cluster_arrive(), cluster_wait();
  const uint32_t group = uniform(threadIdx.x / 128);
  if (group == 0) {
    give_registers_up<Tile::kLoadRegisters>();
    const uint32_t warp = uniform(threadIdx.x / 32);
    if (threadIdx.x % 32 != 0) return;
    if (warp == 0) load(args, shared);
    if constexpr (Tile::kHasStorer) {
      if (warp > 0 && warp <= Tile::kGroups) store(args, shared, warp - 1);
    }
  } else {
    take_registers<Tile::kProductRegisters>();
    multiply_and_finish<Tile, Activation>(args, shared, group - 1);
  }
}
