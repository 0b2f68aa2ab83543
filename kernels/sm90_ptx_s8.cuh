// Inline PTX in tiny named wrappers: products of bytes, most of them of warpgroups.
#pragma once

#include "sm90_ptx.cuh"

// Keeps the compiler from reading the sums before the wait that precedes it.
template <int kCount> TREFOIL_DEVICE void wgmma_use(int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i]) :: "memory");
}

// d[64][kN] += a[64][32] * b[kN][32]: bytes in, a signed, b if kSigned, exact sums; `add` false: d is overwritten. The sums
// lie as those of Wgmma.
template <int kN, bool kSigned> struct WgmmaBytes;

#define TREFOIL_EIGHT_SUMS(i)                                                                                   \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]),    \
      "+r"(d[i + 7])
#define TREFOIL_32_SUMS(i)                                                                                      \
  TREFOIL_EIGHT_SUMS(i), TREFOIL_EIGHT_SUMS(i + 8), TREFOIL_EIGHT_SUMS(i + 16), TREFOIL_EIGHT_SUMS(i + 24)
#define TREFOIL_SUM_REFS_32 TREFOIL_EIGHT_SUMS(0), TREFOIL_EIGHT_SUMS(8)
#define TREFOIL_SUM_REFS_64 TREFOIL_32_SUMS(0)
#define TREFOIL_SUM_REFS_112                                                                                    \
  TREFOIL_SUM_REFS_64, TREFOIL_EIGHT_SUMS(32), TREFOIL_EIGHT_SUMS(40), TREFOIL_EIGHT_SUMS(48)
#define TREFOIL_SUM_REFS_128 TREFOIL_SUM_REFS_64, TREFOIL_32_SUMS(32)
#define TREFOIL_SUM_REFS_192 TREFOIL_SUM_REFS_128, TREFOIL_32_SUMS(64)
#define TREFOIL_SUM_REFS_208 TREFOIL_SUM_REFS_192, TREFOIL_EIGHT_SUMS(96)
#define TREFOIL_SUM_REFS_240                                                                                    \
  TREFOIL_SUM_REFS_192, TREFOIL_EIGHT_SUMS(96), TREFOIL_EIGHT_SUMS(104), TREFOIL_EIGHT_SUMS(112)
#define TREFOIL_SUM_REFS_256 TREFOIL_SUM_REFS_192, TREFOIL_32_SUMS(96)

// `sums` names them in the instruction; the operands that follow are %a, %b, %add.
#define TREFOIL_WGMMA_BYTES(n, kind, is_signed, sums, a_operand, b_operand, add_operand)                        \
  template <> struct WgmmaBytes<n, is_signed> {                                                                 \
    static __device__ __forceinline__ void multiply(int32_t (&d)[n / 2], uint64_t a, uint64_t b, bool add) {    \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_operand ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8." #kind " {" sums                         \
                   "}, " a_operand ", " b_operand ", add;\n}"                                                   \
                   : TREFOIL_SUM_REFS_##n : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));                    \
    }                                                                                                           \
  };
#define TREFOIL_WGMMA_BYTES_BOTH(n, sums, a_operand, b_operand, add_operand)                                    \
  TREFOIL_WGMMA_BYTES(n, u8, false, sums, a_operand, b_operand, add_operand)                                    \
  TREFOIL_WGMMA_BYTES(n, s8, true, sums, a_operand, b_operand, add_operand)

TREFOIL_WGMMA_BYTES_BOTH(32, TREFOIL_SUMS_1, "%16", "%17", "%18")
TREFOIL_WGMMA_BYTES_BOTH(64, TREFOIL_SUMS_3, "%32", "%33", "%34")
TREFOIL_WGMMA_BYTES_BOTH(128, TREFOIL_SUMS_7, "%64", "%65", "%66")
TREFOIL_WGMMA_BYTES_BOTH(192, TREFOIL_SUMS_11, "%96", "%97", "%98")
TREFOIL_WGMMA_BYTES_BOTH(208, TREFOIL_SUMS_12, "%104", "%105", "%106")
TREFOIL_WGMMA_BYTES_BOTH(240, TREFOIL_SUMS_14, "%120", "%121", "%122")
TREFOIL_WGMMA_BYTES_BOTH(256, TREFOIL_SUMS_15, "%128", "%129", "%130")

// The same of unsigned b with a in registers: lane l of warp w has a[16w + l/4][4(l%4)] and the next three columns, the same
// eight rows below, and both sixteen columns on. They must not change before the product has ended.
template <int kN> struct WgmmaBytesFrom;

#define TREFOIL_WGMMA_BYTES_FROM(n, sums, a_operand, b_operand, add_operand)                                    \
  template <> struct WgmmaBytesFrom<n> {                                                                        \
    static __device__ __forceinline__ void multiply(int32_t (&d)[n / 2], const uint32_t (&a)[4], uint64_t b,     \
                                                    bool add) {                                                 \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_operand ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8.u8 {" sums                                \
                   "}, {" a_operand "}, " b_operand ", add;\n}"                                                 \
                   : TREFOIL_SUM_REFS_##n                                                                       \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(add)));       \
    }                                                                                                           \
  };

TREFOIL_WGMMA_BYTES_FROM(112, TREFOIL_SUMS_6, "%56, %57, %58, %59", "%60", "%61")

// sum + the sum of the products of four unsigned bytes and four signed ones.
TREFOIL_DEVICE int32_t dot_bytes(uint32_t x, uint32_t filter, int32_t sum) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(filter));
  return sum;
}

// Four integers as unsigned bytes of a word, `a` the lowest; what is beyond their range becomes 0 or 255.
TREFOIL_DEVICE uint32_t pack_bytes(int32_t a, int32_t b, int32_t c, int32_t d) {
  uint32_t high, word;
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(high) : "r"(d), "r"(c), "r"(0));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(b), "r"(a), "r"(high));
  return word;
}
