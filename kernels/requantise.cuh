// What makes exact sums bytes: the end of the convolutions of bytes of any GPU.
#pragma once

#include "common.cuh"

// How a launch's results are made of its sums. Mirrored in requantise.rs.
struct ByteResult {
  int32_t lowest;           // of a result
  int32_t highest;
  float residual_scale;
  int32_t residual_signed;  // whether the bytes of the residual are
};
static_assert(sizeof(ByteResult) == 16, "mirrored in requantise.rs");

// The byte of a sum, in the low bits: the integer that is nearest to the scaled sum, the even one of two, within bounds.
// `residual` has a byte in its low bits, which is added if `kAdds`.
template <bool kAdds>
TREFOIL_DEVICE uint32_t byte_of(const ByteResult &result, int32_t sum, float scale, uint32_t residual) {
  float value = __fmul_rn(__int2float_rn(sum), scale);
  if (kAdds) {
    const int32_t added = result.residual_signed ? static_cast<int8_t>(residual) : static_cast<uint8_t>(residual);
    value = __fmaf_rn(__int2float_rn(added), result.residual_scale, value);
  }
  return static_cast<uint32_t>(max(min(__float2int_rn(value), result.highest), result.lowest)) & 0xff;
}

// Four bytes of four sums, with their scales and residuals, in the order of memory.
template <bool kAdds>
TREFOIL_DEVICE uint32_t bytes_of(const ByteResult &result, int4 sums, float4 scale, uint32_t residual) {
  const uint32_t low = byte_of<kAdds>(result, sums.x, scale.x, residual) |
                       byte_of<kAdds>(result, sums.y, scale.y, residual >> 8) << 8;
  const uint32_t high = byte_of<kAdds>(result, sums.z, scale.z, residual >> 16) |
                        byte_of<kAdds>(result, sums.w, scale.w, residual >> 24) << 8;
  return low | high << 16;
}
