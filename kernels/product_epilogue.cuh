// What a matrix product does to a sum before it rounds it: bias, activation, scale, residual.
#pragma once

#include <float.h>

#include "element.cuh"
#include "gelu.cuh"

// Activations by kind; what a kind still leaves open are two numbers of the launch. NaN stays NaN. An activation takes a
// float and returns one; with kInHalves it takes two and returns them as a pair of halves.

// Nothing: low is -infinity. ReLU: low is 0.
struct Clamped {
  static constexpr bool kInHalves = false;
  float low;

  __device__ __forceinline__ Clamped(float low, float) : low(low) {}
  __device__ __forceinline__ float operator()(float x) const { return max_or_nan(x, low); }
};

// x / (1 + 2^(x * (linear + cubic * x^2))): SiLU, QuickGELU, GELU by tanh. Off by less than 2^-16 of itself, or 2^-30.
// Infinities become NaN.
struct Sigmoid {
  static constexpr bool kInHalves = false;
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
  static constexpr bool kInHalves = false;
  float slope, offset;

  __device__ __forceinline__ Ramp(float slope, float offset) : slope(slope), offset(offset) {}
  __device__ __forceinline__ float operator()(float x) const { return x * __saturatef(fmaf(x, slope, offset)); }
};
