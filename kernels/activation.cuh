// The activation of what a convolution kernel writes: none or a bound by a number of the launch, SiLU where TREFOIL_SILU
// is defined, or GELU by erf where TREFOIL_GELU is. A source that includes this file is compiled once for bounds and once
// for SiLU, with the same code but for the activation; one that includes gelu.cuh too is compiled for GELU as well.
#pragma once

#include "gelu.cuh"

// SiLU of two sums, rounded: x / (1 + 2^(-x log2 e)). Off by less than 2^-16 of itself, or 2^-30; minus infinity becomes
// NaN.
struct Silu {
  __device__ __forceinline__ explicit Silu(int32_t) {}

  __device__ __forceinline__ uint32_t operator()(float2 sum) const {
    return pack_half2(of(sum.x), of(sum.y));
  }

  static __device__ __forceinline__ float of(float x) {
    constexpr float kLog2E = 1.44269504f;
    return x * reciprocal_approximate(1.0f + exp2_approximate(x * -kLog2E));
  }
};

// GELU of two sums, rounded before and behind it.
struct Gelu {
  __device__ __forceinline__ explicit Gelu(int32_t) {}

  __device__ __forceinline__ uint32_t operator()(float2 sum) const { return ErfOfHalves(0.0f, 0.0f)(sum.x, sum.y); }
};

#if defined(TREFOIL_SILU)
using Activation = Silu;
#define TREFOIL_ENTRY(name) name##_silu
#elif defined(TREFOIL_GELU)
using Activation = Gelu;
#define TREFOIL_ENTRY(name) name##_gelu
#else
using Activation = Clamp;
#define TREFOIL_ENTRY(name) name
#endif
