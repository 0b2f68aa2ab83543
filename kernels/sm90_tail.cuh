// Mean over the pixels of images that a cluster has to itself: its blocks share the channels, and give each other what
// they have of it. Used by the last layers of networks.
#pragma once

#include "common.cuh"
#include "sm90_ptx.cuh"

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kPixelsAhead = 8;  // of a thread's column of the mean, on their way at a time
constexpr int kMeanBytes = kThreads * kChunkElems * 4;  // partial sums of the mean

// Sums of a chunk's channels, of halves. A pixel that does not exist is zeros.
struct HalfPixels {
  using Loaded = uint4;  // a chunk
  using Two = float2;    // sums of two channels
  Chunk sum = {};

  template <class Args> __device__ __forceinline__ void add(const Args &, const uint4 &x, bool) {
    const Chunk of = unpack_chunk(x);
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i) sum.v[i] += of.v[i];
  }
  __device__ __forceinline__ uint32_t bits(int i) const { return __float_as_uint(sum.v[i]); }
  static __device__ __forceinline__ float2 two(uint32_t smem) { return load_shared_f32x2(smem); }
  template <class Args>
  static __device__ __forceinline__ uint32_t mean(const Args &, const float2 &total, float pixels) {
    return pack_half2(total.x / pixels, total.y / pixels);
  }
};

// The same of bytes, exact.
struct BytePixels {
  using Loaded = uint2;
  using Two = int2;
  int32_t sum[kChunkElems] = {};

  template <class Args> __device__ __forceinline__ void add(const Args &args, const uint2 &x, bool exists) {
    const uint32_t flip = exists ? args.flip : 0, words[2] = {x.x ^ flip, x.y ^ flip};
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i)
      sum[i] = static_cast<int32_t>(__dp4a(words[i / 4], 1u << i % 4 * 8, static_cast<uint32_t>(sum[i])));
  }
  __device__ __forceinline__ uint32_t bits(int i) const { return static_cast<uint32_t>(sum[i]); }
  static __device__ __forceinline__ int2 two(uint32_t smem) { return load_shared_s32x2(smem); }
  template <class Args>
  static __device__ __forceinline__ uint32_t mean(const Args &args, const int2 &total, float) {
    const int32_t added = args.flip != 0 ? 128 * args.pixels : 0;
    return pack_half2(__fmul_rn(__int2float_rn(total.x - added), args.scale),
                      __fmul_rn(__int2float_rn(total.y - added), args.scale));
  }
};

// The block's share of the channels of all images of the cluster, given to every block of it: they read it behind a
// barrier of the cluster. Args and Place have the fields of those names in sm90_tail.cu.
template <class Pixels, class Args, class Place> TREFOIL_DEVICE void mean(const Args &args, const Place &place) {
  using Loaded = typename Pixels::Loaded;
  const int32_t chunk_first = place.rank * args.share_chunks;
  const int32_t columns = place.images * args.share_chunks;  // an image's chunk each
  for (int32_t first = 0; first < columns; first += kThreads) {
    const int32_t here = min(columns - first, kThreads);
    const int32_t parts = kThreads / here, part = threadIdx.x / here;  // threads of a column
    const uint32_t column = first + threadIdx.x - part * here;
    const uint32_t image = divide(column, args.by_share_chunks);
    const int32_t chunk = chunk_first + column - image * args.share_chunks;
    Pixels sum;
    if (part < parts && chunk < args.c_chunks) {
      const int64_t pixels_before = static_cast<int64_t>(place.image_first + image) * args.pixels;
      const Loaded *source = reinterpret_cast<const Loaded *>(args.x) + pixels_before * args.c_chunks + chunk;
      for (int32_t pixel = part; pixel < args.pixels; pixel += parts * kPixelsAhead) {
        Loaded x[kPixelsAhead];
#pragma unroll
        for (int i = 0; i < kPixelsAhead; ++i) {
          const int32_t at = pixel + i * parts;
          x[i] = load_written_or_zero(source + static_cast<int64_t>(at) * args.c_chunks, at < args.pixels);
        }
#pragma unroll
        for (int i = 0; i < kPixelsAhead; ++i) keep_order(x[i]);
#pragma unroll
        for (int i = 0; i < kPixelsAhead; ++i)
          sum.add(args, x[i], pixel + i * parts < args.pixels);
      }
    }
    if (first > 0) __syncthreads();  // the sums before were read
    const uint32_t mine = place.smem_sums + threadIdx.x * kChunkElems * 4;
    store_shared_u32x4(mine, make_uint4(sum.bits(0), sum.bits(1), sum.bits(2), sum.bits(3)));
    store_shared_u32x4(mine + 16, make_uint4(sum.bits(4), sum.bits(5), sum.bits(6), sum.bits(7)));
    __syncthreads();

    // The parts in order, two channels a thread.
    for (int32_t item = threadIdx.x; item < here * 4; item += kThreads) {
      const uint32_t of = first + item / 4, image = divide(of, args.by_share_chunks);
      const int32_t chunk = chunk_first + of - image * args.share_chunks;
      typename Pixels::Two total = Pixels::two(place.smem_sums + item * 8);
      for (int32_t other = 1; other < parts; ++other) {
        const typename Pixels::Two more = Pixels::two(place.smem_sums + (other * here * 4 + item) * 8);
        total.x += more.x, total.y += more.y;
      }
      const float pixels = static_cast<float>(args.pixels);
      if (chunk < args.c_chunks)
        store_shared_u32(place.smem_means + (image * place.mean_pitch + chunk) * 16 + item % 4 * 4,
                         Pixels::mean(args, total, pixels));
    }
  }
  __syncthreads();

  // To the others, each beginning with another one.
  cluster_wait();
  const int32_t chunks = min(args.share_chunks, args.c_chunks - chunk_first);
  for (int32_t item = threadIdx.x; item < columns * (place.blocks - 1); item += kThreads) {
    const uint32_t turn = static_cast<uint32_t>(item) / columns, column = item - turn * columns;
    const uint32_t image = divide(column, args.by_share_chunks);
    const int32_t chunk = column - image * args.share_chunks;
    if (chunk >= chunks) continue;
    const uint32_t at = place.smem_means + (image * place.mean_pitch + chunk_first + chunk) * 16;
    store_u32x4_at(at, (place.rank + 1 + turn) % place.blocks, load_shared_u32x4(at));
  }
}
