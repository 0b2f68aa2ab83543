// A convolution of images of few channels, as networks begin with, on Hopper: floats to activations in one pass.
//
// A block has a tile of output pixels. It copies what their windows see to shared memory, four elements a pixel, and
// multiplies from there. The order of a sum's terms is free: a thread's four terms of a product are the four elements
// of one tap, so that one access reads them, and no matrix of windows is made. The order of a product's columns is
// free too: a thread's sums are of neighbouring output channels, which it stores together.
#include "element.cuh"
#include "product_epilogue.cuh"
#include "sm90_ptx.cuh"

struct FewArgs {
  const float *x;        // the first image's first pixel; the strides that follow count floats
  const uint2 *filter;   // [k][taps] groups of 4 elements: the channels, then zeros
  const float *bias;     // [k]; null: zeros
  uint16_t *y;           // [images][out_height][out_width][k] elements
  int64_t image_stride;
  int32_t row_stride;
  int32_t column_stride;
  int32_t channel_stride;
  int32_t channels;
  int32_t height;
  int32_t width;
  int32_t out_height;
  int32_t out_width;
  int32_t k;
  int32_t taps;
  int32_t stride_h;
  int32_t stride_w;
  int32_t dilation_h;
  int32_t dilation_w;
  int32_t pad_top;
  int32_t pad_left;
  int32_t patch_rows;     // that a block's windows see
  int32_t patch_columns;
  int32_t patch_pitch;    // bytes of shared memory from one row to the next
  int32_t column_tiles;   // blocks side by side
  int32_t row_tiles;      // blocks of different rows, of an image
  int32_t activation;     // one of kClamped to kErf
  float activation_a;
  float activation_b;
  float factor;           // of what is read
  FastDivide by_patch_columns;
  FastDivide by_column_tiles;
  FastDivide by_row_tiles;
  FastDivide by_taps_wide;  // taps along a window's rows
  int32_t taps_wide;
};
static_assert(sizeof(FewArgs) == 176, "mirrored in sm90_conv2d_few.rs");
static_assert(offsetof(FewArgs, row_stride) == 40 && offsetof(FewArgs, by_patch_columns) == 140,
              "mirrored in sm90_conv2d_few.rs");

// Kinds of activations, as sm90_conv2d_few.rs numbers them.
enum : int32_t { kClamped = 0, kSigmoid = 1, kRamp = 2, kErf = 3 };

constexpr int kFewThreads = 128;
constexpr int kWarpRows = 2;                               // of output pixels
constexpr int kTileRows = kFewThreads / 32 * kWarpRows;
constexpr int kTileColumns = 32;
constexpr int kPixelBytes = 8;                             // of four elements
constexpr int kStepTaps = 4;                               // of a product
constexpr int kAhead = 3;                                  // pixels that a thread loads at a time

// Everything that follows from the output channels, in groups of 8, and from the products of a sum, where that is
// known; else kSteps is 0.
template <int kGroups_, int kSteps_> struct Few {
  static constexpr int kGroups = kGroups_, kSteps = kSteps_;
  static constexpr int kTogether = kGroups < 4 ? kGroups : 4;  // groups that a thread's neighbouring channels come from
  static constexpr int kParts = kGroups / kTogether;
  static constexpr int kPartChannels = 8 * kTogether;
  static constexpr int kThreadChannels = 2 * kTogether;        // of a part
};

// Four times two elements of a step: a group of channels and a tap of the filter.
template <class S> struct FilterStep {
  uint2 v[S::kGroups];
};

// Where a block works.
struct FewPlace {
  int32_t image, p, q;  // its first output pixel
};

TREFOIL_DEVICE FewPlace place_of(const FewArgs &args) {
  const int32_t row = divide(blockIdx.x, args.by_column_tiles);
  const int32_t image = divide(row, args.by_row_tiles);
  const int32_t column = blockIdx.x - row * args.column_tiles;
  return FewPlace{image, (row - image * args.row_tiles) * kTileRows, column * kTileColumns};
}

// ---- pixels --------------------------------------------------------------------------------------------------------

// Copies what the block's windows see. Pixels outside of the image are zeros.
TREFOIL_DEVICE void load_patch(const FewArgs &args, const FewPlace &place, uint32_t smem_patch) {
  const float *planes[4];  // of the channels
#pragma unroll
  for (int c = 0; c < 4; ++c) planes[c] = args.x + place.image * args.image_stride + c * args.channel_stride;
  const int32_t h_first = place.p * args.stride_h - args.pad_top, w_first = place.q * args.stride_w - args.pad_left;
  const int32_t pixels = args.patch_rows * args.patch_columns;
  for (int32_t first = threadIdx.x; first < pixels; first += kAhead * kFewThreads) {
    // Nothing is done with what is read before all reads of the round are under way.
    uint32_t v[kAhead][4];
    uint32_t to[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t pixel = first + i * kFewThreads;
      const int32_t row = divide(pixel, args.by_patch_columns), column = pixel - row * args.patch_columns;
      const int32_t h = h_first + row, w = w_first + column;
      const bool inside = pixel < pixels && static_cast<uint32_t>(h) < static_cast<uint32_t>(args.height) &&
                          static_cast<uint32_t>(w) < static_cast<uint32_t>(args.width);
      const int32_t at = h * args.row_stride + w * args.column_stride;
      to[i] = smem_patch + row * args.patch_pitch + column * kPixelBytes;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        v[i][c] = 0;
        load_word_if(inside && c < args.channels, v[i][c], reinterpret_cast<const uint8_t *>(planes[c] + at));
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      float x[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] = __uint_as_float(v[i][c]) * args.factor;
      if (first + i * kFewThreads < pixels)
        store_shared_u32x2(to[i], make_uint2(pack_elements(x[0], x[1]), pack_elements(x[2], x[3])));
    }
  }
}

// ---- products ------------------------------------------------------------------------------------------------------

// The output channel of a column of a product, of so many groups before it.
template <class S> TREFOIL_DEVICE int32_t channel_of(int group, int32_t column) {
  const int part = group / S::kTogether, in_part = group % S::kTogether;
  return part * S::kPartChannels + column / 2 * S::kThreadChannels + in_part * 2 + column % 2;
}

// The filter of a step, for the columns and the tap that a thread has.
template <class S> TREFOIL_DEVICE FilterStep<S> load_filter(const FewArgs &args, int step) {
  const int32_t lane = threadIdx.x % 32, tap = step * kStepTaps + lane % 4;
  FilterStep<S> filter;
#pragma unroll
  for (int group = 0; group < S::kGroups; ++group) {
    const int32_t channel = channel_of<S>(group, lane / 4);
    const bool there = tap < args.taps && channel < args.k;
    filter.v[group] = there ? __ldg(args.filter + channel * args.taps + tap) : make_uint2(0, 0);
  }
  return filter;
}

// Sums of a row of 32 output pixels: of two products' pixels, and of each group of channels.
template <class S> struct FewSums {
  float v[2][S::kGroups][4];
};

// Adds a step's products. `src` is the tap of the thread's first pixel; a tap that is none adds nothing.
template <class S>
TREFOIL_DEVICE void multiply_step(const FewArgs &args, const FilterStep<S> &filter, uint32_t src, bool there,
                                  FewSums<S> &sums) {
  const uint32_t next = 8 * args.stride_w * kPixelBytes;  // a product has rows 8 pixels apart
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint2 low = load_shared_u32x2(src + 2 * half * next), high = load_shared_u32x2(src + (2 * half + 1) * next);
    if (!there) low = high = make_uint2(0, 0);
    const uint32_t pixels[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
    for (int group = 0; group < S::kGroups; ++group)
      Element::multiply(sums.v[half][group], pixels, filter.v[group].x, filter.v[group].y);
  }
}

// Where a thread's tap of a step is, from a window's first pixel on.
TREFOIL_DEVICE uint32_t tap_offset(const FewArgs &args, int step) {
  const int32_t tap = step * kStepTaps + threadIdx.x % 4;
  const int32_t row = divide(tap, args.by_taps_wide), column = tap - row * args.taps_wide;
  const uint32_t offset = row * args.dilation_h * args.patch_pitch + column * args.dilation_w * kPixelBytes;
  return tap < args.taps ? offset : 0;
}

// ---- output --------------------------------------------------------------------------------------------------------

// Sums begin with the biases.
template <class S> TREFOIL_DEVICE void begin_sums(const FewArgs &args, FewSums<S> &sums) {
#pragma unroll
  for (int group = 0; group < S::kGroups; ++group) {
    const int32_t channel = channel_of<S>(group, threadIdx.x % 4 * 2);
    const bool there = args.bias != nullptr && channel < args.k;
    const float2 bias =
        there ? __ldg(reinterpret_cast<const float2 *>(args.bias + channel)) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums.v[half][group][0] = sums.v[half][group][2] = bias.x;
      sums.v[half][group][1] = sums.v[half][group][3] = bias.y;
    }
  }
}

// Stores 32 output pixels of a row, as far as there are so many.
template <class S, class Activation>
TREFOIL_DEVICE void store_row(const FewArgs &args, const FewPlace &place, int32_t p, const FewSums<S> &sums,
                              const Activation &activation) {
  const int64_t row = static_cast<int64_t>(place.image) * args.out_height + p;
  uint16_t *to = args.y + row * args.out_width * args.k;
#pragma unroll
  for (int eight = 0; eight < 4; ++eight) {
    const int32_t q = place.q + eight * 8 + threadIdx.x % 32 / 4;
    if (q >= args.out_width) continue;
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      const int32_t channel = channel_of<S>(part * S::kTogether, threadIdx.x % 4 * 2);
      if (channel >= args.k) continue;
      uint32_t words[S::kTogether];
#pragma unroll
      for (int i = 0; i < S::kTogether; ++i) {
        const float(&of)[4] = sums.v[eight / 2][part * S::kTogether + i];
        words[i] = pack_elements(activation(of[eight % 2 * 2]), activation(of[eight % 2 * 2 + 1]));
      }
      uint16_t *at = to + (q * args.k + channel);
      if constexpr (S::kTogether == 2) {
        *reinterpret_cast<uint2 *>(at) = make_uint2(words[0], words[1]);
      } else {
        *reinterpret_cast<uint4 *>(at) = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

template <class S>
TREFOIL_DEVICE void store_row(const FewArgs &args, const FewPlace &place, int32_t p, const FewSums<S> &sums) {
  const float a = args.activation_a, b = args.activation_b;
  switch (args.activation) {
    case kClamped: return store_row(args, place, p, sums, Clamped(a, b));
    case kSigmoid: return store_row(args, place, p, sums, Sigmoid(a, b));
    case kRamp: return store_row(args, place, p, sums, Ramp(a, b));
    default: return store_row(args, place, p, sums, Erf(a, b));
  }
}

// ---- the kernel ----------------------------------------------------------------------------------------------------

template <class S> TREFOIL_DEVICE void conv2d_few(const FewArgs &args) {
  extern __shared__ __align__(16) uint8_t patch[];
  const FewPlace place = place_of(args);
  const uint32_t smem_patch = shared_address(patch);
  allow_next_launch();
  FilterStep<S> filter[S::kSteps > 0 ? S::kSteps : 1];
  uint32_t offsets[S::kSteps > 0 ? S::kSteps : 1];
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    filter[step] = load_filter<S>(args, step);
    offsets[step] = tap_offset(args, step);
  }
  load_patch(args, place, smem_patch);
  __syncthreads();
  const int32_t tap = threadIdx.x % 4, column = threadIdx.x % 32 / 4;
#pragma unroll 1
  for (int row = 0; row < kWarpRows; ++row) {
    const int32_t in_tile = threadIdx.x / 32 * kWarpRows + row, p = place.p + in_tile;
    if (p >= args.out_height) return;
    const uint32_t src =
        smem_patch + in_tile * args.stride_h * args.patch_pitch + column * args.stride_w * kPixelBytes;
    FewSums<S> sums;
    begin_sums(args, sums);
    if constexpr (S::kSteps > 0) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step)
        multiply_step(args, filter[step], src + offsets[step], step * kStepTaps + tap < args.taps, sums);
    } else {
      for (int step = 0; step * kStepTaps < args.taps; ++step)
        multiply_step(args, load_filter<S>(args, step), src + tap_offset(args, step),
                      step * kStepTaps + tap < args.taps, sums);
    }
    store_row(args, place, p, sums);
  }
}

// Purpose    y[i][p][q][k] = act(sum over r, s, c of e(x)[i][p stride_h - pad_top + r dilation_h]
//            [q stride_w - pad_left + s dilation_w][c] * filter[k][r][s][c] + bias[k]), where e(x) is x * factor,
//            rounded to an element, and 0 outside the image
// Operands   x       read   floats; pixel [h][w], channel c of image i at i image_stride + h row_stride + w column_stride
//                           + c channel_stride
//            filter  read   elements [k][taps][4], 8-byte aligned; those beyond the channels are zeros
//            bias    read   floats [k], 8-byte aligned; null: zeros
//            y       write  elements [images][out_height][out_width][k], 16-byte aligned, disjoint from the others
//            Elements are f16, or bf16 by entries *_bf16.
// Arithmetic products of elements, float sums in a fixed order that begin with the bias, activation in float
//            (product_epilogue.cuh), one rounding to an element at the end, to nearest even; overflow becomes infinity.
//            No term but a window's is multiplied, so infinity and NaN stay where they belong.
// Launch     grid images * row_tiles * column_tiles, row_tiles = ceil(out_height / kTileRows), column_tiles =
//            ceil(out_width / kTileColumns); block kFewThreads; dynamic shared memory patch_rows * patch_pitch. patch_rows
//            = (kTileRows - 1) stride_h + (taps / taps_wide - 1) dilation_h + 1, patch_columns likewise; patch_pitch a
//            multiple of 8 and at least 8 patch_columns. The entry's first number is k, rounded up to 16, 32 or 64; the
//            second one is 12 for up to 12 taps, else 64. compute capability 9.0 exactly.
// Limits     channels 1 to 4; k a multiple of 8, up to 64; taps up to 64. Of an image of x and of y, offsets stay below
//            2^31; so do blocks. Deterministic, no atomics.
// Ordering   lets its successor be launched early; is not launched early itself.
// Source     implicit GEMM, the operands' fragments as in PTX ISA 9.0 for mma.m16n8k16.
#define TREFOIL_SM90_CONV2D_FEW(channels, taps, steps, resident)                                        \
  extern "C" __global__ void __launch_bounds__(kFewThreads, resident)                                   \
      TREFOIL_ENTRY(sm90_conv2d_few_##channels##x##taps)(const __grid_constant__ FewArgs args) {        \
    conv2d_few<Few<channels / 8, steps>>(args);                                                         \
  }

TREFOIL_SM90_CONV2D_FEW(16, 12, 3, 8)
TREFOIL_SM90_CONV2D_FEW(32, 12, 3, 5)
TREFOIL_SM90_CONV2D_FEW(64, 12, 3, 3)
TREFOIL_SM90_CONV2D_FEW(16, 64, 0, 8)
TREFOIL_SM90_CONV2D_FEW(32, 64, 0, 6)
TREFOIL_SM90_CONV2D_FEW(64, 64, 0, 4)
