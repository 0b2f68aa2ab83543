// Depthwise convolution, forward, on Hopper.
//
// The copy engine brings boxes of the image, border included as zeros, to shared memory, one ahead of the one that is
// computed. A thread has two channels: it reads each pixel of its windows once for all outputs that it computes, and
// keeps the filter in registers for all its tiles.
#include "common.cuh"
#include "sm90_ptx.cuh"

struct Sm90DepthwiseArgs {
  TensorMap x;            // halves {C, W, H, images}, box {32, box_width, box_height, 1}, not swizzled
  const uint32_t *filter; // [taps][c_stored] halves
  const float2 *bias;     // [c_stored] floats
  uint32_t *y;            // [images][out_height][out_width][c_stored] halves
  int32_t c_stored;
  int32_t out_height;
  int32_t out_width;
  int32_t pad_top;
  int32_t pad_left;
  int32_t box_width;      // pixels that the windows of a tile reach over
  int32_t box_bytes;
  int32_t stage_bytes;    // box_bytes, rounded up to 128
  int32_t rows;           // of a tile's outputs
  int32_t columns;
  int32_t units;          // of a tile, each the outputs of a thread
  int32_t unit_columns;   // of them, side by side
  int32_t channel_tiles;
  int32_t bands;          // tiles of an image, one below the other
  int32_t column_tiles;   // and side by side
  int32_t tiles;          // images * bands * column_tiles, for each channel tile
  int32_t activation;
  int32_t reserved;
  FastDivide by_unit_columns;
  FastDivide by_channel_tiles;
  FastDivide by_bands;
  FastDivide by_column_tiles;
};
static_assert(sizeof(Sm90DepthwiseArgs) == 256, "mirrored in sm90_conv2d_depthwise.rs");
static_assert(offsetof(Sm90DepthwiseArgs, filter) == 128 && offsetof(Sm90DepthwiseArgs, by_unit_columns) == 224,
              "mirrored in sm90_conv2d_depthwise.rs");

constexpr int kTileChannels = 32;
constexpr int kPairs = kTileChannels / 2;          // threads side by side, two channels each
constexpr int kPixelBytes = kTileChannels * 2;     // of a box in shared memory
constexpr int kMostThreads = 256;
constexpr uint32_t kStages = 2;

// A square window with a stride, and the outputs of a thread.
template <int kSize_, int kStride_, int kRows_, int kColumns_> struct Unit {
  static constexpr int kSize = kSize_, kStride = kStride_, kRows = kRows_, kColumns = kColumns_;
  static constexpr int kInRows = (kRows - 1) * kStride + kSize, kInColumns = (kColumns - 1) * kStride + kSize;
};

// A tile: its image, and its first output pixel.
struct Tile {
  int32_t image, p, q;

  static __device__ __forceinline__ Tile of(const Sm90DepthwiseArgs &args, int32_t index) {
    const int32_t band_index = divide(index, args.by_column_tiles);
    const int32_t image = divide(band_index, args.by_bands);
    return {image, (band_index - image * args.bands) * args.rows,
            (index - band_index * args.column_tiles) * args.columns};
  }
};

// A thread's two channels of the filter and of the bias.
template <class U> struct Filter {
  float2 taps[U::kSize * U::kSize];
  float2 bias;
};

template <class U> TREFOIL_DEVICE Filter<U> load_filter(const Sm90DepthwiseArgs &args, int32_t c, bool exists) {
  Filter<U> filter;
  const uint32_t *from = args.filter + c / 2;
#pragma unroll
  for (int tap = 0; tap < U::kSize * U::kSize; ++tap, from += args.c_stored / 2)
    filter.taps[tap] = unpack_half2(exists ? __ldg(from) : 0);
  filter.bias = exists ? __ldg(args.bias + c / 2) : float2();
  return filter;
}

// Copies a tile's box: the pixels that its windows reach over.
template <class U>
TREFOIL_DEVICE void copy_tile(const Sm90DepthwiseArgs &args, int32_t index, int32_t c, uint32_t smem, uint32_t full) {
  const Tile tile = Tile::of(args, index);
  barrier_arrive_expect(full, args.box_bytes);
  copy_box_4d(smem, &args.x, full, c, tile.q * U::kStride - args.pad_left, tile.p * U::kStride - args.pad_top,
              tile.image);
}

// The outputs of a thread whose windows begin at `smem`.
template <class U>
TREFOIL_DEVICE void convolve(const Sm90DepthwiseArgs &args, const Filter<U> &filter, uint32_t smem,
                             float2 (&sums)[U::kRows][U::kColumns]) {
#pragma unroll
  for (int row = 0; row < U::kRows; ++row)
#pragma unroll
    for (int column = 0; column < U::kColumns; ++column) sums[row][column] = filter.bias;
#pragma unroll
  for (int h = 0; h < U::kInRows; ++h, smem += args.box_width * kPixelBytes) {
#pragma unroll
    for (int w = 0; w < U::kInColumns; ++w) {
      const float2 x = unpack_half2(load_shared_u32(smem + w * kPixelBytes));
#pragma unroll
      for (int row = 0; row < U::kRows; ++row) {
#pragma unroll
        for (int column = 0; column < U::kColumns; ++column) {
          const int r = h - row * U::kStride, s = w - column * U::kStride;
          if (r < 0 || r >= U::kSize || s < 0 || s >= U::kSize) continue;
          const float2 tap = filter.taps[r * U::kSize + s];
          sums[row][column].x = fmaf(x.x, tap.x, sums[row][column].x);
          sums[row][column].y = fmaf(x.y, tap.y, sums[row][column].y);
        }
      }
    }
  }
}

template <class U>
TREFOIL_DEVICE void store(const Sm90DepthwiseArgs &args, const Clamp &clamp, int32_t image, int32_t p, int32_t q,
                          int32_t c, const float2 (&sums)[U::kRows][U::kColumns]) {
  const int32_t pairs = args.c_stored / 2;
  const int64_t first = (static_cast<int64_t>(image) * args.out_height + p) * args.out_width + q;
  uint32_t *y = args.y + first * pairs + c / 2;
#pragma unroll
  for (int row = 0; row < U::kRows; ++row, y += args.out_width * pairs) {
    if (p + row >= args.out_height) break;
#pragma unroll
    for (int column = 0; column < U::kColumns; ++column)
      if (q + column < args.out_width) y[column * pairs] = clamp(sums[row][column]);
  }
}

template <class U> TREFOIL_DEVICE void sm90_depthwise(const Sm90DepthwiseArgs &args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  __shared__ uint64_t barriers[kStages];
  const uint32_t smem = shared_address(shared_bytes), full = shared_address(barriers);
  const int32_t of_channels = divide(blockIdx.x, args.by_channel_tiles);
  const int32_t c_first = (blockIdx.x - of_channels * args.channel_tiles) * kTileChannels;
  const int32_t stride = divide(gridDim.x, args.by_channel_tiles);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&args.x);
    for (uint32_t stage = 0; stage < kStages; ++stage) barrier_init(full + stage * 8, 1);
    fence_barrier_init();
    allow_next_launch();
  }
  // Filters depend on no launch: they come while earlier launches end.
  const uint32_t pair = threadIdx.x % kPairs, group = threadIdx.x / kPairs, groups = blockDim.x / kPairs;
  const int32_t c = c_first + 2 * pair;
  const bool exists = c < args.c_stored;
  const Filter<U> filter = load_filter<U>(args, c, exists);
  const Clamp clamp(args.activation);
  if (threadIdx.x == 0) {
    wait_for_earlier_launches();
    for (uint32_t stage = 0; stage < kStages && of_channels + stage * stride < args.tiles; ++stage)
      copy_tile<U>(args, of_channels + stage * stride, c_first, smem + stage * args.stage_bytes, full + stage * 8);
  }
  __syncthreads();

  uint32_t stage = 0, phase = 0;
  for (int32_t index = of_channels; index < args.tiles; index += stride) {
    const Tile tile = Tile::of(args, index);
    const uint32_t smem_box = smem + stage * args.stage_bytes + pair * 4;
    barrier_wait(full + stage * 8, phase);
    for (int32_t unit = group; unit < args.units; unit += groups) {
      const int32_t unit_row = divide(unit, args.by_unit_columns);
      const int32_t row = unit_row * U::kRows, column = (unit - unit_row * args.unit_columns) * U::kColumns;
      if (tile.p + row >= args.out_height || tile.q + column >= args.out_width || !exists) continue;
      float2 sums[U::kRows][U::kColumns];
      convolve<U>(args, filter, smem_box + (row * args.box_width + column) * U::kStride * kPixelBytes, sums);
      store<U>(args, clamp, tile.image, tile.p + row, tile.q + column, c, sums);
    }
    __syncthreads();
    const int32_t ahead = index + kStages * stride;
    if (threadIdx.x == 0 && ahead < args.tiles)
      copy_tile<U>(args, ahead, c_first, smem + stage * args.stage_bytes, full + stage * 8);
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
}

// Purpose    y[i][p][q][c] = act(sum over r, s of x[i][p*stride - pad_top + r][q*stride - pad_left + s][c]
//            * filter[r][s][c] + bias[c]); x is zero outside the image.
// Operands   x       read   halves [images][height][width][c_stored], by its map
//            filter  read   halves [size][size][c_stored], zeros in padded channels
//            bias    read   floats [c_stored], zeros in padded channels
//            y       write  halves [images][out_height][out_width][c_stored], disjoint from the rest
//            All at multiples of 16 bytes, without gaps. c_stored is a multiple of 8.
// Arithmetic float sums, bias first, then row by row; one rounding to half at the end. NaN stays NaN, through every
//            activation. Padded channels of y come out zero if x is finite.
// Launch     grid a multiple of channel_tiles = ceil(c_stored / 32), up to tiles times as many, best as many as run at
//            once: a block takes every (grid / channel_tiles)-th tile of its 32 channels. Block a multiple of 32, up to
//            256: a thread for two channels and every (block / 16)-th unit of the tile. Dynamic shared memory
//            2 * stage_bytes. rows and columns of a tile are multiples of those of the kernel's unit, and
//            unit_columns * (rows / unit rows) = units. box_width = (columns - 1) * stride + size, and the height by
//            rows; both up to 256. compute capability 9.0 exactly.
// Limits     pixels of x and y, tiles and taps * c_stored below 2^31. Deterministic.
// Ordering   may be launched before its predecessor has ended, and lets its successor be: reads x and writes y only after
//            griddepcontrol.wait; filter and bias before.
#define TREFOIL_SM90_DEPTHWISE(size, stride, rows, columns, blocks)                                             \
  extern "C" __global__ void __launch_bounds__(kMostThreads, blocks)                                            \
      sm90_conv2d_depthwise_##size##x##size##_stride##stride##_##rows##x##columns(                              \
          const __grid_constant__ Sm90DepthwiseArgs args) {                                                     \
    sm90_depthwise<Unit<size, stride, rows, columns>>(args);                                                    \
  }

TREFOIL_SM90_DEPTHWISE(3, 1, 2, 7, 3)
TREFOIL_SM90_DEPTHWISE(3, 1, 1, 4, 4)
TREFOIL_SM90_DEPTHWISE(3, 2, 2, 7, 3)
TREFOIL_SM90_DEPTHWISE(3, 2, 1, 4, 4)
TREFOIL_SM90_DEPTHWISE(5, 1, 2, 7, 2)
TREFOIL_SM90_DEPTHWISE(5, 1, 1, 4, 2)
TREFOIL_SM90_DEPTHWISE(5, 2, 2, 7, 2)
TREFOIL_SM90_DEPTHWISE(5, 2, 1, 4, 2)
