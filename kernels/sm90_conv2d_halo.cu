// Convolution by 3x3 windows, forward, on Hopper, of up to 64 channels of halves, whose pixels come to shared memory once
// for all taps.
#include "activation.cuh"
#include "sm90_halo.cuh"

// The one argument of every entry point. Mirrored in sm90_conv2d_halo.rs.
struct Sm90HaloArgs {
  TensorMap filter;    // halves {C, 9, K}, box {stored, 1, 64}
  TensorMap x;         // halves {C, W, H, images}, box {stored, line, 2 * rows + 2, 1}
  TensorMap residual;  // halves {K, Q, P, images}, box {64, columns, rows, 1}
  TensorMap y;         // the same with pixels y_pitch apart
  const float *bias;   // [k_stored]
  int32_t k_stored;
  int32_t has_residual;
  int32_t rows;     // of a part of a tile: a warpgroup's
  int32_t columns;  // of a tile
  int32_t line;     // columns + 2: pixels of a band's row
  int32_t band_bytes;  // from one band to the other in shared memory
  int32_t tiles;
  int32_t channel_tiles;
  int32_t column_tiles;
  int32_t row_tiles;
  int32_t pad_top;
  int32_t pad_left;
  int32_t activation;
  int32_t backward_from;  // the last tile of pixels: they are taken from there on down; negative: from 0 up
  FastDivide by_channel_tiles;
  FastDivide by_column_tiles;
  FastDivide by_row_tiles;
  FastDivide by_line;
  int32_t padding[8];
};
static_assert(sizeof(Sm90HaloArgs) == 640, "mirrored in sm90_conv2d_halo.rs");
static_assert(offsetof(Sm90HaloArgs, bias) == 512 && offsetof(Sm90HaloArgs, by_line) == 600,
              "mirrored in sm90_conv2d_halo.rs");

// Of as many channels as a pixel has, 64, 32 or 16: a box that is wider than a pixel takes several times as long to copy.
template <int kStored> using SharedOf = HaloShared<kStored * 2, kChannels * 2>;
constexpr int kOutRowBytes = kChannels * 2;  // the copy engine's widest swizzle
constexpr int kPixels = 120;                 // of a part: columns of the product
static_assert((kPixels + 8) * kOutRowBytes <= kOutBytes, "eight pixels after the results take what is left out");

// The sums of a part: line by line of the filter, tap by tap, channel by channel. The other part's turn is next, unless
// it has nothing left.
template <class Shared>
TREFOIL_DEVICE void multiply(const Sm90HaloArgs &args, uint32_t smem_filters, uint32_t smem_band, uint32_t part,
                             bool is_other_next, float (&d)[kPixels / 2]) {
  constexpr int kUnit = 16, kProductBytes = 32;  // of a descriptor's address, and of a product
  constexpr int kRowBytes = Shared::kRowBytes, kTapBytes = Shared::kTapBytes;
  barrier_sync(turn_of(part), kTurnThreads);
  wgmma_fence();
#pragma unroll
  for (int r = 0; r < kTapsOnASide; ++r) {
    const uint64_t a = wgmma_operand<kRowBytes>(smem_filters) + r * kTapsOnASide * (kTapBytes / kUnit);
    const uint64_t b = wgmma_operand<kRowBytes>(smem_band) + r * args.line * (kRowBytes / kUnit);
#pragma unroll
    for (int s = 0; s < kTapsOnASide; ++s) {
#pragma unroll
      for (int k = 0; k < kRowBytes / kProductBytes; ++k)
        Wgmma<kPixels>::multiply(d, a + s * (kTapBytes / kUnit) + 2 * k, b + s * (kRowBytes / kUnit) + 2 * k,
                                 r + s + k > 0);
    }
  }
  wgmma_commit();
  if (is_other_next) barrier_pass(turn_of(part ^ 1), kTurnThreads);
  wgmma_wait<0>();
  wgmma_use(d);
}

// A warpgroup: its half of the rows of each of the block's tiles.
template <class Shared>
TREFOIL_DEVICE void multiply_and_store(const Sm90HaloArgs &args, const Shared &shared, uint32_t part) {
  constexpr int kSixteens = kPixels / 16;
  static_assert(kPixels % 16 == 8, "the last eight pixels are stored by themselves");
  const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool stores = threadIdx.x % 128 == 0;
  const bool has_residual = args.has_residual != 0;
  // Where this lane's row of the four 8x8 matrices of 16 pixels lies in the result, which has no gaps between rows: 8
  // channels of a pixel, swizzled like a tensor map's box.
  const uint32_t channel_chunk = warp * 2 + lane / 8 % 2;
  uint32_t lane_offset[kSixteens + 1];
#pragma unroll
  for (int j = 0; j <= kSixteens; ++j) {
    const int32_t number = 16 * j + lane / 16 * 8 + lane % 8;
    const int32_t row = divide(number, args.by_line), column = number - row * args.line;
    const bool inside = row < args.rows && column < args.columns;
    const uint32_t pixel = inside ? row * args.columns + column : kPixels + lane % 8;
    lane_offset[j] = pixel * kOutRowBytes + (channel_chunk ^ pixel % 8) * 16;
  }
  const Origin first = origin_of(args, blockIdx.x);
  const int32_t k_lane = first.k + warp * 16 + lane / 4;  // and eight more
  const float bias[2] = {k_lane < args.k_stored ? __ldg(args.bias + k_lane) : 0.0f,
                         k_lane + 8 < args.k_stored ? __ldg(args.bias + k_lane + 8) : 0.0f};
  const Activation activation(args.activation);
  if (stores && has_residual) {
    wait_for_earlier_launches();
    load_residual(args, shared, part, 0, first);
  }

  uint32_t turn = 0, phase = 0;  // of bands, and of results: there are as many
  static_assert(kBands == Shared::kOuts);
  barrier_wait(shared.filters_full(), 0);
  if (part == 1) barrier_pass(turn_of(0), kTurnThreads);
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const Origin origin = origin_of(args, tile);
    const int32_t next = tile + gridDim.x;
    float d[kPixels / 2];
    barrier_wait(shared.full(turn), phase);
    multiply<Shared>(args, shared.filters(), shared.band(turn) + part * args.rows * args.line * Shared::kRowBytes, part,
                     part == 0 || next < args.tiles, d);
    if (lane == 0) barrier_arrive(shared.empty(turn));

    if (stores) {
      // The other place is free once what was stored from it last has been read; all others passed the barrier since.
      wait_stores_read<0>();
      if (has_residual && next < args.tiles) load_residual(args, shared, part, turn ^ 1, origin_of(args, next));
    }
    if (has_residual) barrier_wait(shared.residual_full(part, turn), phase);
    const uint32_t smem_out = shared.out(part, turn);
#pragma unroll
    for (int j = 0; j <= kSixteens; ++j) {
      const uint32_t smem_lane = smem_out + lane_offset[j];
      const bool whole = j < kSixteens;
      uint32_t add[4] = {}, out[4];
      if (has_residual) {
        // Of the last eight pixels the other lanes' addresses are read too: their rows are what is left out.
        ldmatrix_x4_trans(add, smem_lane);
      }
#pragma unroll
      for (int q = 0; q < (whole ? 4 : 2); ++q) {
        float2 sum = make_float2(d[j * 8 + q * 2] + bias[q % 2], d[j * 8 + q * 2 + 1] + bias[q % 2]);
        if (has_residual) {
          const float2 other = unpack_half2(add[q]);
          sum.x += other.x, sum.y += other.y;
        }
        out[q] = activation(sum);
      }
      if (whole) {
        stmatrix_x4_trans(smem_lane, out);
      } else {
        const uint32_t halves[2] = {out[0], out[1]};
        stmatrix_x2_trans(smem_lane, halves);
      }
    }
    fence_shared_for_copies();
    barrier_sync(stored_of(part), 128);
    if (stores) store_box_4d(&args.y, origin.k, origin.q, origin.p + part * args.rows, origin.n, smem_out);
    if (++turn == kBands) turn = 0, phase ^= 1;
  }
  if (stores) wait_stores_read<0>();
}

// The kernel body.
template <int kStored> TREFOIL_DEVICE void sm90_conv2d_halo(const Sm90HaloArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const SharedOf<kStored> shared{shared_address(shared_bytes), static_cast<uint32_t>(args.band_bytes)};
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  const uint32_t group = uniform(threadIdx.x / 128);
  if (group == 0) {
    if (threadIdx.x == 0) load(args, shared);
  } else {
    multiply_and_store(args, shared, group - 1);
  }
}

// Purpose    y[i][p][q][n] = act(sum over r, s, c of x[i][p - pad_top + r][q - pad_left + s][c] * filter[n][r][s][c]
//            + bias[n] + residual[i][p][q][n]), r and s from 0 to 2; x is zero outside the image.
// Operands   x         read   halves [images][height][width][C], by its map
//            filter    read   halves [k_stored][3][3][C], zeros in padded channels, by its map
//            bias      read   floats [k_stored], zeros in padded channels
//            residual  read   halves [images][P][Q][k_stored], by its map; has_residual 0: not read. Disjoint from y
//            y         write  halves [images][P][Q][k_stored], pixels y_pitch apart, by its map, disjoint from x
//            All are row-major, but for y's pixels without gaps, at multiples of 16 bytes; channel counts and y_pitch are
//            multiples of 8, C at most `stored`. The maps swizzle by 2 * `stored` bytes, of residual and y by 128, and fill
//            with zeros; their boxes are those that Sm90HaloArgs names.
// Arithmetic half products, float sums in the order of r, s, c, one rounding to half at the end (overflow becomes
//            infinity). The activation is none or a bound, or SiLU by *_silu. NaN stays NaN; minus infinity becomes NaN by
//            SiLU. Padded channels of y come out zero if x is finite.
// Launch     grid a multiple of channel_tiles up to `tiles`, best as many as run at once: a block takes every
//            gridDim.x-th tile, whose channels are the same then. Block kThreads. Dynamic shared memory kFilterBytes +
//            4 * kOutBytes + 2 * band_bytes + 72. tiles = images * row_tiles * column_tiles * channel_tiles, row_tiles =
//            ceil(P / (2 * rows)), column_tiles = ceil(Q / columns), channel_tiles = ceil(k_stored / 64). band_bytes is
//            a multiple of 1024. Compute capability 9.0 exactly.
// Limits     line = columns + 2; rows * line at most 122, so that a part's pixels are on the columns of the product; a
//            band's bytes, and those up to (rows + 2) * line + 122 pixels, at most band_bytes: products read that far,
//            for sums that are left out. Tiles below 2^31. Tails in pixels and channels are the maps': nothing outside
//            the operands is read or written. The launcher checks all of it. Deterministic, no atomics.
// Ordering   may be launched before its predecessor has ended, and lets its successor be, but only after
//            griddepcontrol.wait: reads x and residual, and writes y, only after that too; filter and bias before.
// Source     implicit GEMM as in CUTLASS (Thakkar et al., 2017-2024), its windows by shifted addresses; wgmma, tensor
//            maps, mbarrier: PTX ISA 9.0.
#define TREFOIL_SM90_CONV2D_HALO(stored)                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                     \
      TREFOIL_ENTRY(sm90_conv2d_halo_##stored)(const __grid_constant__ Sm90HaloArgs args) {                     \
    sm90_conv2d_halo<stored>(args);                                                                             \
  }

TREFOIL_SM90_CONV2D_HALO(64)
TREFOIL_SM90_CONV2D_HALO(32)
TREFOIL_SM90_CONV2D_HALO(16)
