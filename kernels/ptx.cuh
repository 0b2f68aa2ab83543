// Inline PTX in tiny named wrappers. Everything here exists from sm_80 on.
#pragma once

#include <cuda_fp16.h>
#include <stdint.h>

#define TREFOIL_DEVICE static __device__ __forceinline__

// The types of 16 bits that tensor cores multiply; common.cuh converts them.
struct F16;
struct Bf16;

// The address of `pointer` inside the block's shared memory window.
TREFOIL_DEVICE uint32_t shared_address(const void *pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// blockIdx.x, read anew at each call: what follows from it is computed again rather than kept in registers.
TREFOIL_DEVICE uint32_t block_idx_x() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

// threadIdx.x, likewise.
TREFOIL_DEVICE uint32_t thread_idx_x() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// Copies 16 bytes to shared memory past the registers; if `valid` is false it writes zeros and reads nothing.
// Both addresses are multiples of 16.
TREFOIL_DEVICE void cp_async_16(uint32_t shared_dst, const void *global_src, bool valid) {
  const int source_bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :: "r"(shared_dst), "l"(global_src), "r"(source_bytes) : "memory");
}

// Closes the group of this thread's copies since the last commit.
TREFOIL_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kPending` of this thread's groups are unfinished. A barrier makes them visible to the block.
template <int kPending> TREFOIL_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(kPending) : "memory");
}

// Four 8x8 matrices of halves; lane i gives the address of row i % 8 of matrix i / 8.
TREFOIL_DEVICE void ldmatrix_x4(uint32_t (&d)[4], uint32_t shared_src) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_src) : "memory");
}

// d[16][8] += a[16][16] * b[16][8], halves in, floats out. Fragments, lane l, g = l / 4, t = l % 4:
// a = A[g][2t..], A[g+8][2t..], A[g][2t+8..], A[g+8][2t+8..]; b = B[2t..][g], B[2t+8..][g];
// d = D[g][2t], D[g][2t+1], D[g+8][2t], D[g+8][2t+1].
TREFOIL_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of bf16.
TREFOIL_DEVICE void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d[16][8] += a[16][32] * b[32][8], bytes in, of which those of b are signed, sums of 32 bits out, which wrap. The fragments
// are those of mma_m16n8k16 with two bytes in the place of each half.
template <bool kSigned>
TREFOIL_DEVICE void mma_m16n8k32(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if (kSigned)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats as bf16, rounded to nearest, ties to even; what overflows becomes infinity.
TREFOIL_DEVICE uint32_t convert_bf16x2(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// 16 bytes at a multiple of 16 that nobody writes during the launch; if `valid` is false it reads nothing and gives
// zeros. Loads keep their order, so that those for a later use can be issued before an earlier one's.
TREFOIL_DEVICE uint4 load_u32x4_or_zero(const uint4 *global_src, bool valid) {
  uint4 value;
  asm volatile("{\n\t"
               ".reg .pred valid;\n\t"
               "setp.ne.u32 valid, %5, 0;\n\t"
               "mov.u32 %0, 0;\n\t"
               "mov.u32 %1, 0;\n\t"
               "mov.u32 %2, 0;\n\t"
               "mov.u32 %3, 0;\n\t"
               "@valid ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
               "}"
               : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
               : "l"(global_src), "r"(static_cast<uint32_t>(valid)));
  return value;
}

// The same of what an earlier launch wrote, even one that had not ended when this one began: past the multiprocessor's
// own cache, and not before a wait for it.
TREFOIL_DEVICE uint4 load_written_or_zero(const uint4 *global_src, bool valid) {
  uint4 value;
  asm volatile("{\n\t"
               ".reg .pred valid;\n\t"
               "setp.ne.u32 valid, %5, 0;\n\t"
               "mov.u32 %0, 0;\n\t"
               "mov.u32 %1, 0;\n\t"
               "mov.u32 %2, 0;\n\t"
               "mov.u32 %3, 0;\n\t"
               "@valid ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
               "}"
               : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
               : "l"(global_src), "r"(static_cast<uint32_t>(valid))
               : "memory");
  return value;
}

TREFOIL_DEVICE uint2 load_written_or_zero(const uint2 *global_src, bool valid) {
  uint2 value;
  asm volatile("{\n\t"
               ".reg .pred valid;\n\t"
               "setp.ne.u32 valid, %3, 0;\n\t"
               "mov.u32 %0, 0;\n\t"
               "mov.u32 %1, 0;\n\t"
               "@valid ld.global.cg.v2.u32 {%0, %1}, [%2];\n\t"
               "}"
               : "=&r"(value.x), "=&r"(value.y)
               : "l"(global_src), "r"(static_cast<uint32_t>(valid))
               : "memory");
  return value;
}

// A float that no launch writes, or `otherwise` if it is not valid. The compiler does not move this load behind a wait that
// follows.
TREFOIL_DEVICE float load_early_or(const float *global_src, bool valid, float otherwise) {
  float value = otherwise;
  asm volatile("{\n\t"
               ".reg .pred valid;\n\t"
               "setp.ne.u32 valid, %2, 0;\n\t"
               "@valid ld.global.cg.f32 %0, [%1];\n\t"
               "}"
               : "+f"(value) : "l"(global_src), "r"(static_cast<uint32_t>(valid)) : "memory");
  return value;
}

// Writes 16 bytes to global memory, by an address of which the compiler does not have to find what it points to.
TREFOIL_DEVICE void store_global_u32x4(void *global_dst, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(global_dst), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}

// Brings the 32 bytes around an address into the L2 cache.
TREFOIL_DEVICE void prefetch_l2(const void *global_src) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(global_src) : "memory");
}

// Loads a word that nobody writes during the launch, if told; else it stays as it is. Not moved over barriers and fences.
TREFOIL_DEVICE void load_word_if(bool loads, uint32_t &word, const uint8_t *src) {
  asm volatile("{\n.reg .pred loads;\nsetp.ne.b32 loads, %2, 0;\n@loads ld.global.nc.u32 %0, [%1];\n}"
               : "+r"(word) : "l"(src), "r"(static_cast<int32_t>(loads)));
}

// Whatever uses `value` from here on stays behind the loads before.
TREFOIL_DEVICE void keep_order(uint4 &value) {
  asm volatile("" : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w));
}

TREFOIL_DEVICE void keep_order(uint2 &value) { asm volatile("" : "+r"(value.x), "+r"(value.y)); }

TREFOIL_DEVICE void store_shared_u32(uint32_t shared_dst, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" :: "r"(shared_dst), "r"(value) : "memory");
}

// The lowest byte of `value`.
TREFOIL_DEVICE void store_shared_u8(uint32_t shared_dst, uint32_t value) {
  asm volatile("st.shared.u8 [%0], %1;" :: "r"(shared_dst), "r"(value) : "memory");
}

TREFOIL_DEVICE uint32_t load_shared_u32(uint32_t shared_src) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(shared_src) : "memory");
  return value;
}

// A word by which threads of a block tell each other how far they are, without a barrier.
TREFOIL_DEVICE void tell_shared_u32(uint32_t shared_dst, uint32_t value) {
  asm volatile("{\n.reg .b32 before;\natom.release.cta.shared.exch.b32 before, [%0], %1;\n}"
               :: "r"(shared_dst), "r"(value) : "memory");
}

TREFOIL_DEVICE uint32_t told_shared_u32(uint32_t shared_src) {
  uint32_t value;
  asm volatile("atom.acquire.cta.shared.or.b32 %0, [%1], 0;" : "=r"(value) : "r"(shared_src) : "memory");
  return value;
}

TREFOIL_DEVICE float2 load_shared_f32x2(uint32_t shared_src) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(shared_src) : "memory");
  return value;
}

TREFOIL_DEVICE int2 load_shared_s32x2(uint32_t shared_src) {
  int2 value;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(shared_src) : "memory");
  return value;
}

TREFOIL_DEVICE void store_shared_f32x2(uint32_t shared_dst, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(shared_dst), "f"(value.x), "f"(value.y) : "memory");
}

TREFOIL_DEVICE uint4 load_shared_u32x4(uint32_t shared_src) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(shared_src) : "memory");
  return value;
}

TREFOIL_DEVICE void store_shared_u32x4(uint32_t shared_dst, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "r"(shared_dst), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}

// Four bytes of `low` and `high`, each named by a digit of `selector`: 0 to 3 are those of `low`, 4 to 7 those of `high`;
// with 8 added, eight copies of the byte's highest bit.
TREFOIL_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// The larger and the smaller of two floats; NaN if either is.
TREFOIL_DEVICE float max_or_nan(float a, float b) {
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

TREFOIL_DEVICE float min_or_nan(float a, float b) {
  float d;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}

// Two halves as a word, and back.
TREFOIL_DEVICE uint32_t half2_bits(__half2 pair) { return *reinterpret_cast<const uint32_t *>(&pair); }
TREFOIL_DEVICE __half2 half2_of(uint32_t bits) { return *reinterpret_cast<const __half2 *>(&bits); }

// A word whose lowest `bits` bits are ones: all of them from 32 on.
TREFOIL_DEVICE uint32_t low_bits(uint32_t bits) {
  uint32_t word;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(word) : "r"(bits));
  return word;
}

// 2^x and 1 / x, off by about two units of the last place; subnormal numbers are zeros.
TREFOIL_DEVICE float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same of two halves, off by about one unit of the last place; subnormal numbers stay.
TREFOIL_DEVICE __half2 exp2_approximate(__half2 x) {
  uint32_t y;
  asm("ex2.approx.f16x2 %0, %1;" : "=r"(y) : "r"(half2_bits(x)));
  return half2_of(y);
}

// The same, with 0x5410 as `order`, by which `prmt` puts the two results together. It comes from the launch: a compiler that
// knows it packs a pair once for each instruction that reads it, and not once in all.
TREFOIL_DEVICE uint32_t exp2_approximate(__half2 x, uint32_t order) {
  uint32_t y;
  asm("{\n.reg .b16 low, high, of_low, of_high;\n.reg .b32 first, second;\nmov.b32 {low, high}, %1;\n"
      "ex2.approx.f16 of_low, low;\nex2.approx.f16 of_high, high;\n"
      "cvt.u32.u16 first, of_low;\ncvt.u32.u16 second, of_high;\nprmt.b32 %0, first, second, %2;\n}"
      : "=r"(y) : "r"(half2_bits(x)), "r"(order));
  return y;
}

TREFOIL_DEVICE float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
