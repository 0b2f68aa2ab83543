// GELU by erf, for products and convolutions: of floats, and of halves.
#pragma once

#include "common.cuh"

// GELU by erf: max(x, 0) - |x| q, where q is the part of a normal distribution beyond |x|. Its logarithm is nearly a
// parabola: a polynomial for which the result is off by less than 2^-13 of itself (a quarter of f16's last place at most)
// and 2^-19. From 8 on q is 0, of which the polynomial makes less than 2^-40.
struct Erf {
  static constexpr bool kInHalves = false;

  __device__ __forceinline__ Erf(float, float) {}
  __device__ __forceinline__ float operator()(float x) const {
    const float a = fminf(fabsf(x), 8.0f);
    const float log2_beyond = fmaf(a, fmaf(a, fmaf(a, fmaf(a, 3.4205089e-3f, -4.1896913e-2f), -0.4711597f), -1.1460904f),
                                   -1.000496f);
    return fmaf(-a, exp2_approximate(log2_beyond), max_or_nan(x, 0.0f));
  }
};

// GELU by erf of two sums in halves, with fewer instructions for each. The sums are rounded first, as a layer of halves
// leaves them. Beside that, and before the result is rounded, GELU is off by less than 2^-8 of itself and 2^-14, to either
// side. Of normally distributed sums the root mean square of all errors is that of GELU in float of rounded sums. From 6 on
// q is 0.
struct ErfOfHalves {
  static constexpr bool kInHalves = true;

  __device__ __forceinline__ ErfOfHalves(float, float) {}
  __device__ __forceinline__ uint32_t operator()(float low, float high) const {
    const __half2 x = __floats2half2_rn(low, high), a = __hmin2(__habs2(x), __float2half2_rn(6.0f));
    __half2 log2_beyond = __hfma2(a, __float2half2_rn(4.2190552e-3f), __float2half2_rn(-4.6020508e-2f));
    log2_beyond = __hfma2(a, log2_beyond, __float2half2_rn(-0.46484375f));
    log2_beyond = __hfma2(a, log2_beyond, __float2half2_rn(-1.1494141f));
    log2_beyond = __hfma2(a, log2_beyond, __float2half2_rn(-1.0f));
    return half2_bits(__hfma2(__hneg2(a), exp2_approximate(log2_beyond), __hmax2_nan(x, __float2half2_rn(0.0f))));
  }
};
