// A network's first layers in one pass, on Hopper: what sm90_stem.cu and sm90_stem_s8.cu share.
//
// One warpgroup of a block stores image rows, the other multiplies them, so many rows of the convolution behind it.
#pragma once

#include "common.cuh"
#include "sm90_ptx.cuh"

constexpr int kThreads = 256;        // two warpgroups: image rows, and products with what becomes of them
constexpr int kGroupThreads = 128;
constexpr int kGroupWarps = kGroupThreads / 32;

// Where a block works. A pooling block's first row may be above the convolution's, its last one below.
struct Place {
  int32_t image, out_first, out_end, conv_first, conv_end, column_first;
};

template <class S, class Args> TREFOIL_DEVICE Place place_of(const Args &args) {
  const uint32_t band_index = divide(blockIdx.x, args.by_column_tiles);
  const int32_t image = divide(band_index, args.by_bands);
  Place place;
  place.image = image;
  place.column_first = (blockIdx.x - band_index * args.column_tiles) * S::kNextTile;
  place.out_first = (band_index - image * args.bands) * args.band_rows;
  place.out_end = min(place.out_first + args.band_rows, args.out_height);
  place.conv_first = S::kPools ? 2 * place.out_first - 1 : place.out_first;
  place.conv_end = S::kPools ? 2 * place.out_end : place.out_end;
  return place;
}

// ---- stages: where the image rows of a row of the convolution are handed over ---------------------------------------

constexpr int kBarrierBytes = 8;

// The stages take turns; `row` counts the block's rows of the convolution.
template <class S> struct Stages {
  uint32_t barriers;  // one for each stage that its image rows are stored, then those that they have been read

  static __device__ __forceinline__ uint32_t index(uint32_t row) { return row % S::kStages; }
  static __device__ __forceinline__ uint32_t parity(uint32_t row) { return row / S::kStages % 2; }  // of their phases
  __device__ __forceinline__ uint32_t stored(uint32_t row) const { return barriers + index(row) * kBarrierBytes; }
  __device__ __forceinline__ uint32_t read(uint32_t row) const { return stored(row) + S::kStages * kBarrierBytes; }
};
