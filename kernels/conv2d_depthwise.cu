// Depthwise convolution, forward.
#include "conv2d_depthwise.cuh"

struct DepthwiseArgs {
  const uint4 *x;       // [images][height][width][c_chunks] chunks of halves
  const uint4 *filter;  // [filter_h][filter_w][c_chunks]
  const float *bias;    // [8 * c_chunks]
  uint4 *y;             // [images][out_height][out_width][c_chunks]
  DepthwiseGeometry sizes;
  int32_t activation;
};
static_assert(sizeof(DepthwiseArgs) == 120, "mirrored in conv2d_depthwise.rs");
static_assert(offsetof(DepthwiseArgs, sizes) == 32, "mirrored in conv2d_depthwise.rs");

// Eight channels of halves, summed in floats.
struct HalfChannels {
  using Chunk = ::Chunk;

  static __device__ __forceinline__ float multiply_add(float x, float f, float sum) { return fmaf(x, f, sum); }
  static __device__ __forceinline__ Chunk pixel(const DepthwiseArgs &args, int64_t index, bool inside) {
    return unpack_chunk(inside ? load_chunk(args.x, index) : make_uint4(0, 0, 0, 0));
  }
  static __device__ __forceinline__ Chunk filter(const DepthwiseArgs &args, int64_t index) {
    return unpack_chunk(load_chunk(args.filter, index));
  }
  static __device__ __forceinline__ Chunk bias(const DepthwiseArgs &args, uint32_t chunk) {
    return load_chunk_f32(args.bias + chunk * kChunkElems);
  }
  static __device__ __forceinline__ void store(const DepthwiseArgs &args, int64_t index, uint32_t, Chunk &sums) {
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i) sums.v[i] = activate(sums.v[i], args.activation);
    args.y[index] = pack_chunk(sums);
  }
};

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

TREFOIL_DEPTHWISE(3x3_stride1, (depthwise_square<HalfChannels, 3, 1>))
TREFOIL_DEPTHWISE(3x3_stride2, (depthwise_square<HalfChannels, 3, 2>))
TREFOIL_DEPTHWISE(5x5_stride1, (depthwise_square<HalfChannels, 5, 1>))
TREFOIL_DEPTHWISE(5x5_stride2, (depthwise_square<HalfChannels, 5, 2>))
TREFOIL_DEPTHWISE(any, (depthwise_any<HalfChannels>))
