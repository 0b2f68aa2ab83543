// Maximum and mean over windows.
#include "common.cuh"

struct Pool2dArgs {
  const uint4 *x;  // [images][height][width][c_chunks] chunks of halves
  uint4 *y;        // [images][P][Q][c_chunks], pixels y_chunks apart
  uint32_t chunks;  // of y
  int32_t height;
  int32_t width;
  int32_t filter_h;
  int32_t filter_w;
  int32_t stride_h;
  int32_t stride_w;
  int32_t pad_top;
  int32_t pad_left;
  int32_t dilation_h;
  int32_t dilation_w;
  int32_t count_pad;
  int32_t c_chunks;
  int32_t out_height;
  int32_t out_width;
  int32_t y_chunks;
  FastDivide by_c_chunks;
  FastDivide by_out_width;
  FastDivide by_out_height;
};
static_assert(sizeof(Pool2dArgs) == 104, "mirrored in pool2d.rs");
static_assert(offsetof(Pool2dArgs, chunks) == 16 && offsetof(Pool2dArgs, by_c_chunks) == 80, "mirrored in pool2d.rs");

// A thread's pixel and chunk of y.
struct Place {
  uint32_t pixel, chunk;

  __device__ __forceinline__ Place(const Pool2dArgs &args, uint32_t index)
      : pixel(divide(index, args.by_c_chunks)), chunk(index - pixel * args.c_chunks) {}

  __device__ __forceinline__ void store(const Pool2dArgs &args, uint4 value) const {
    args.y[static_cast<int64_t>(pixel) * args.y_chunks + chunk] = value;
  }
};

// Calls `visit(chunk)` for each pixel of the window that lies in the image, row by row, and returns their number.
template <class Visit> TREFOIL_DEVICE int32_t for_window(const Pool2dArgs &args, Place place, Visit visit) {
  const uint32_t pixel = place.pixel;
  const uint32_t row = divide(pixel, args.by_out_width);
  const uint32_t q = pixel - row * args.out_width;
  const uint32_t image = divide(row, args.by_out_height);
  const uint32_t p = row - image * args.out_height;
  const int32_t h_first = static_cast<int32_t>(p) * args.stride_h - args.pad_top;
  const int32_t w_first = static_cast<int32_t>(q) * args.stride_w - args.pad_left;
  int32_t inside = 0;
  for (int32_t r = 0; r < args.filter_h; ++r) {
    const int32_t h = h_first + r * args.dilation_h;
    if (static_cast<uint32_t>(h) >= static_cast<uint32_t>(args.height)) continue;
    const int64_t line = (static_cast<int64_t>(image) * args.height + h) * args.width;
    for (int32_t s = 0; s < args.filter_w; ++s) {
      const int32_t w = w_first + s * args.dilation_w;
      if (static_cast<uint32_t>(w) >= static_cast<uint32_t>(args.width)) continue;
      visit(load_chunk(args.x, (line + w) * args.c_chunks + place.chunk));
      ++inside;
    }
  }
  return inside;
}

// Purpose    y[i][p][q][c] = max over the window's pixels in the image of x[i][h][w][c]; padding never wins.
// Operands   x  read   halves [images][height][width][8 * c_chunks], 16-byte aligned
//            y  write  halves [images][P][Q][8 * c_chunks], pixels 8 * y_chunks apart, 16-byte aligned, disjoint from x
// Arithmetic exact. A NaN in the window makes the result NaN. A window without a pixel in the image gives zeros.
//            Padded channels stay zero.
// Launch     grid ceil(chunks / 256), block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     coordinates below 2^30; 1 <= chunks < 2^31. Deterministic.
extern "C" __global__ void __launch_bounds__(256) sm80_max_pool2d(const __grid_constant__ Pool2dArgs args) {
  const uint32_t index = blockIdx.x * 256u + threadIdx.x;
  if (index >= args.chunks) return;
  uint4 best = make_uint4(kLowestHalf2, kLowestHalf2, kLowestHalf2, kLowestHalf2);
  const Place place(args, index);
  const int32_t inside = for_window(args, place, [&](uint4 x) {
    best = make_uint4(max_half2_or_nan(best.x, x.x), max_half2_or_nan(best.y, x.y), max_half2_or_nan(best.z, x.z),
                      max_half2_or_nan(best.w, x.w));
  });
  place.store(args, inside > 0 ? best : make_uint4(0, 0, 0, 0));
}

// Purpose    y[i][p][q][c] = (sum over the window's pixels in the image of x[i][h][w][c]) / n, where n is the size of
//            the window if count_pad, else the number of its pixels in the image.
// Operands   as sm80_max_pool2d.
// Arithmetic float sums, row by row; one rounding to half. NaN stays NaN. A window without a pixel in the image gives
//            zeros. Padded channels stay zero.
// Launch, limits: as sm80_max_pool2d.
extern "C" __global__ void __launch_bounds__(256) sm80_avg_pool2d(const __grid_constant__ Pool2dArgs args) {
  const uint32_t index = blockIdx.x * 256u + threadIdx.x;
  if (index >= args.chunks) return;
  Chunk sum = {};
  const int32_t inside = for_window(args, Place(args, index), [&](uint4 bits) {
    const Chunk x = unpack_chunk(bits);
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i) sum.v[i] += x.v[i];
  });
  const int32_t divisor = args.count_pad ? args.filter_h * args.filter_w : max(inside, 1);
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i) sum.v[i] /= static_cast<float>(divisor);
  // Worked out again, so that it takes no registers meanwhile.
  Place(args, block_idx_x() * 256u + threadIdx.x).store(args, pack_chunk(sum));
}
