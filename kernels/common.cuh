// What all kernels share: eight channels at a time, activations, division by launch constants.
#pragma once

#include "ptx.cuh"

// Channels of one 16-byte access; every stored channel count is a multiple of it.
constexpr int kChunkElems = 8;

// Division of a number below 2^31 by a divisor known at launch: multiplier = ceil(2^(32 + shift) / divisor).
// A multiplier of 0 stands for the divisor 1.
struct FastDivide {
  uint32_t multiplier;
  uint32_t shift;
};
static_assert(sizeof(FastDivide) == 8, "mirrored in launch.rs");

TREFOIL_DEVICE uint32_t divide(uint32_t n, const FastDivide &by) {
  return by.multiplier == 0 ? n : __umulhi(n, by.multiplier) >> by.shift;
}

// Values of `tensor::Activation` as launch.rs numbers them.
enum : int32_t { kActivationNone = 0, kActivationRelu = 1, kActivationRelu6 = 2 };

// NaN stays NaN.
TREFOIL_DEVICE float activate(float x, int32_t activation) {
  if (activation != kActivationNone) x = max_or_nan(x, 0.0f);
  if (activation == kActivationRelu6) x = min_or_nan(x, 6.0f);
  return x;
}

TREFOIL_DEVICE uint32_t pack_half2(float low, float high) {
  return half2_bits(__floats2half2_rn(low, high));
}

TREFOIL_DEVICE float2 unpack_half2(uint32_t bits) {
  return __half22float2(half2_of(bits));
}

// The nearest half.
TREFOIL_DEVICE float round_to_half(float x) { return __half2float(__float2half_rn(x)); }

// The types of 16 bits, two neighbouring values in a word, the first in its low half: rounded from floats to nearest,
// ties to even, infinite where they overflow; as floats; and products of them as mma_m16n8k16 has them.
struct F16 {
  static constexpr bool kIsWide = false;  // whether it has the range of floats
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return pack_half2(low, high); }
  static __device__ __forceinline__ float2 unpack(uint32_t bits) { return unpack_half2(bits); }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_m16n8k16(d, a, b0, b1);
  }
};

struct Bf16 {
  static constexpr bool kIsWide = true;
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return convert_bf16x2(low, high); }
  static __device__ __forceinline__ float2 unpack(uint32_t bits) {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_m16n8k16_bf16(d, a, b0, b1);
  }
};

TREFOIL_DEVICE uint32_t sub_half2(uint32_t a, uint32_t b) {
  return half2_bits(__hsub2(half2_of(a), half2_of(b)));
}

// -infinity and infinity.
constexpr uint32_t kLowestHalf2 = 0xfc00fc00u, kHighestHalf2 = 0x7c007c00u;

TREFOIL_DEVICE uint32_t max_half2_or_nan(uint32_t a, uint32_t b) {
  return half2_bits(__hmax2_nan(half2_of(a), half2_of(b)));
}

TREFOIL_DEVICE uint32_t min_half2_or_nan(uint32_t a, uint32_t b) {
  return half2_bits(__hmin2_nan(half2_of(a), half2_of(b)));
}

// An activation of two sums, rounded: its bounds. Rounding to half first gives the same: it is monotone, and both bounds are halves.
struct Clamp {
  __half2 low, high;

  __device__ __forceinline__ explicit Clamp(int32_t activation)
      : low(__float2half2_rn(activation == kActivationNone ? -INFINITY : 0.0f)),
        high(__float2half2_rn(activation == kActivationRelu6 ? 6.0f : INFINITY)) {}

  __device__ __forceinline__ uint32_t operator()(float2 sum) const {
    return half2_bits(__hmin2_nan(__hmax2_nan(__floats2half2_rn(sum.x, sum.y), low), high));
  }
};

// Eight channels as floats.
struct Chunk {
  float v[kChunkElems];
};

template <class Of = F16> TREFOIL_DEVICE Chunk unpack_chunk(uint4 bits) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = Of::unpack(words[i]);
    chunk.v[2 * i] = pair.x;
    chunk.v[2 * i + 1] = pair.y;
  }
  return chunk;
}

template <class Of = F16> TREFOIL_DEVICE uint4 pack_chunk(const Chunk &chunk) {
  return make_uint4(Of::pack(chunk.v[0], chunk.v[1]), Of::pack(chunk.v[2], chunk.v[3]),
                    Of::pack(chunk.v[4], chunk.v[5]), Of::pack(chunk.v[6], chunk.v[7]));
}

// A chunk of a tensor that nobody writes during the launch.
TREFOIL_DEVICE uint4 load_chunk(const uint4 *chunks, int64_t index) { return __ldg(chunks + index); }

// Eight floats at a multiple of 16 bytes that nobody writes during the launch.
TREFOIL_DEVICE Chunk load_chunk_f32(const float *values) {
  const float4 low = __ldg(reinterpret_cast<const float4 *>(values));
  const float4 high = __ldg(reinterpret_cast<const float4 *>(values) + 1);
  return Chunk{{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}
