// Depthwise convolution of bytes, forward.
#include "conv2d_depthwise.cuh"
#include "requantise.cuh"

struct DepthwiseS8Args {
  const uint2 *x;       // [images][height][width][c_chunks] chunks of bytes
  const uint2 *filter;  // [filter_h][filter_w][c_chunks]
  const int4 *bias;     // [2 * c_chunks]
  const float4 *scale;  // [2 * c_chunks]
  uint2 *y;             // [images][out_height][out_width][c_chunks]
  DepthwiseGeometry sizes;
  int32_t x_signed;
  ByteResult bytes;     // without a residual
};
static_assert(sizeof(DepthwiseS8Args) == 144, "mirrored in conv2d_depthwise_s8.rs");
static_assert(offsetof(DepthwiseS8Args, sizes) == 40, "mirrored in conv2d_depthwise_s8.rs");

// Eight channels of bytes, summed in 32 bits.
struct ByteChannels {
  struct Chunk {
    int32_t v[kChunkElems];
  };

  static __device__ __forceinline__ int32_t multiply_add(int32_t x, int32_t f, int32_t sum) { return sum + x * f; }

  // Byte i of a word, with the bits that the sign of another byte fills, or zeros: see prmt.
  static __device__ __forceinline__ Chunk unpack(uint2 words, bool is_signed) {
    Chunk chunk;
    const uint32_t first = is_signed ? 0x8880 : 0x4440, step = is_signed ? 0x1111 : 1;
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i)
      chunk.v[i] = static_cast<int32_t>(permute_bytes(i < 4 ? words.x : words.y, 0, first + i % 4 * step));
    return chunk;
  }

  static __device__ __forceinline__ Chunk pixel(const DepthwiseS8Args &args, int64_t index, bool inside) {
    return unpack(inside ? __ldg(args.x + index) : make_uint2(0, 0), args.x_signed != 0);
  }
  static __device__ __forceinline__ Chunk filter(const DepthwiseS8Args &args, int64_t index) {
    return unpack(__ldg(args.filter + index), true);
  }
  static __device__ __forceinline__ Chunk bias(const DepthwiseS8Args &args, uint32_t chunk) {
    const int4 low = __ldg(args.bias + 2 * chunk), high = __ldg(args.bias + 2 * chunk + 1);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  static __device__ __forceinline__ void store(const DepthwiseS8Args &args, int64_t index, uint32_t chunk, Chunk &sums) {
    const auto word = [&](int at) {
      const int4 four = make_int4(sums.v[4 * at], sums.v[4 * at + 1], sums.v[4 * at + 2], sums.v[4 * at + 3]);
      return bytes_of<false>(args.bytes, four, __ldg(args.scale + 2 * chunk + at), 0);
    };
    args.y[index] = make_uint2(word(0), word(1));
  }
};

// Purpose    sum = bias[c] + sum over r, s of x[i][p*stride_h - pad_top + r*dilation_h]
//                                              [q*stride_w - pad_left + s*dilation_w][c] * filter[r][s][c]
//            f = float(sum) * scale[c]
//            y[i][p][q][c] = the integer nearest to f, the even one of two, but not below lowest or above highest. x is
//            zero outside the image.
// Operands   x       read   bytes [images][height][width][8 * c_chunks], signed if x_signed
//            filter  read   signed bytes [filter_h][filter_w][8 * c_chunks], zeros in padded channels
//            bias    read   int32 [8 * c_chunks], zeros in padded channels
//            scale   read   floats [8 * c_chunks], finite
//            y       write  bytes [images][out_height][out_width][8 * c_chunks], disjoint from the rest
//            All at multiples of 16 bytes, without gaps.
// Arithmetic exact products and sums in 32 bits, which wrap; then floats, each operation rounded to nearest: the sum to a
//            float, and its product with the scale. Padded channels of y come out zero.
// Launch     grid ceil(threads / 128), block 128, no dynamic shared memory. compute capability 8.0 and up.
// Limits     as conv2d_depthwise.cu. Deterministic.
// Source     quantisation with scales of each channel as in Jacob et al., 2018.
#define TREFOIL_DEPTHWISE_S8(name, body)                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads, 4)                                                     \
      sm80_conv2d_depthwise_s8_##name(const __grid_constant__ DepthwiseS8Args args) {                           \
    body(args);                                                                                                 \
  }

TREFOIL_DEPTHWISE_S8(3x3_stride1, (depthwise_square<ByteChannels, 3, 1>))
TREFOIL_DEPTHWISE_S8(3x3_stride2, (depthwise_square<ByteChannels, 3, 2>))
TREFOIL_DEPTHWISE_S8(5x5_stride1, (depthwise_square<ByteChannels, 5, 1>))
TREFOIL_DEPTHWISE_S8(5x5_stride2, (depthwise_square<ByteChannels, 5, 2>))
TREFOIL_DEPTHWISE_S8(any, (depthwise_any<ByteChannels>))
