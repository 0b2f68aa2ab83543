// Convolutions by 3x3 windows on Hopper whose pixels come to shared memory once for all taps: what sm90_conv2d_halo.cu
// and sm90_conv2d_s8_halo.cu share.
//
// A tile is some rows of some columns of one image, by 64 output channels. Its pixels with all that their windows see, a
// band, lie in shared memory row by row, as one line of pixels. An output pixel's number is that of the first pixel of
// its window, so each tap's operand is the same line, some pixels further on, and nothing is copied for it. At the end
// of a row windows begin that reach into the next one: their sums are left out. Channels lie on the rows of the
// warpgroup product, pixels on its columns, as in sm90_conv2d_fprop.cuh.
//
// The filters stay for the whole launch. One thread copies bands, two ahead of the products; two warpgroups multiply and
// store, each its own half of the rows. They multiply in turns, so that one's products run beside the other's stores.
#pragma once

#include "common.cuh"
#include "sm90_ptx.cuh"

constexpr int kChannels = 64;
constexpr int kTapsOnASide = 3;
constexpr int kTaps = kTapsOnASide * kTapsOnASide;
constexpr int kParts = 2, kThreads = 128 * (1 + kParts);
constexpr int kBands = 2;                   // in flight
constexpr int kOutBytes = 16 * 1024;        // of a place for a part's results

// What lies where in shared memory. kRowBytes: of a pixel, and of a channel's tap; kOutRowBytes: of a pixel's results;
// kOuts: places for results of each part.
template <int kRowBytes_, int kOutRowBytes_, int kOuts_ = 2> struct HaloShared {
  static constexpr int kRowBytes = kRowBytes_, kTapBytes = kChannels * kRowBytes, kFilterBytes = kTaps * kTapBytes;
  static constexpr int kOutRowBytes = kOutRowBytes_, kOuts = kOuts_;

  uint32_t smem;
  uint32_t band_bytes;

  __device__ __forceinline__ uint32_t filters() const { return smem; }
  __device__ __forceinline__ uint32_t out(uint32_t part, uint32_t place) const {
    return smem + kFilterBytes + (part * kOuts + place) * kOutBytes;
  }
  __device__ __forceinline__ uint32_t band(uint32_t turn) const {
    return smem + kFilterBytes + kParts * kOuts * kOutBytes + turn * band_bytes;
  }
  __device__ __forceinline__ uint32_t filters_full() const { return band(kBands); }
  __device__ __forceinline__ uint32_t full(uint32_t turn) const { return filters_full() + 8 + turn * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t turn) const { return full(kBands) + turn * 8; }
  __device__ __forceinline__ uint32_t residual_full(uint32_t part, uint32_t place) const {
    return empty(kBands) + (part * kOuts + place) * 8;
  }
};

// The first output channel, column, row and the image of a tile.
struct Origin {
  int32_t k, q, p, n;
};

template <class Args> TREFOIL_DEVICE Origin origin_of(const Args &args, int32_t tile) {
  int32_t of_pixels = divide(tile, args.by_channel_tiles);
  const int32_t channel_tile = tile - of_pixels * args.channel_tiles;
  if (args.backward_from >= 0) of_pixels = args.backward_from - of_pixels;
  const int32_t across = divide(of_pixels, args.by_column_tiles);
  const int32_t n = divide(across, args.by_row_tiles);
  const int32_t column_tile = of_pixels - across * args.column_tiles, row_tile = across - n * args.row_tiles;
  return {channel_tile * kChannels, column_tile * args.columns, row_tile * args.rows * kParts, n};
}

// One thread: filters once, then the bands of the block's tiles.
template <class Args, class Shared> TREFOIL_DEVICE void load(const Args &args, const Shared &shared) {
  // Filters depend on no launch. A block's tiles are all of the same channels.
  const int32_t k = origin_of(args, blockIdx.x).k;
  barrier_arrive_expect(shared.filters_full(), Shared::kFilterBytes);
  for (int tap = 0; tap < kTaps; ++tap)
    copy_box_3d(shared.filters() + tap * Shared::kTapBytes, &args.filter, shared.filters_full(), 0, tap, k);
  wait_for_earlier_launches();
  allow_next_launch();  // not before: the next launch's filters would come beside this one's pixels
  const uint32_t copied_bytes = args.line * (kParts * args.rows + kTapsOnASide - 1) * Shared::kRowBytes;
  uint32_t turn = 0, phase = 0;
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const Origin origin = origin_of(args, tile);
    barrier_wait(shared.empty(turn), phase ^ 1);
    barrier_arrive_expect(shared.full(turn), copied_bytes);
    copy_box_4d(shared.band(turn), &args.x, shared.full(turn), 0, origin.q - args.pad_left, origin.p - args.pad_top,
                origin.n);
    if (++turn == kBands) turn = 0, phase ^= 1;
  }
}

// Named barriers: of the threads of a part that store, and of a part's turn to multiply.
TREFOIL_DEVICE constexpr uint32_t stored_of(uint32_t part) { return 1 + part; }
TREFOIL_DEVICE constexpr uint32_t turn_of(uint32_t part) { return 1 + kParts + part; }
constexpr uint32_t kTurnThreads = 128 * kParts;

// Where a channel lies in a pixel's results, in the pairs of bytes that maps count in.
template <class Shared> TREFOIL_DEVICE int32_t pair_of(int32_t channel) {
  return Shared::kOutRowBytes == 2 * kChannels ? channel : channel / 2;
}

// One thread: starts the copy of a part's residual to where its result will be.
template <class Args, class Shared>
TREFOIL_DEVICE void load_residual(const Args &args, const Shared &shared, uint32_t part, uint32_t place,
                                  const Origin &origin) {
  const uint32_t full = shared.residual_full(part, place);
  barrier_arrive_expect(full, args.rows * args.columns * Shared::kOutRowBytes);
  copy_box_4d(shared.out(part, place), &args.residual, full, pair_of<Shared>(origin.k), origin.q,
              origin.p + part * args.rows, origin.n);
}

// One thread: the barriers.
template <class Shared> TREFOIL_DEVICE void init_barriers(const Shared &shared) {
  if (shared.smem % 1024 != 0) __trap();  // the swizzle is of addresses
  barrier_init(shared.filters_full(), 1);
  for (uint32_t turn = 0; turn < kBands; ++turn) {
    barrier_init(shared.full(turn), 1);
    barrier_init(shared.empty(turn), 4 * kParts);
  }
  for (uint32_t part = 0; part < kParts; ++part)
    for (uint32_t place = 0; place < Shared::kOuts; ++place) barrier_init(shared.residual_full(part, place), 1);
  fence_barrier_init();
}
