// Depthwise convolution of bytes, forward, on Hopper.
//
// The copy engine brings boxes of the image, border included as zeros, to shared memory, one ahead of the one that is
// computed. A thread has four channels, which are a word of each pixel. It turns the words of up to four rows of a column
// around, so that a word has one channel of these rows; then one instruction multiplies four taps. The filter is turned
// around in the same way once, for each of the thread's rows of outputs, and stays in registers for all tiles.
#include "sm90_requantise.cuh"

struct Sm90DepthwiseS8Args {
  TensorMap x;            // bytes {C, W, H, images}, box {tile channels, box_width, box_height, 1}, not swizzled
  const uint32_t *filter; // [taps][c_stored] bytes
  const int4 *bias;       // [c_stored] integers
  const float4 *scale;    // [c_stored] floats
  uint32_t *y;            // [images][out_height][out_width][c_stored] bytes
  int32_t c_stored;
  int32_t out_height;
  int32_t out_width;
  int32_t pad_top;
  int32_t pad_left;
  int32_t box_width;      // pixels that the windows of a tile reach over
  int32_t box_bytes;
  int32_t stage_bytes;    // box_bytes, rounded up to 512
  int32_t rows;           // of a tile's outputs
  int32_t columns;
  int32_t units;          // of a tile, each the outputs of a thread
  int32_t unit_columns;   // of them, side by side
  int32_t channel_tiles;
  int32_t bands;          // tiles of an image, one below the other
  int32_t column_tiles;   // and side by side
  int32_t tiles;          // images * bands * column_tiles, for each channel tile
  uint32_t flip;          // what makes four bytes of x unsigned: 0x80808080 if they are signed, else 0
  S8Output output;        // without a residual
  FastDivide by_unit_columns;
  FastDivide by_channel_tiles;
  FastDivide by_bands;
  FastDivide by_column_tiles;
  int32_t padding[9];
};
static_assert(sizeof(Sm90DepthwiseS8Args) == 320, "mirrored in sm90_conv2d_depthwise_s8.rs");
static_assert(offsetof(Sm90DepthwiseS8Args, c_stored) == 160 && offsetof(Sm90DepthwiseS8Args, output) == 228,
              "mirrored in sm90_conv2d_depthwise_s8.rs");

constexpr int kChannels = 4;       // of a thread
constexpr int kMostThreads = 128;
constexpr uint32_t kStages = 2;

// A square window with a stride, the outputs of a thread, and the threads side by side that have a tile's channels.
template <int kSize_, int kStride_, int kRows_, int kColumns_, int kLanes_> struct Unit {
  static constexpr int kSize = kSize_, kStride = kStride_, kRows = kRows_, kColumns = kColumns_, kLanes = kLanes_;
  static constexpr int kInRows = (kRows - 1) * kStride + kSize, kInColumns = (kColumns - 1) * kStride + kSize;
  static constexpr int kTileChannels = kLanes * kChannels, kPixelBytes = kTileChannels;
  static constexpr int kGroups = (kInRows + 3) / 4;  // of up to four input rows

  // The input rows of a group.
  static constexpr __host__ __device__ int group_rows(int group) {
    return kInRows - 4 * group < 4 ? kInRows - 4 * group : 4;
  }
  // Whether the windows of a row of outputs reach into a group.
  static constexpr __host__ __device__ bool reads(int row, int group) {
    return row * kStride < 4 * group + group_rows(group) && row * kStride + kSize > 4 * group;
  }
};

// A tile: its image, and its first output pixel.
struct Tile {
  int32_t image, p, q;

  static __device__ __forceinline__ Tile of(const Sm90DepthwiseS8Args &args, int32_t index) {
    const int32_t band_index = divide(index, args.by_column_tiles);
    const int32_t image = divide(band_index, args.by_bands);
    return {image, (band_index - image * args.bands) * args.rows,
            (index - band_index * args.column_tiles) * args.columns};
  }
};

// From words of four channels in `count` rows to a word of these rows for each channel. Of two rows a word has two
// channels, and of one row all four; the fourth byte of three rows is any. `mask` keeps the channel's own bytes.
TREFOIL_DEVICE void turn(int count, const uint32_t (&row)[4], uint32_t (&word)[kChannels]) {
  if (count == 1) {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) word[i] = row[0];
    return;
  }
  const uint32_t low = __byte_perm(row[0], row[1], 0x5140), high = __byte_perm(row[0], row[1], 0x7362);
  if (count == 2) {
    word[0] = word[1] = low, word[2] = word[3] = high;
  } else if (count == 3) {
    word[0] = __byte_perm(low, row[2], 0x0410), word[1] = __byte_perm(low, row[2], 0x0532);
    word[2] = __byte_perm(high, row[2], 0x0610), word[3] = __byte_perm(high, row[2], 0x0732);
  } else {
    const uint32_t low2 = __byte_perm(row[2], row[3], 0x5140), high2 = __byte_perm(row[2], row[3], 0x7362);
    word[0] = __byte_perm(low, low2, 0x5410), word[1] = __byte_perm(low, low2, 0x7632);
    word[2] = __byte_perm(high, high2, 0x5410), word[3] = __byte_perm(high, high2, 0x7632);
  }
}

TREFOIL_DEVICE uint32_t mask(int count, int channel) {
  return count == 4   ? ~0u
         : count == 3 ? 0x00ffffffu
         : count == 2 ? 0xffffu << channel % 2 * 16
                      : 0xffu << channel * 8;
}

// A thread's four channels of the filter, by groups of rows, rows of outputs and columns of the window; and of the bias.
template <class U> struct Filter {
  uint32_t taps[U::kGroups][U::kRows][U::kSize][kChannels];
  int32_t bias[kChannels];
};

template <class U> TREFOIL_DEVICE Filter<U> load_filter(const Sm90DepthwiseS8Args &args, int32_t c, bool exists) {
  uint32_t given[U::kSize][U::kSize];
  const uint32_t *from = args.filter + c / kChannels;
#pragma unroll
  for (int r = 0; r < U::kSize; ++r)
#pragma unroll
    for (int s = 0; s < U::kSize; ++s, from += args.c_stored / kChannels) given[r][s] = exists ? __ldg(from) : 0;
  const int4 bias = exists ? __ldg(args.bias + c / kChannels) : int4();
  Filter<U> filter = {{}, {bias.x, bias.y, bias.z, bias.w}};
#pragma unroll
  for (int group = 0; group < U::kGroups; ++group) {
#pragma unroll
    for (int row = 0; row < U::kRows; ++row) {
      if (!U::reads(row, group)) continue;
#pragma unroll
      for (int s = 0; s < U::kSize; ++s) {
        uint32_t of_rows[4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = group * 4 + i - row * U::kStride;
          if (r >= 0 && r < U::kSize) of_rows[i] = given[r][s];
        }
        uint32_t(&taps)[kChannels] = filter.taps[group][row][s];
        turn(U::group_rows(group), of_rows, taps);
#pragma unroll
        for (int i = 0; i < kChannels; ++i) {
          taps[i] &= mask(U::group_rows(group), i);
          // Signed bytes become unsigned by 128 more, the zeros outside the image too.
          if (row == 0) filter.bias[i] -= dot_bytes(args.flip, taps[i], 0);
        }
      }
    }
  }
  return filter;
}

// Copies a tile's box: the pixels that its windows reach over.
template <class U>
TREFOIL_DEVICE void copy_tile(const Sm90DepthwiseS8Args &args, int32_t index, int32_t c, uint32_t smem, uint32_t full) {
  const Tile tile = Tile::of(args, index);
  barrier_arrive_expect(full, args.box_bytes);
  copy_box_4d(smem, &args.x, full, c / 2, tile.q * U::kStride - args.pad_left, tile.p * U::kStride - args.pad_top,
              tile.image);
}

// The sums of a thread whose windows begin at `smem`.
template <class U>
TREFOIL_DEVICE void convolve(const Sm90DepthwiseS8Args &args, const Filter<U> &filter, uint32_t smem,
                             int32_t (&sums)[U::kRows][U::kColumns][kChannels]) {
#pragma unroll
  for (int row = 0; row < U::kRows; ++row)
#pragma unroll
    for (int column = 0; column < U::kColumns; ++column)
#pragma unroll
      for (int i = 0; i < kChannels; ++i) sums[row][column][i] = filter.bias[i];
#pragma unroll
  for (int group = 0; group < U::kGroups; ++group) {
    constexpr int kPixelBytes = U::kPixelBytes;
    const int count = U::group_rows(group);
#pragma unroll
    for (int w = 0; w < U::kInColumns; ++w) {
      uint32_t of_rows[4] = {}, x[kChannels];
#pragma unroll
      for (int i = 0; i < count; ++i)
        of_rows[i] = load_shared_u32(smem + (group * 4 + i) * args.box_width * kPixelBytes + w * kPixelBytes) ^ args.flip;
      turn(count, of_rows, x);
#pragma unroll
      for (int row = 0; row < U::kRows; ++row) {
        if (!U::reads(row, group)) continue;
#pragma unroll
        for (int column = 0; column < U::kColumns; ++column) {
          const int s = w - column * U::kStride;
          if (s < 0 || s >= U::kSize) continue;
#pragma unroll
          for (int i = 0; i < kChannels; ++i)
            sums[row][column][i] = dot_bytes(x[i], filter.taps[group][row][s][i], sums[row][column][i]);
        }
      }
    }
  }
}

template <class U>
TREFOIL_DEVICE void store(const Sm90DepthwiseS8Args &args, int32_t image, int32_t p, int32_t q, int32_t c,
                          const int32_t (&sums)[U::kRows][U::kColumns][kChannels]) {
  const float4 scales = __ldg(args.scale + c / kChannels);
  const float scale[kChannels] = {scales.x, scales.y, scales.z, scales.w};
  const int32_t words = args.c_stored / kChannels;
  const int64_t first = (static_cast<int64_t>(image) * args.out_height + p) * args.out_width + q;
  uint32_t *y = args.y + first * words + c / kChannels;
#pragma unroll
  for (int row = 0; row < U::kRows; ++row, y += static_cast<int64_t>(args.out_width) * words) {
    if (p + row >= args.out_height) break;
#pragma unroll
    for (int column = 0; column < U::kColumns; ++column) {
      if (q + column >= args.out_width) continue;
      int32_t of[kChannels];
#pragma unroll
      for (int i = 0; i < kChannels; ++i)
        of[i] = Requantiser::integer_of<false>(args.output, sums[row][column][i], scale[i], 0.0f);
      const uint32_t bytes = pack_bytes(of[0], of[1], of[2], of[3]) ^ args.output.result_flip;
      y[column * words] = args.output.result_is_low ? low_bytes(bytes) : bytes;
    }
  }
}

// The outputs of a tile, from its box.
template <class U>
TREFOIL_DEVICE void convolve_tile(const Sm90DepthwiseS8Args &args, const Filter<U> &filter, Tile tile, int32_t c,
                                  uint32_t smem) {
  const uint32_t lane = threadIdx.x % U::kLanes, group = threadIdx.x / U::kLanes, groups = blockDim.x / U::kLanes;
  for (int32_t unit = group; unit < args.units; unit += groups) {
    const int32_t unit_row = divide(unit, args.by_unit_columns);
    const int32_t row = unit_row * U::kRows, column = (unit - unit_row * args.unit_columns) * U::kColumns;
    if (tile.p + row >= args.out_height || tile.q + column >= args.out_width || c >= args.c_stored) continue;
    int32_t sums[U::kRows][U::kColumns][kChannels];
    convolve<U>(args, filter,
                smem + lane * kChannels + (row * args.box_width + column) * U::kStride * U::kPixelBytes, sums);
    store<U>(args, tile.image, tile.p + row, tile.q + column, c, sums);
  }
}

template <class U> TREFOIL_DEVICE void sm90_depthwise_s8(const Sm90DepthwiseS8Args &args) {
  extern __shared__ __align__(512) uint8_t shared_bytes[];
  __shared__ uint64_t barriers[kStages];
  const uint32_t smem = shared_address(shared_bytes), full = shared_address(barriers);
  const int32_t first_tile = divide(blockIdx.x, args.by_channel_tiles);
  const int32_t c_first = (blockIdx.x - first_tile * args.channel_tiles) * U::kTileChannels;
  const int32_t stride = divide(gridDim.x, args.by_channel_tiles);
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&args.x);
    for (uint32_t stage = 0; stage < kStages; ++stage) barrier_init(full + stage * 8, 1);
    fence_barrier_init();
    allow_next_launch();
  }
  // Filters depend on no launch: they come while earlier launches end.
  const int32_t c = c_first + threadIdx.x % U::kLanes * kChannels;
  const Filter<U> filter = load_filter<U>(args, c, c < args.c_stored);
  const auto copy = [&](int32_t index, uint32_t stage) {
    if (index < args.tiles) copy_tile<U>(args, index, c_first, smem + stage * args.stage_bytes, full + stage * 8);
  };
  if (threadIdx.x == 0) {
    wait_for_earlier_launches();
    for (uint32_t stage = 0; stage < kStages; ++stage) copy(first_tile + stage * stride, stage);
  }
  __syncthreads();

  uint32_t stage = 0, phase = 0;
  for (int32_t index = first_tile; index < args.tiles; index += stride) {
    barrier_wait(full + stage * 8, phase);
    convolve_tile<U>(args, filter, Tile::of(args, index), c, smem + stage * args.stage_bytes);
    __syncthreads();
    if (threadIdx.x == 0) copy(index + kStages * stride, stage);
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
}

// Purpose    y[i][p][q][c] = saturate(round((sum over r, s of x[i][p*stride - pad_top + r][q*stride - pad_left + s][c]
//            * filter[r][s][c] + bias[c]) * scale[c])); x is zero outside the image.
// Operands   x       read   bytes [images][height][width][c_stored], by its map in words of two; signed if flip says so
//            filter  read   signed bytes [size][size][c_stored], zeros in padded channels
//            bias    read   integers [c_stored], scale floats [c_stored], zeros in padded channels
//            y       write  bytes [images][out_height][out_width][c_stored], disjoint from the rest
//            All at multiples of 16 bytes, without gaps. c_stored is a multiple of 16.
// Arithmetic exact sums modulo 2^32; a sum rounded to float, the product with its scale rounded to float, and that to the
//            nearest integer, the even one of two, saturated as `output` says. Padded channels of y come out zero.
// Launch     grid a multiple of channel_tiles = ceil(c_stored / tile channels), up to tiles times as many, best as many as
//            run at once: a block takes every (grid / channel_tiles)-th tile of its channels, 64 or, by entries *_c32, 32.
//            Block a multiple of 32, up to 128: a thread for four channels and every unit that comes to it in turn.
//            Dynamic shared memory 2 * stage_bytes. rows and columns of a tile are multiples of those of the kernel's unit,
//            and unit_columns * (rows / unit rows) = units. box_width = (columns - 1) * stride + size, and the height by
//            rows; both up to 256. compute capability 9.0 exactly.
// Limits     pixels of x and y, tiles and taps * c_stored below 2^31. Deterministic.
// Ordering   may be launched before its predecessor has ended, and lets its successor be: reads x and writes y only after
//            griddepcontrol.wait; filters, biases and scales before.
#define TREFOIL_SM90_DEPTHWISE_S8_LANES(size, stride, rows, columns, lanes, suffix, blocks)                      \
  extern "C" __global__ void __launch_bounds__(kMostThreads, blocks)                                            \
      sm90_conv2d_depthwise_s8_##size##x##size##_stride##stride##_##rows##x##columns##suffix(                   \
          const __grid_constant__ Sm90DepthwiseS8Args args) {                                                   \
    sm90_depthwise_s8<Unit<size, stride, rows, columns, lanes>>(args);                                          \
  }
#define TREFOIL_SM90_DEPTHWISE_S8(size, stride, rows, columns, blocks)                                          \
  TREFOIL_SM90_DEPTHWISE_S8_LANES(size, stride, rows, columns, 16, , blocks)                                    \
  TREFOIL_SM90_DEPTHWISE_S8_LANES(size, stride, rows, columns, 8, _c32, blocks)

TREFOIL_SM90_DEPTHWISE_S8(3, 1, 2, 7, 4)
TREFOIL_SM90_DEPTHWISE_S8(3, 1, 1, 4, 5)
TREFOIL_SM90_DEPTHWISE_S8(3, 2, 2, 7, 4)
TREFOIL_SM90_DEPTHWISE_S8(3, 2, 1, 4, 5)
TREFOIL_SM90_DEPTHWISE_S8(5, 1, 2, 7, 3)
TREFOIL_SM90_DEPTHWISE_S8(5, 1, 1, 4, 4)
TREFOIL_SM90_DEPTHWISE_S8(5, 2, 2, 7, 3)
TREFOIL_SM90_DEPTHWISE_S8(5, 2, 1, 4, 4)
