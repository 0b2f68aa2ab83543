// What makes exact sums bytes: the end of the convolutions of bytes on Hopper.
#pragma once

#include "common.cuh"
#include "sm90_ptx_s8.cuh"

// How a launch's results are made of its sums. Mirrored in sm90_requantise.rs.
struct S8Output {
  float residual_scale;    // times 2^24
  uint32_t residual_flip;  // what makes its bytes unsigned: 0x80808080 if they are signed, else 0
  uint32_t residual_base;  // what was added for that, twice as halves: 128 * 2^-24 or 0
  uint32_t result_offset;  // what makes a result unsigned: 128 if it may be negative, else 0
  uint32_t result_flip;    // what makes four of them signed again: 0x80808080 or 0
  int32_t result_is_low;   // whether a result is 127 at most though none is negative
};
static_assert(sizeof(S8Output) == 24, "mirrored in sm90_requantise.rs");

// What makes sums of a thread's two neighbouring channels bytes.
struct Requantiser {
  int2 bias;
  float2 scale;

  // Those of channels `k` and k + 1, if there are.
  template <class Args> __device__ __forceinline__ void load(const Args &args, int32_t k) {
    if (k >= args.k_stored) return;
    bias = __ldg(reinterpret_cast<const int2 *>(args.bias + k));
    scale = __ldg(reinterpret_cast<const float2 *>(args.scale + k));
  }

  // The integer that is nearest to the scaled sum, the even one of two, and result_offset. A product with 2^-149 is a
  // multiple of it, and the bits of that are the integer; of a negative one they are one far below zero.
  template <bool kAdds>
  static __device__ __forceinline__ int32_t integer_of(const S8Output &output, int32_t sum, float scale, float add) {
    float value = __fmul_rn(__int2float_rn(sum), scale);
    if (kAdds) value = __fmaf_rn(add, output.residual_scale, value);
    return __float_as_int(__fmaf_rn(value, __uint_as_float(1), __uint_as_float(output.result_offset)));
  }

  // Two bytes of a residual from bit `16 * pixel` on, in units of 2^-24: the bits of halves that are as small.
  static __device__ __forceinline__ float2 residual_of(const S8Output &output, uint32_t bytes, uint32_t pixel) {
    const uint32_t halves = __byte_perm(bytes ^ output.residual_flip, 0, pixel == 0 ? 0x4140 : 0x4342);
    return unpack_half2(sub_half2(halves, output.residual_base));
  }

  // Two pixels of both channels: sums of the first channel, then those of the second.
  template <bool kAdds>
  __device__ __forceinline__ uint32_t operator()(const S8Output &output, const int32_t *sums, uint32_t residual) const {
    float2 add[2] = {};
#pragma unroll
    for (int pixel = 0; pixel < 2; ++pixel)
      if (kAdds) add[pixel] = residual_of(output, residual, pixel);
    return pack_bytes(integer_of<kAdds>(output, sums[0] + bias.x, scale.x, add[0].x),
                      integer_of<kAdds>(output, sums[2] + bias.y, scale.y, add[0].y),
                      integer_of<kAdds>(output, sums[1] + bias.x, scale.x, add[1].x),
                      integer_of<kAdds>(output, sums[3] + bias.y, scale.y, add[1].y)) ^
           output.result_flip;
  }
};

// Four bytes, 127 at most.
TREFOIL_DEVICE uint32_t low_bytes(uint32_t bytes) {
  const uint32_t too_high = bytes & 0x80808080u;
  return (bytes | (too_high - (too_high >> 7))) & 0x7f7f7f7fu;
}

// A warp's channels of eight pixels, kWords times: requantised to shared memory, where the residual is until then. `smem`
// is this lane's pixel of 32; of 16 pixels the other lanes' residuals are read too.
template <bool kAdds, int kWords = 4>
TREFOIL_DEVICE void requantise(const S8Output &output, const Requantiser &requantiser, const int32_t *sums,
                               uint32_t smem) {
  static_assert(kWords == 4 || kWords == 2, "what stmatrix stores");
  uint32_t add[4] = {}, out[kWords];
  if (kAdds) ldmatrix_x4_trans(add, smem);
#pragma unroll
  for (int i = 0; i < kWords; ++i) out[i] = requantiser.template operator()<kAdds>(output, sums + 4 * i, add[i]);
  if (output.result_is_low) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) out[i] = low_bytes(out[i]);
  }
  if constexpr (kWords == 4) stmatrix_x4_trans(smem, out);
  else stmatrix_x2_trans(smem, out);
}
