// GELU by erf, for products and convolutions.
#pragma once

#include "common.cuh"

// GELU by erf: max(x, 0) - |x| q, where q is the part of a normal distribution beyond |x|. Its logarithm is nearly a
// parabola: a polynomial with the least relative error of q up to 6.25, beyond which the result is less than 2^-29.
// Off by less than 2^-17 of itself, or 2^-29.
struct Erf {
  __device__ __forceinline__ Erf(float, float) {}
  __device__ __forceinline__ float operator()(float x) const {
    const float a = fminf(fabsf(x), 6.25f);
    const float log2_beyond = fmaf(a, fmaf(a, fmaf(a, fmaf(a, fmaf(a, fmaf(a, 3.2444947e-5f, -7.484227e-4f),
        7.942273e-3f), -5.3051803e-2f), -0.4591705f), -1.1510366f), -1.0000076f);
    return fmaf(-a, exp2_approximate(log2_beyond), max_or_nan(x, 0.0f));
  }
};
