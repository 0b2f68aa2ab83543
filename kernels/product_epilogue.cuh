// What a matrix product does to a sum before it rounds it: bias, activation, scale, residual.
#pragma once

#include "common.cuh"

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
    return x * reciprocal_approximate(1.0f + exp2_approximate(x * fmaf(x * x, cubic, linear)));
  }
};

// GELU by erf: max(x, 0) - |x| q, where q is the part of a normal distribution beyond |x|: e^(-x^2 / 2) times a
// polynomial in 1 / (1 + 0.28 |x|), as Hastings has it (Approximations for Digital Computers, 1955, sheet 45), with
// coefficients for the least relative error up to |x| = 6, where the result is below what a half holds. Off by less
// than 2^-14 of itself, or 2^-28. Infinities become NaN.
struct Erf {
  __device__ __forceinline__ Erf(float, float) {}
  __device__ __forceinline__ float operator()(float x) const {
    constexpr float kRootHalfLog2E = 0.84932180f;
    const float t = reciprocal_approximate(fmaf(0.28f, fabsf(x), 1.0f));
    const float z = x * kRootHalfLog2E;
    const float beyond = exp2_approximate(-z * z) * t *
        fmaf(t, fmaf(t, fmaf(t, 0.32648049f, -0.13003346f), 0.20578901f), 0.09774757f);
    return fmaf(-fabsf(x), beyond, max_or_nan(x, 0.0f));
  }
};
