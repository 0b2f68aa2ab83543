// Depthwise convolution, forward, on Hopper, of an image or of what a 1x1 convolution makes of it.
//
// The copy engine brings boxes of the image, border included as zeros, to shared memory, one ahead of the one that is
// computed. A thread has two channels: it reads each pixel of its windows once for all outputs that it computes, and
// keeps the filter in registers for all its tiles.
//
// With a 1x1 convolution in front, each box is first multiplied with 32 channels of its filter, and what comes out stays
// in shared memory. Where boxes overlap, its pixels are computed more than once.
#include "activation.cuh"
#include "sm90_ptx.cuh"

struct Sm90DepthwiseArgs {
  TensorMap x;            // halves {C, W, H, images}, box {32, box_width, box_height, 1}, swizzled as below
  const uint32_t *filter; // [taps][c_stored] halves
  const float2 *bias;     // [c_stored] floats
  uint32_t *y;            // [images][out_height][out_width][c_stored] halves
  int32_t c_stored;
  int32_t out_height;
  int32_t out_width;
  int32_t pad_top;
  int32_t pad_left;
  int32_t box_width;      // pixels that the windows of a tile reach over
  int32_t box_pixels;
  int32_t stage_bytes;    // of a box, rounded up to 512
  int32_t rows;           // of a tile's outputs
  int32_t columns;
  int32_t units;          // of a tile, each the outputs of a thread
  int32_t unit_columns;   // of them, side by side
  int32_t channel_tiles;
  int32_t bands;          // tiles of an image, one below the other
  int32_t column_tiles;   // and side by side
  int32_t tiles;          // images * bands * column_tiles, for each channel tile
  int32_t activation;
  int32_t height;         // of x; this and what follows is read only with a 1x1 convolution
  int32_t width;
  int32_t x_chunks;       // 8 channels each
  int32_t x_activation;
  int32_t reserved;
  const uint4 *x_filter;  // [c_stored][x_chunks] chunks of halves
  const float *x_bias;    // [c_stored]
  FastDivide by_unit_columns;
  FastDivide by_channel_tiles;
  FastDivide by_bands;
  FastDivide by_column_tiles;
  FastDivide by_box_width;
  int32_t padding[6];
};
static_assert(sizeof(Sm90DepthwiseArgs) == 320, "mirrored in sm90_conv2d_depthwise.rs");
static_assert(offsetof(Sm90DepthwiseArgs, filter) == 128 && offsetof(Sm90DepthwiseArgs, x_filter) == 240,
              "mirrored in sm90_conv2d_depthwise.rs");

constexpr int kTileChannels = 32;
constexpr int kPairs = kTileChannels / 2;          // threads side by side, two channels each
constexpr int kBoxBytes = kTileChannels * 2;       // of a box's pixel in shared memory
constexpr int kExpandedBytes = kBoxBytes + 16;     // and of a computed one, so that eight of them use all banks
constexpr int kMostThreads = 128;
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

// Copies a tile's boxes: the pixels that its windows reach over, `count` times 32 channels of them.
template <class U>
TREFOIL_DEVICE void copy_tile(const Sm90DepthwiseArgs &args, int32_t index, int32_t c, int32_t count, uint32_t smem,
                              uint32_t full) {
  const Tile tile = Tile::of(args, index);
  const int32_t w = tile.q * U::kStride - args.pad_left, h = tile.p * U::kStride - args.pad_top;
  barrier_arrive_expect(full, count * args.box_pixels * kBoxBytes);
  for (int32_t i = 0; i < count; ++i)
    copy_box_4d(smem + i * args.stage_bytes, &args.x, full, c + i * kTileChannels, w, h, tile.image);
}

// The outputs of a thread whose windows begin at `smem`.
template <class U, int kPixelBytes>
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
TREFOIL_DEVICE void store(const Sm90DepthwiseArgs &args, const Activation &activation, int32_t image, int32_t p, int32_t q,
                          int32_t c, const float2 (&sums)[U::kRows][U::kColumns]) {
  const int32_t pairs = args.c_stored / 2;
  const int64_t first = (static_cast<int64_t>(image) * args.out_height + p) * args.out_width + q;
  uint32_t *y = args.y + first * pairs + c / 2;
#pragma unroll
  for (int row = 0; row < U::kRows; ++row, y += args.out_width * pairs) {
    if (p + row >= args.out_height) break;
#pragma unroll
    for (int column = 0; column < U::kColumns; ++column)
      if (q + column < args.out_width) y[column * pairs] = activation(sums[row][column]);
  }
}

// The outputs of a tile, from its box or from what was made of it.
template <class U, int kPixelBytes>
TREFOIL_DEVICE void convolve_tile(const Sm90DepthwiseArgs &args, const Filter<U> &filter, const Activation &activation, Tile tile,
                                  int32_t c, uint32_t smem) {
  const uint32_t pair = threadIdx.x % kPairs, group = threadIdx.x / kPairs, groups = blockDim.x / kPairs;
  for (int32_t unit = group; unit < args.units; unit += groups) {
    const int32_t unit_row = divide(unit, args.by_unit_columns);
    const int32_t row = unit_row * U::kRows, column = (unit - unit_row * args.unit_columns) * U::kColumns;
    if (tile.p + row >= args.out_height || tile.q + column >= args.out_width || c >= args.c_stored) continue;
    float2 sums[U::kRows][U::kColumns];
    convolve<U, kPixelBytes>(args, filter,
                             smem + pair * 4 + (row * args.box_width + column) * U::kStride * kPixelBytes, sums);
    store<U>(args, activation, tile.image, tile.p + row, tile.q + column, c, sums);
  }
}

// ---- a 1x1 convolution in front ----------------------------------------------------------------------------------

// Of a row of its filter in shared memory: whole steps of 16 channels, and one chunk more, so that eight rows use all
// banks.
TREFOIL_DEVICE int32_t row_chunks(const Sm90DepthwiseArgs &args) { return (args.x_chunks + 1) / 2 * 2 + 1; }

// Its filter and bias, 32 channels of them, for shared memory.
TREFOIL_DEVICE void stage_x_filter(const Sm90DepthwiseArgs &args, int32_t c_first, uint32_t smem_filter,
                                   uint32_t smem_bias) {
  const int32_t chunks = row_chunks(args);
  for (int32_t i = threadIdx.x; i < kTileChannels * chunks; i += blockDim.x) {
    const int32_t row = i / chunks, chunk = i - row * chunks;
    const bool exists = c_first + row < args.c_stored && chunk < args.x_chunks;
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    store_shared_u32x4(smem_filter + i * 16,
                       exists ? load_chunk(args.x_filter, static_cast<int64_t>(c_first + row) * args.x_chunks + chunk)
                              : zeros);
  }
  if (threadIdx.x < kTileChannels) {
    const int32_t c = c_first + threadIdx.x;
    store_shared_u32(smem_bias + threadIdx.x * 4, __float_as_uint(c < args.c_stored ? __ldg(args.x_bias + c) : 0.0f));
  }
}

// Its result for a tile's pixels, zero outside the image. A warp takes 32 pixels at a time.
template <class U>
TREFOIL_DEVICE void expand_tile(const Sm90DepthwiseArgs &args, Tile tile, uint32_t smem_x, uint32_t smem_filter,
                                uint32_t smem_bias, uint32_t smem_out) {
  const uint32_t lane = threadIdx.x % 32;
  const Activation activation(args.x_activation);
  const int32_t h_first = tile.p * U::kStride - args.pad_top, w_first = tile.q * U::kStride - args.pad_left;
  // This lane's row of the four 8x8 matrices of a and of b.
  const uint32_t b = smem_filter + ((lane / 16 * 8 + lane % 8) * row_chunks(args) + lane / 8 % 2) * 16;
  const int32_t steps = (args.x_chunks + 1) / 2;
  for (int32_t first = threadIdx.x / 32 * 32; first < args.box_pixels; first += blockDim.x) {
    float d[2][4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 bias = load_shared_f32x2(smem_bias + (j * 8 + lane % 4 * 2) * 4);
#pragma unroll
      for (int m = 0; m < 2; ++m) d[m][j][0] = d[m][j][2] = bias.x, d[m][j][1] = d[m][j][3] = bias.y;
    }
    uint32_t a[2], swizzle[2];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int32_t pixel = min(first + m * 16 + static_cast<int32_t>(lane % 16), args.box_pixels - 1);
      a[m] = smem_x + pixel * kBoxBytes, swizzle[m] = pixel / 2 % 4;
    }
#pragma unroll 1
    for (int32_t step = 0; step < steps; ++step) {
      uint32_t a_values[2][4], b_values[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        ldmatrix_x4(a_values[m], a[m] + step / 2 * args.stage_bytes + (step % 2 * 2 + lane / 16 ^ swizzle[m]) * 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) ldmatrix_x4(b_values[j], b + (j * 16 * row_chunks(args) + step * 2) * 16);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          mma_m16n8k16(d[m][j], a_values[m], b_values[j / 2][j % 2 * 2], b_values[j / 2][j % 2 * 2 + 1]);
    }
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      const int32_t pixel = first + row * 8 + lane / 4;
      const int32_t down = divide(pixel, args.by_box_width), right = pixel - down * args.box_width;
      const bool inside = static_cast<uint32_t>(h_first + down) < static_cast<uint32_t>(args.height) &&
                          static_cast<uint32_t>(w_first + right) < static_cast<uint32_t>(args.width);
      if (pixel >= args.box_pixels) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float *sums = d[row / 2][j] + row % 2 * 2;
        store_shared_u32(smem_out + pixel * kExpandedBytes + j * 16 + lane % 4 * 4,
                         inside ? activation(make_float2(sums[0], sums[1])) : 0);
      }
    }
  }
}

// ---- the kernel body ---------------------------------------------------------------------------------------------

template <class U, bool kExpands> TREFOIL_DEVICE void sm90_depthwise(const Sm90DepthwiseArgs &args) {
  extern __shared__ __align__(512) uint8_t shared_bytes[];
  __shared__ uint64_t barriers[kStages];
  const uint32_t smem = shared_address(shared_bytes), full = shared_address(barriers);
  const int32_t first_tile = divide(blockIdx.x, args.by_channel_tiles);
  const int32_t c_first = (blockIdx.x - first_tile * args.channel_tiles) * kTileChannels;
  const int32_t stride = divide(gridDim.x, args.by_channel_tiles);
  // With a 1x1 convolution: its boxes, what is made of them, its filter, its bias.
  const int32_t boxes = kExpands ? (args.x_chunks + 3) / 4 : 1;
  const uint32_t smem_expanded = smem + boxes * args.stage_bytes;
  const uint32_t smem_x_filter = smem_expanded + args.box_pixels * kExpandedBytes;
  const uint32_t smem_x_bias = smem_x_filter + kTileChannels * row_chunks(args) * 16;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&args.x);
    for (uint32_t stage = 0; stage < kStages; ++stage) barrier_init(full + stage * 8, 1);
    fence_barrier_init();
  }
  // Filters depend on no launch: they come while earlier launches end.
  if constexpr (kExpands) stage_x_filter(args, c_first, smem_x_filter, smem_x_bias);
  const int32_t c = c_first + threadIdx.x % kPairs * 2;
  const Filter<U> filter = load_filter<U>(args, c, c < args.c_stored);
  const Activation activation(args.activation);
  // Boxes that come before they are needed: all of one tile, or one of each of two tiles.
  constexpr uint32_t kAhead = kExpands ? 1 : kStages;
  const auto copy = [&](int32_t index, uint32_t stage) {
    if (index < args.tiles)
      copy_tile<U>(args, index, kExpands ? 0 : c_first, boxes, smem + stage * args.stage_bytes, full + stage * 8);
  };
  if (threadIdx.x == 0) {
    wait_for_earlier_launches();
    allow_next_launch();  // not before: the next launch's filters would come beside this one's pixels
    for (uint32_t stage = 0; stage < kAhead; ++stage) copy(first_tile + stage * stride, stage);
  }
  __syncthreads();

  uint32_t stage = 0, phase = 0;
  for (int32_t index = first_tile; index < args.tiles; index += stride) {
    const Tile tile = Tile::of(args, index);
    barrier_wait(full + stage * 8, phase);
    if constexpr (kExpands) {
      expand_tile<U>(args, tile, smem, smem_x_filter, smem_x_bias, smem_expanded);
      __syncthreads();
      if (threadIdx.x == 0) copy(index + stride, 0);
      convolve_tile<U, kExpandedBytes>(args, filter, activation, tile, c, smem_expanded);
      __syncthreads();
    } else {
      convolve_tile<U, kBoxBytes>(args, filter, activation, tile, c, smem + stage * args.stage_bytes);
      __syncthreads();
      if (threadIdx.x == 0) copy(index + kStages * stride, stage);
    }
    if (++stage == kAhead) stage = 0, phase ^= 1;
  }
}

// Purpose    y[i][p][q][c] = act(sum over r, s of z[i][p*stride - pad_top + r][q*stride - pad_left + s][c]
//            * filter[r][s][c] + bias[c]); z is zero outside the image. z = x, or, for the entries named expand,
//            z[i][h][w][c] = x_act(sum over b of x[i][h][w][b] * x_filter[c][b] + x_bias[c]), rounded to half.
// Operands   x         read   halves [images][height][width][channels], by its map. channels = c_stored, and boxes are
//                             not swizzled; expand: channels = 8 * x_chunks, and boxes are swizzled by 64 bytes
//            filter    read   halves [size][size][c_stored], zeros in padded channels
//            bias      read   floats [c_stored], zeros in padded channels
//            x_filter  read   halves [c_stored][8 * x_chunks], zeros in padded channels; x_bias floats [c_stored]
//            y         write  halves [images][out_height][out_width][c_stored], disjoint from the rest
//            All at multiples of 16 bytes, without gaps. c_stored is a multiple of 8.
// Arithmetic float sums, bias first, then row by row; one rounding to half at the end. NaN stays NaN, through every
//            activation. Both activations are none or bounds, or, by entries *_silu, both are SiLU (activation.cuh has
//            its error). Padded channels of y come out zero if x is finite.
// Launch     grid a multiple of channel_tiles = ceil(c_stored / 32), up to tiles times as many, best as many as run at
//            once: a block takes every (grid / channel_tiles)-th tile of its 32 channels. Block a multiple of 32, up to
//            128: a thread for two channels and every (block / 16)-th unit of the tile. Dynamic shared memory
//            2 * stage_bytes; expand: ceil(x_chunks / 4) * stage_bytes + 80 * box_pixels
//            + 512 * (x_chunks rounded up to 2, + 1) + 128. rows and columns of a tile are multiples of those of the
//            kernel's unit, and unit_columns * (rows / unit rows) = units. box_width = (columns - 1) * stride + size, and
//            the height by rows; both up to 256, box_pixels their product. compute capability 9.0 exactly.
// Limits     pixels of x and y, tiles and taps * c_stored below 2^31. Deterministic.
// Ordering   may be launched before its predecessor has ended, and lets its successor be, but only after
//            griddepcontrol.wait: reads x and writes y only after that too; filters and biases before.
#define TREFOIL_SM90_DEPTHWISE(size, stride, rows, columns, blocks)                                             \
  extern "C" __global__ void __launch_bounds__(kMostThreads, blocks)                                            \
      TREFOIL_ENTRY(sm90_conv2d_depthwise_##size##x##size##_stride##stride##_##rows##x##columns)(               \
          const __grid_constant__ Sm90DepthwiseArgs args) {                                                     \
    sm90_depthwise<Unit<size, stride, rows, columns>, false>(args);                                             \
  }                                                                                                             \
  extern "C" __global__ void __launch_bounds__(kMostThreads, blocks)                                            \
      TREFOIL_ENTRY(sm90_conv2d_depthwise_expand_##size##x##size##_stride##stride##_##rows##x##columns)(        \
          const __grid_constant__ Sm90DepthwiseArgs args) {                                                     \
    sm90_depthwise<Unit<size, stride, rows, columns>, true>(args);                                              \
  }

TREFOIL_SM90_DEPTHWISE(3, 1, 2, 7, 5)
TREFOIL_SM90_DEPTHWISE(3, 1, 1, 4, 5)
TREFOIL_SM90_DEPTHWISE(3, 2, 2, 7, 5)
TREFOIL_SM90_DEPTHWISE(3, 2, 1, 4, 5)
TREFOIL_SM90_DEPTHWISE(5, 1, 2, 7, 4)
TREFOIL_SM90_DEPTHWISE(5, 1, 1, 4, 4)
TREFOIL_SM90_DEPTHWISE(5, 2, 2, 7, 4)
TREFOIL_SM90_DEPTHWISE(5, 2, 1, 4, 4)
TREFOIL_SM90_DEPTHWISE(7, 1, 2, 7, 3)
TREFOIL_SM90_DEPTHWISE(7, 1, 1, 4, 3)
