// Inline PTX in tiny named wrappers: numbers of e4m3, four bits of exponent and three of mantissa.
#pragma once

#include "sm90_ptx.cuh"

// The type, as a class.
struct E4m3;

// d[64][kN] += a[64][32] * b[kN][32] of e4m3; the sums keep about 14 bits while the tensor core adds to them. Otherwise as
// Wgmma of elements.
#define TREFOIL_WGMMA_E4M3(n, last, a_operand, b_operand, add_operand)                                          \
  template <> struct Wgmma<n, E4m3> {                                                                           \
    static __device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t a, uint64_t b, bool add) {      \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_operand ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" TREFOIL_SUMS_##last             \
                   "}, " a_operand ", " b_operand ", add, 1, 1;\n}"                                             \
                   : TREFOIL_REFS_##last : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));                     \
    }                                                                                                           \
  };

TREFOIL_WGMMA_E4M3(64, 3, "%32", "%33", "%34")
TREFOIL_WGMMA_E4M3(192, 11, "%96", "%97", "%98")

// Two numbers as codes of e4m3, `low` in the lower byte, rounded to nearest even. What is beyond 448 becomes 448 with its
// sign, and NaN the code 0x7f.
TREFOIL_DEVICE uint32_t pack_e4m3(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
