// Convolution of bytes by 3x3 windows, forward, on Hopper, of up to 128 channels, whose pixels come to shared memory once
// for all taps.
#include "sm90_halo.cuh"
#include "sm90_requantise.cuh"

// The one argument of every entry point. Mirrored in sm90_conv2d_s8_halo.rs.
struct Sm90S8HaloArgs {
  TensorMap filter;      // pairs of bytes {C, 9, K}, box {stored, 1, 64} of bytes
  TensorMap x;           // pairs of bytes {C, W, H, images}, box {stored, line, 2 * rows + 2, 1} of bytes
  TensorMap residual;    // pairs of bytes {K, Q, P, images}, box {64, columns, rows, 1} of bytes
  TensorMap y;           // the same
  const int32_t *bias;   // [k_stored]
  const float *scale;    // [k_stored]
  int32_t k_stored;
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
  int32_t backward_from;  // the last tile of pixels: they are taken from there on down; negative: from 0 up
  FastDivide by_channel_tiles;
  FastDivide by_column_tiles;
  FastDivide by_row_tiles;
  FastDivide by_line;
  S8Output output;
  int32_t padding[2];
};
static_assert(sizeof(Sm90S8HaloArgs) == 640, "mirrored in sm90_conv2d_s8_halo.rs");
static_assert(offsetof(Sm90S8HaloArgs, bias) == 512 && offsetof(Sm90S8HaloArgs, output) == 608,
              "mirrored in sm90_conv2d_s8_halo.rs");

// Of as many channels as a pixel has in shared memory, 64 or 128.
template <int kStored> struct Form {
  static constexpr int kPixels = kStored == 64 ? 240 : 208;  // of a part: columns of the product
  // Beside twice as many filters and two bands there is one place for each part's results.
  using Shared = HaloShared<kStored, kChannels, kStored == 64 ? 2 : 1>;
  static_assert((kPixels + 8) * Shared::kOutRowBytes <= kOutBytes, "eight pixels after the results take what is left out");
};

// The sums of a part: line by line of the filter, tap by tap, channel by channel. The other part's turn is next, unless
// it has nothing left.
template <class Shared, bool kSigned, int kPixels>
TREFOIL_DEVICE void multiply(const Sm90S8HaloArgs &args, uint32_t smem_filters, uint32_t smem_band, uint32_t part,
                             bool is_other_next, int32_t (&d)[kPixels / 2]) {
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
        WgmmaBytes<kPixels, kSigned>::multiply(d, a + s * (kTapBytes / kUnit) + 2 * k,
                                               b + s * (kRowBytes / kUnit) + 2 * k, r + s + k > 0);
    }
  }
  wgmma_commit();
  if (is_other_next) barrier_pass(turn_of(part ^ 1), kTurnThreads);
  wgmma_wait<0>();
  wgmma_use(d);
}

// A warpgroup: its half of the rows of each of the block's tiles.
template <int kStored, bool kSigned, bool kAdds>
TREFOIL_DEVICE void multiply_and_store(const Sm90S8HaloArgs &args, const typename Form<kStored>::Shared &shared,
                                       uint32_t part) {
  using Shared = typename Form<kStored>::Shared;
  constexpr int kPixels = Form<kStored>::kPixels, kGroups = kPixels / 32, kOuts = Shared::kOuts;
  static_assert(kPixels % 32 == 16, "the last sixteen pixels are stored by themselves");
  const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool stores = threadIdx.x % 128 == 0;
  // Where this lane's pixel of each 32 lies in the result, which has no gaps between rows: 16 channels, swizzled like a
  // tensor map's box.
  uint32_t lane_offset[kGroups + 1];
#pragma unroll
  for (int j = 0; j <= kGroups; ++j) {
    const int32_t number = 32 * j + lane;
    const int32_t row = divide(number, args.by_line), column = number - row * args.line;
    const bool inside = number < kPixels && row < args.rows && column < args.columns;
    const uint32_t pixel = inside ? row * args.columns + column : kPixels + lane % 8;
    lane_offset[j] = pixel * Shared::kOutRowBytes + (warp ^ pixel / 2 % 4) * 16;
  }
  const Origin first = origin_of(args, blockIdx.x);
  Requantiser requantiser;
  requantiser.load(args, first.k + warp * 16 + lane / 4 * 2);
  if (kAdds && stores) {
    wait_for_earlier_launches();
    load_residual(args, shared, part, 0, first);
  }

  // A place's results lie there until they have been read; then comes the residual of the tile that is next for the place.
  const auto free_place = [&](uint32_t place, int32_t tile) {
    wait_stores_read<0>();
    if (kAdds && tile < args.tiles) load_residual(args, shared, part, place, origin_of(args, tile));
  };

  uint32_t turn = 0, phase = 0;  // of bands, and of results if there are two places; the phase of a single place is the turn
  static_assert(kOuts == kBands || kOuts == 1);
  barrier_wait(shared.filters_full(), 0);
  if (part == 1) barrier_pass(turn_of(0), kTurnThreads);
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const Origin origin = origin_of(args, tile);
    const int32_t next = tile + gridDim.x;
    int32_t d[kPixels / 2];
    barrier_wait(shared.full(turn), phase);
    multiply<Shared, kSigned, kPixels>(args, shared.filters(),
                                       shared.band(turn) + part * args.rows * args.line * Shared::kRowBytes, part,
                                       part == 0 || next < args.tiles, d);
    if (lane == 0) barrier_arrive(shared.empty(turn));

    const uint32_t place = kOuts == 1 ? 0 : turn;
    // The other place: all others have passed the barrier since what was stored from it last.
    if (kOuts > 1 && stores) free_place(turn ^ 1, next);
    if (kAdds) barrier_wait(shared.residual_full(part, place), kOuts == 1 ? turn : phase);
    const uint32_t smem_out = shared.out(part, place);
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
      requantise<kAdds>(args.output, requantiser, d + 16 * j, smem_out + lane_offset[j]);
    requantise<kAdds, 2>(args.output, requantiser, d + 16 * kGroups, smem_out + lane_offset[kGroups]);
    fence_shared_for_copies();
    barrier_sync(stored_of(part), 128);
    if (stores) {
      store_box_4d(&args.y, pair_of<Shared>(origin.k), origin.q, origin.p + part * args.rows, origin.n, smem_out);
      if (kOuts == 1) free_place(place, next);  // while the other part multiplies
    }
    if (++turn == kBands) turn = 0, phase ^= 1;
  }
  if (stores) wait_stores_read<0>();
}

// The kernel body.
template <int kStored, bool kSigned, bool kAdds> TREFOIL_DEVICE void sm90_conv2d_s8_halo(const Sm90S8HaloArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const typename Form<kStored>::Shared shared{shared_address(shared_bytes), static_cast<uint32_t>(args.band_bytes)};
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  const uint32_t group = uniform(threadIdx.x / 128);
  if (group == 0) {
    if (threadIdx.x == 0) load(args, shared);
  } else {
    multiply_and_store<kStored, kSigned, kAdds>(args, shared, group - 1);
  }
}

// Purpose    sum = bias[n] + sum over r, s, c of x[i][p - pad_top + r][q - pad_left + s][c] * filter[n][r][s][c], r and s
//            from 0 to 2; x is zero outside the image.
//            y[i][p][q][n] = what sm90_conv2d_s8.cu makes of it, with or without a residual.
// Operands   as those of sm90_conv2d_s8.cu, but C is at most `stored`, and y's map has no gaps. The maps swizzle by `stored`
//            bytes, of residual and y by 64, and fill with zeros; their boxes are those that Sm90S8HaloArgs names.
// Arithmetic as that of sm90_conv2d_s8.cu: the same bytes.
// Launch     grid a multiple of channel_tiles up to `tiles`, best as many as run at once: a block takes every
//            gridDim.x-th tile, whose channels are the same then. Block kThreads. Dynamic shared memory kFilterBytes +
//            2 * kOuts * (kOutBytes + 8) + 2 * band_bytes + 40. tiles = images * row_tiles * column_tiles * channel_tiles,
//            row_tiles = ceil(P / (2 * rows)), column_tiles = ceil(Q / columns), channel_tiles = ceil(k_stored / 64).
//            band_bytes is a multiple of 1024. Compute capability 9.0 exactly.
// Limits     line = columns + 2; rows * line at most kPixels + 2, so that a part's pixels are on the columns of the
//            product; a band's bytes, and those up to (rows + 2) * line + kPixels + 2 pixels, at most band_bytes: products
//            read that far, for sums that are left out. Tiles below 2^31. Tails in pixels and channels are the maps':
//            nothing outside the operands is read or written. The launcher checks all of it. Deterministic, no atomics.
// Ordering   may be launched before its predecessor has ended, and lets its successor be, but only after
//            griddepcontrol.wait: reads x and residual, and writes y, only after that too; filter, bias and scale before.
// Source     as sm90_conv2d_halo.cu and sm90_conv2d_s8.cu.
#define TREFOIL_SM90_CONV2D_S8_HALO(name, stored, is_signed, adds)                                              \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                     \
      sm90_conv2d_##name##_halo_##stored(const __grid_constant__ Sm90S8HaloArgs args) {                         \
    sm90_conv2d_s8_halo<stored, is_signed, adds>(args);                                                         \
  }
#define TREFOIL_SM90_CONV2D_S8_HALO_ALL(stored)                                                                 \
  TREFOIL_SM90_CONV2D_S8_HALO(u8, stored, false, false)                                                         \
  TREFOIL_SM90_CONV2D_S8_HALO(u8_add, stored, false, true)                                                      \
  TREFOIL_SM90_CONV2D_S8_HALO(s8, stored, true, false)                                                          \
  TREFOIL_SM90_CONV2D_S8_HALO(s8_add, stored, true, true)

TREFOIL_SM90_CONV2D_S8_HALO_ALL(64)
TREFOIL_SM90_CONV2D_S8_HALO_ALL(128)
