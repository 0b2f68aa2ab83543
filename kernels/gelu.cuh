// GELU by erf, for products and convolutions.
#pragma once

#include "common.cuh"

// GELU by erf: max(x, 0) - |x| q, where q is the part of a normal distribution beyond |x|. Its logarithm is nearly a
// parabola: a polynomial for which the result is off by less than 2^-13 of itself (a quarter of f16's last place at most) and 2^-19.
// From 8 on q is 0, of which the polynomial makes less than 2^-40.
struct Erf {
  __device__ __forceinline__ Erf(float, float) {}
  __device__ __forceinline__ float operator()(float x) const {
    const float a = fminf(fabsf(x), 8.0f);
    const float log2_beyond = fmaf(a, fmaf(a, fmaf(a, fmaf(a, 3.4205089e-3f, -4.1896913e-2f), -0.4711597f), -1.1460904f),
                                   -1.000496f);
    return fmaf(-a, exp2_approximate(log2_beyond), max_or_nan(x, 0.0f));
  }
};
