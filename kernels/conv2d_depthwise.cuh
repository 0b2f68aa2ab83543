// Depthwise convolution by passes over memory: what conv2d_depthwise.cu and conv2d_depthwise_s8.cu have in common.
#pragma once

#include "common.cuh"

// The sizes of a convolution. Mirrored in conv2d_depthwise.rs.
struct DepthwiseGeometry {
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
  FastDivide by_c_chunks;
  FastDivide by_q_groups;
  FastDivide by_out_height;
};
static_assert(sizeof(DepthwiseGeometry) == 84, "mirrored in conv2d_depthwise.rs");

constexpr int kGroup = 4;       // output pixels of a thread, neighbours in a row
constexpr int kThreads = 128;

// A thread's work: a chunk of channels, eight of them, of kGroup pixels.
struct Work {
  uint32_t chunk, image, p, q;

  static __device__ __forceinline__ Work of(const DepthwiseGeometry &sizes, uint32_t index) {
    const uint32_t group = divide(index, sizes.by_c_chunks);
    const uint32_t row = divide(group, sizes.by_q_groups);
    const uint32_t image = divide(row, sizes.by_out_height);
    return {index - group * sizes.c_chunks, image, row - image * sizes.out_height,
            (group - row * sizes.q_groups) * kGroup};
  }
};

// Chunk index of line `h` of the work's image.
TREFOIL_DEVICE int64_t line_chunk(const DepthwiseGeometry &sizes, const Work &work, int32_t h) {
  return (static_cast<int64_t>(work.image) * sizes.height + h) * sizes.width * sizes.c_chunks + work.chunk;
}

template <class Of, class Args>
TREFOIL_DEVICE typename Of::Chunk load_or_zero(const Args &args, int64_t line, int32_t w) {
  const bool inside = static_cast<uint32_t>(w) < static_cast<uint32_t>(args.sizes.width);
  return Of::pixel(args, line + static_cast<int64_t>(w) * args.sizes.c_chunks, inside);
}

template <class Of>
TREFOIL_DEVICE void multiply_add(typename Of::Chunk &sum, const typename Of::Chunk &x, const typename Of::Chunk &f) {
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i) sum.v[i] = Of::multiply_add(x.v[i], f.v[i], sum.v[i]);
}

template <class Of, class Args>
TREFOIL_DEVICE void store_group(const Args &args, const Work &work, typename Of::Chunk (&sums)[kGroup]) {
  const int64_t row = (static_cast<int64_t>(work.image) * args.sizes.out_height + work.p) * args.sizes.out_width;
#pragma unroll
  for (int t = 0; t < kGroup; ++t) {
    if (static_cast<int32_t>(work.q) + t >= args.sizes.out_width) continue;
    Of::store(args, (row + work.q + t) * args.sizes.c_chunks + work.chunk, work.chunk, sums[t]);
  }
}

// A square window of kSize with kStride along the row and no dilation: each column is read once for all the pixels
// that it serves. `Of` loads chunks and stores results.
template <class Of, int kSize, int kStride, class Args> TREFOIL_DEVICE void depthwise_square(const Args &args) {
  const DepthwiseGeometry &sizes = args.sizes;
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(kThreads) + threadIdx.x;
  if (index >= sizes.threads) return;
  const Work work = Work::of(sizes, index);
  const int32_t h_first = static_cast<int32_t>(work.p) * sizes.stride_h - sizes.pad_top;
  const int32_t w_first = static_cast<int32_t>(work.q) * kStride - sizes.pad_left;
  typename Of::Chunk sums[kGroup];
#pragma unroll
  for (int t = 0; t < kGroup; ++t) sums[t] = Of::bias(args, work.chunk);

#pragma unroll
  for (int r = 0; r < kSize; ++r) {
    const int32_t h = h_first + r;
    if (static_cast<uint32_t>(h) >= static_cast<uint32_t>(sizes.height)) continue;
    typename Of::Chunk filter[kSize];
#pragma unroll
    for (int s = 0; s < kSize; ++s) filter[s] = Of::filter(args, (r * kSize + s) * sizes.c_chunks + work.chunk);
    const int64_t line = line_chunk(sizes, work, h);
#pragma unroll
    for (int column = 0; column < (kGroup - 1) * kStride + kSize; ++column) {
      const typename Of::Chunk x = load_or_zero<Of>(args, line, w_first + column);
#pragma unroll
      for (int t = 0; t < kGroup; ++t) {
        const int s = column - t * kStride;
        if (s >= 0 && s < kSize) multiply_add<Of>(sums[t], x, filter[s]);
      }
    }
  }
  store_group<Of>(args, work, sums);
}

// Any window.
template <class Of, class Args> TREFOIL_DEVICE void depthwise_any(const Args &args) {
  const DepthwiseGeometry &sizes = args.sizes;
  const uint32_t index = blockIdx.x * static_cast<uint32_t>(kThreads) + threadIdx.x;
  if (index >= sizes.threads) return;
  const Work work = Work::of(sizes, index);
  const int32_t h_first = static_cast<int32_t>(work.p) * sizes.stride_h - sizes.pad_top;
  const int32_t w_first = static_cast<int32_t>(work.q) * sizes.stride_w - sizes.pad_left;
  typename Of::Chunk sums[kGroup];
#pragma unroll
  for (int t = 0; t < kGroup; ++t) sums[t] = Of::bias(args, work.chunk);

#pragma unroll 1
  for (int32_t r = 0; r < sizes.filter_h; ++r) {
    const int32_t h = h_first + r * sizes.dilation_h;
    if (static_cast<uint32_t>(h) >= static_cast<uint32_t>(sizes.height)) continue;
    const int64_t line = line_chunk(sizes, work, h);
#pragma unroll 1
    for (int32_t s = 0; s < sizes.filter_w; ++s) {
      const int64_t tap = static_cast<int64_t>(r) * sizes.filter_w + s;
      const typename Of::Chunk filter = Of::filter(args, tap * sizes.c_chunks + work.chunk);
#pragma unroll
      for (int t = 0; t < kGroup; ++t)
        multiply_add<Of>(sums[t], load_or_zero<Of>(args, line, w_first + t * sizes.stride_w + s * sizes.dilation_w),
                         filter);
    }
  }
  store_group<Of>(args, work, sums);
}
