// Depthwise convolution, forward.
#include "common.cuh"

struct DepthwiseArgs {
  const uint4 *x;       // [images][height][width][c_chunks] chunks of halves
  const uint4 *filter;  // [filter_h][filter_w][c_chunks]
  const float *bias;    // [8 * c_chunks]
  uint4 *y;             // [images][out_height][out_width][c_chunks]
  uint32_t threads;     // images * out_height * q_groups * c_chunks
  int32_t height;
  int32_t width;
  int32_t c_chunks;
  int32_t filter_h;
  int32_t filter_w;
  int32_t stride_h;
  int32_t stride_w;
  int32_t pad_top;
  int32_t pad_left;
  int32_t dilation_h;
  int32_t dilation_w;
  int32_t out_height;
  int32_t out_width;
  int32_t q_groups;     // ceil(out_width / kGroup)
  int32_t activation;
  FastDivide by_c_chunks;
  FastDivide by_q_groups;
  FastDivide by_out_height;
};
static_assert(sizeof(DepthwiseArgs) == 120, "mirrored in conv2d_depthwise.rs");
static_assert(offsetof(DepthwiseArgs, threads) == 32 && offsetof(DepthwiseArgs, by_c_chunks) == 96,
              "mirrored in conv2d_depthwise.rs");

constexpr int kGroup = 4;       // output pixels of a thread, neighbours in a row
constexpr int kThreads = 128;

// A thread's work: a chunk of channels of kGroup pixels.
struct Work {
  uint32_t chunk, image, p, q;

  static __device__ __forceinline__ Work of(const DepthwiseArgs &args, uint32_t index) {
    const uint32_t group = divide(index, args.by_c_chunks);
    const uint32_t row = divide(group, args.by_q_groups);
    const uint32_t image = divide(row, args.by_out_height);
    return {index - group * args.c_chunks, image, row - image * args.out_height, (group - row * args.q_groups) * kGroup};
  }
};

// Chunk index of line `h` of the work's image.
TREFOIL_DEVICE int64_t line_chunk(const DepthwiseArgs &args, const Work &work, int32_t h) {
  return (static_cast<int64_t>(work.image) * args.height + h) * args.width * args.c_chunks + work.chunk;
}

TREFOIL_DEVICE Chunk load_or_zero(const DepthwiseArgs &args, int64_t line, int32_t w) {
  const bool inside = static_cast<uint32_t>(w) < static_cast<uint32_t>(args.width);
  return unpack_chunk(inside ? load_chunk(args.x, line + static_cast<int64_t>(w) * args.c_chunks)
                             : make_uint4(0, 0, 0, 0));
}

TREFOIL_DEVICE void multiply_add(Chunk &sum, const Chunk &x, const Chunk &f) {
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i) sum.v[i] = fmaf(x.v[i], f.v[i], sum.v[i]);
}

TREFOIL_DEVICE void store_group(const DepthwiseArgs &args, const Work &work, Chunk (&sums)[kGroup]) {
  const int64_t row = (static_cast<int64_t>(work.image) * args.out_height + work.p) * args.out_width;
#pragma unroll
  for (int t = 0; t < kGroup; ++t) {
    if (static_cast<int32_t>(work.q) + t >= args.out_width) continue;
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i) sums[t].v[i] = activate(sums[t].v[i], args.activation);
    args.y[(row + work.q + t) * args.c_chunks + work.chunk] = pack_chunk(sums[t]);
  }
}

// A square window of kSize with kStride along the row and no dilation: each column is read once for all the pixels
// that it serves.
template <int kSize, int kStride> TREFOIL_DEVICE void depthwise_square(const DepthwiseArgs &args) {
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(kThreads) + threadIdx.x;
  if (index >= args.threads) return;
  const Work work = Work::of(args, index);
  const int32_t h_first = static_cast<int32_t>(work.p) * args.stride_h - args.pad_top;
  const int32_t w_first = static_cast<int32_t>(work.q) * kStride - args.pad_left;
  Chunk sums[kGroup];
#pragma unroll
  for (int t = 0; t < kGroup; ++t) sums[t] = load_chunk_f32(args.bias + work.chunk * kChunkElems);

#pragma unroll
  for (int r = 0; r < kSize; ++r) {
    const int32_t h = h_first + r;
    if (static_cast<uint32_t>(h) >= static_cast<uint32_t>(args.height)) continue;
    Chunk filter[kSize];
#pragma unroll
    for (int s = 0; s < kSize; ++s)
      filter[s] = unpack_chunk(load_chunk(args.filter, (r * kSize + s) * args.c_chunks + work.chunk));
    const int64_t line = line_chunk(args, work, h);
#pragma unroll
    for (int column = 0; column < (kGroup - 1) * kStride + kSize; ++column) {
      const Chunk x = load_or_zero(args, line, w_first + column);
#pragma unroll
      for (int t = 0; t < kGroup; ++t) {
        const int s = column - t * kStride;
        if (s >= 0 && s < kSize) multiply_add(sums[t], x, filter[s]);
      }
    }
  }
  store_group(args, work, sums);
}

// Any window.
TREFOIL_DEVICE void depthwise_any(const DepthwiseArgs &args) {
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(kThreads) + threadIdx.x;
  if (index >= args.threads) return;
  const Work work = Work::of(args, index);
  const int32_t h_first = static_cast<int32_t>(work.p) * args.stride_h - args.pad_top;
  const int32_t w_first = static_cast<int32_t>(work.q) * args.stride_w - args.pad_left;
  Chunk sums[kGroup];
#pragma unroll
  for (int t = 0; t < kGroup; ++t) sums[t] = load_chunk_f32(args.bias + work.chunk * kChunkElems);

#pragma unroll 1
  for (int32_t r = 0; r < args.filter_h; ++r) {
    const int32_t h = h_first + r * args.dilation_h;
    if (static_cast<uint32_t>(h) >= static_cast<uint32_t>(args.height)) continue;
    const int64_t line = line_chunk(args, work, h);
#pragma unroll 1
    for (int32_t s = 0; s < args.filter_w; ++s) {
      const int64_t tap = static_cast<int64_t>(r) * args.filter_w + s;
      const Chunk filter = unpack_chunk(load_chunk(args.filter, tap * args.c_chunks + work.chunk));
#pragma unroll
      for (int t = 0; t < kGroup; ++t)
        multiply_add(sums[t], load_or_zero(args, line, w_first + t * args.stride_w + s * args.dilation_w), filter);
    }
  }
  store_group(args, work, sums);
}

// Purpose    y[i][p][q][c] = act(sum over r, s of x[i][p*stride_h - pad_top + r*dilation_h]
//                                                  [q*stride_w - pad_left + s*dilation_w][c] * filter[r][s][c]
//            + bias[c]); x is zero outside the image.
// Operands   x       read   halves [images][height][width][8 * c_chunks]
//            filter  read   halves [filter_h][filter_w][8 * c_chunks], zeros in padded channels
//            bias    read   floats [8 * c_chunks], zeros in padded channels
//            y       write  halves [images][out_height][out_width][8 * c_chunks], disjoint from the rest
//            All at multiples of 16 bytes, without gaps.
// Arithmetic float sums, bias first, then row by row; one rounding to half at the end. NaN stays NaN. Padded channels
//            of y come out zero.
// Launch     grid ceil(threads / 128), block 128, no dynamic shared memory. compute capability 8.0 and up.
// Limits     1 <= threads < 2^31, coordinates and filter chunks below 2^30; the entries with a size in the name need
//            that window, that stride_w and dilation 1 (the launcher chooses). Deterministic.
#define TREFOIL_DEPTHWISE(name, body)                                                                           \
  extern "C" __global__ void __launch_bounds__(kThreads, 4)                                                     \
      sm80_conv2d_depthwise_##name(const __grid_constant__ DepthwiseArgs args) {                                \
    body(args);                                                                                                 \
  }

TREFOIL_DEPTHWISE(3x3_stride1, (depthwise_square<3, 1>))
TREFOIL_DEPTHWISE(3x3_stride2, (depthwise_square<3, 2>))
TREFOIL_DEPTHWISE(5x5_stride1, (depthwise_square<5, 1>))
TREFOIL_DEPTHWISE(5x5_stride2, (depthwise_square<5, 2>))
TREFOIL_DEPTHWISE(any, depthwise_any)
