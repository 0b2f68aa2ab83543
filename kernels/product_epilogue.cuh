// What a matrix product does to a sum before it rounds it: bias, activation, scale, residual.
#pragma once

#include <float.h>

#include "element.cuh"

// Activations by kind; what a kind still leaves open are two numbers of the launch. NaN stays NaN.

// Nothing: low is -infinity. ReLU: low is 0.
struct Clamped {
  float low;

  __device__ __forceinline__ Clamped(float low, float) : low(low) {}
  __device__ __forceinline__ float operator()(float x) const { return max_or_nan(x, low); }
};

// x / (1 + 2^(x * (linear + cubic * x^2))): SiLU, QuickGELU, GELU by tanh. Off by less than 2^-16 of itself, or 2^-30.
// Infinities become NaN.
struct Sigmoid {
  float linear, cubic;

  __device__ __forceinline__ Sigmoid(float linear, float cubic) : linear(linear), cubic(cubic) {}
  __device__ __forceinline__ float operator()(float x) const {
    // Sums of bf16 have squares that a float does not hold, and infinity times a cubic of 0 is no number.
    const float square = Element::kIsWide ? fminf(x * x, FLT_MAX) : x * x;
    return x * reciprocal_approximate(1.0f + exp2_approximate(x * fmaf(square, cubic, linear)));
  }
};

// x * min(max(slope x + offset, 0), 1): hard swish. Minus infinity becomes NaN.
struct Ramp {
  float slope, offset;

  __device__ __forceinline__ Ramp(float slope, float offset) : slope(slope), offset(offset) {}
  __device__ __forceinline__ float operator()(float x) const { return x * __saturatef(fmaf(x, slope, offset)); }
};

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
