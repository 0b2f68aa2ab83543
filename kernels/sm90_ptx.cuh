// Inline PTX in tiny named wrappers: what needs sm_90a. Barriers, the tensor memory accelerator, warpgroup products.
#pragma once

#include "ptx.cuh"

// A tensor map as the driver encodes it: its operations take its address, in a kernel's parameters.
struct alignas(64) TensorMap {
  uint64_t words[16];
};
static_assert(sizeof(TensorMap) == 128, "the driver's CUtensorMap");

// ---- delays ------------------------------------------------------------------------------------------------------

// Where TREFOIL_DELAYS is defined, one of sixteen waits of a warp is longer, before or behind it, by up to 32 us: warps then
// are apart that never are otherwise, and an order that only their speed kept is lost.
TREFOIL_DEVICE void delay() {
#ifdef TREFOIL_DELAYS
  uint32_t clock, warp;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clock) :: "memory");
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  const uint32_t hash = (clock + warp * 40503u) * 0x9e3779b1u;
  asm volatile("{\n.reg .pred is_long;\nsetp.lt.u32 is_long, %0, 0x10000000;\n@is_long nanosleep.u32 %1;\n}"
               :: "r"(hash), "r"(hash & 0x3fff) : "memory");
#endif
}

// ---- barriers in shared memory -----------------------------------------------------------------------------------

TREFOIL_DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
TREFOIL_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

TREFOIL_DEVICE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives as often as that many threads would, one or more.
TREFOIL_DEVICE void barrier_arrive_many(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// Arrives once for a warp, behind all that its lanes did, and without a branch.
TREFOIL_DEVICE void barrier_arrive_once(uint32_t barrier) {
  __syncwarp();
  asm volatile("{\n.reg .pred first;\nsetp.eq.u32 first, %1, 0;\n"
               "@first mbarrier.arrive.shared::cta.b64 _, [%0];\n}" :: "r"(barrier), "r"(threadIdx.x % 32) : "memory");
}

// Arrives, and lets the phase end only after `bytes` more have been copied. A box counts whole, also where it is
// clipped.
TREFOIL_DEVICE void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of the phase of this parity. A fresh barrier counts as after a phase of parity 1.
TREFOIL_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  delay();
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" :: "r"(barrier), "r"(parity) : "memory");
  delay();
}

// A barrier of `threads` threads of the block, of those that name the same `id` from 1 to 15.
TREFOIL_DEVICE void barrier_sync(uint32_t id, uint32_t threads) {
  delay();
  asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
  delay();
}

// Arrives at such a barrier without waiting.
TREFOIL_DEVICE void barrier_pass(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

// ---- clusters ----------------------------------------------------------------------------------------------------

// This block's place in its cluster, and the cluster's blocks. Without a cluster a block is one of its own.
TREFOIL_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

TREFOIL_DEVICE uint32_t cluster_blocks() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}

// Arrives at another block's barrier: the one at this address of its shared memory.
TREFOIL_DEVICE void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile("{\n"
               ".reg .b32 there;\n"
               "mapa.shared::cluster.u32 there, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
               "}" :: "r"(barrier), "r"(rank) : "memory");
}

// Says that this thread's block has begun and its barriers are initialised; every thread does.
TREFOIL_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

// The same, and what this thread wrote can be read by whoever waits for all.
TREFOIL_DEVICE void cluster_arrive_written() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

// Waits until all threads of the cluster that have not ended have arrived.
TREFOIL_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The same, of a single thread. PTX asks for no such wait, but racecheck lets no thread pass before each that arrived
// waits or has ended. So a thread that copies in a cluster waits before it first copies into a stage again; all blocks
// have long begun by then.
TREFOIL_DEVICE void cluster_wait_alone() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Writes two floats to this address of the shared memory of a block of the cluster, and completes 8 bytes of the
// transaction of its barrier at `barrier`.
TREFOIL_DEVICE void send_two(uint32_t shared_dst, uint32_t barrier, uint32_t rank, float x, float y) {
  asm volatile("{\n"
               ".reg .b32 dst, at;\n"
               "mapa.shared::cluster.u32 dst, %0, %2;\n"
               "mapa.shared::cluster.u32 at, %1, %2;\n"
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [dst], {%3, %4}, [at];\n"
               "}" :: "r"(shared_dst), "r"(barrier), "r"(rank), "f"(x), "f"(y) : "memory");
}

// The same of four integers and 16 bytes.
TREFOIL_DEVICE void send_four(uint32_t shared_dst, uint32_t barrier, uint32_t rank, const int32_t *values) {
  asm volatile("{\n"
               ".reg .b32 dst, at;\n"
               "mapa.shared::cluster.u32 dst, %0, %2;\n"
               "mapa.shared::cluster.u32 at, %1, %2;\n"
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [dst], {%3, %4, %5, %6}, [at];\n"
               "}" :: "r"(shared_dst), "r"(barrier), "r"(rank), "r"(values[0]), "r"(values[1]), "r"(values[2]),
                  "r"(values[3]) : "memory");
}

// The same of four floats.
TREFOIL_DEVICE void send_four(uint32_t shared_dst, uint32_t barrier, uint32_t rank, float4 values) {
  asm volatile("{\n"
               ".reg .b32 dst, at;\n"
               "mapa.shared::cluster.u32 dst, %0, %2;\n"
               "mapa.shared::cluster.u32 at, %1, %2;\n"
               "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [dst], {%3, %4, %5, %6}, [at];\n"
               "}" :: "r"(shared_dst), "r"(barrier), "r"(rank), "f"(values.x), "f"(values.y), "f"(values.z),
                  "f"(values.w) : "memory");
}

// Writes to this address of the shared memory of a block of the cluster.
TREFOIL_DEVICE void store_u32_at(uint32_t shared_dst, uint32_t rank, uint32_t value) {
  asm volatile("{\n"
               ".reg .b32 there;\n"
               "mapa.shared::cluster.u32 there, %0, %1;\n"
               "st.shared::cluster.u32 [there], %2;\n"
               "}" :: "r"(shared_dst), "r"(rank), "r"(value) : "memory");
}

TREFOIL_DEVICE void store_u32x4_at(uint32_t shared_dst, uint32_t rank, uint4 value) {
  asm volatile("{\n"
               ".reg .b32 there;\n"
               "mapa.shared::cluster.u32 there, %0, %1;\n"
               "st.shared::cluster.v4.u32 [there], {%2, %3, %4, %5};\n"
               "}" :: "r"(shared_dst), "r"(rank), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}

// Waits for the end of the first phase of a barrier that other blocks of the cluster complete.
TREFOIL_DEVICE void barrier_wait_cluster(uint32_t barrier) {
  delay();
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
               "@!done bra again;\n"
               "}" :: "r"(barrier) : "memory");
  delay();
}

// The same of the phase of this parity.
TREFOIL_DEVICE void barrier_wait_cluster_phase(uint32_t barrier, uint32_t parity) {
  delay();
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" :: "r"(barrier), "r"(parity) : "memory");
  delay();
}

TREFOIL_DEVICE float2 load_shared_two(uint32_t shared_src) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(shared_src) : "memory");
  return value;
}

TREFOIL_DEVICE float4 load_shared_four(uint32_t shared_src) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(shared_src) : "memory");
  return value;
}

// Whether this is the elected lane of a whole warp, always the same one. The compiler then knows that one lane does what
// follows, and makes no loop over lanes of it.
TREFOIL_DEVICE bool is_elected() {
  uint32_t elected;
  asm volatile("{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\nselp.b32 %0, 1, 0, one;\n}" : "=r"(elected) :: "memory");
  return elected != 0;
}

// A number that is the same for all lanes of a whole warp. The compiler then knows that it is, and keeps it rather than
// finding it anew.
TREFOIL_DEVICE uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffff, x, 0); }

// ---- copies by tensor map ----------------------------------------------------------------------------------------

TREFOIL_DEVICE void prefetch_tensor_map(const TensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// A box of a matrix, from `x` in its rows and from row `y`; elements outside are zeros.
TREFOIL_DEVICE void copy_box_2d(uint32_t shared_dst, const TensorMap *map, uint32_t barrier, int32_t x, int32_t y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
               :: "r"(shared_dst), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

// Brings such a box into the L2 cache.
TREFOIL_DEVICE void prefetch_box_2d(const TensorMap *map, int32_t x, int32_t y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" :: "l"(map), "r"(x), "r"(y) : "memory");
}

TREFOIL_DEVICE void copy_box_3d(uint32_t shared_dst, const TensorMap *map, uint32_t barrier, int32_t x, int32_t y,
                                int32_t z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
               :: "r"(shared_dst), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}

TREFOIL_DEVICE void copy_box_4d(uint32_t shared_dst, const TensorMap *map, uint32_t barrier, int32_t x, int32_t y,
                                int32_t z, int32_t n) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
               :: "r"(shared_dst), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(n) : "memory");
}

// A column of pixels, each `offset_w`, `offset_h` from where the map's window starts: the first at (w, h) of image n,
// the rest in the order of windows along W, then H, then N.
TREFOIL_DEVICE void copy_im2col(uint32_t shared_dst, const TensorMap *map, uint32_t barrier, int32_t c, int32_t w,
                                int32_t h, int32_t n, uint16_t offset_w, uint16_t offset_h) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
               :: "r"(shared_dst), "l"(map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"(offset_w), "h"(offset_h)
               : "memory");
}

// The same to this address in several blocks of the cluster, those of `mask`, and to the barrier of each.
TREFOIL_DEVICE void copy_box_2d_to(uint16_t mask, uint32_t shared_dst, const TensorMap *map, uint32_t barrier, int32_t x,
                                   int32_t y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
               :: "r"(shared_dst), "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask) : "memory");
}

TREFOIL_DEVICE void copy_box_3d_to(uint16_t mask, uint32_t shared_dst, const TensorMap *map, uint32_t barrier, int32_t x,
                                   int32_t y, int32_t z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
               :: "r"(shared_dst), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(mask) : "memory");
}

TREFOIL_DEVICE void copy_im2col_to(uint16_t mask, uint32_t shared_dst, const TensorMap *map, uint32_t barrier, int32_t c,
                                   int32_t w, int32_t h, int32_t n, uint16_t offset_w, uint16_t offset_h) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;"
               :: "r"(shared_dst), "l"(map), "r"(barrier), "r"(c), "r"(w), "r"(h), "r"(n), "h"(offset_w), "h"(offset_h),
                  "h"(mask) : "memory");
}

// Copies a box to a matrix, or to images, and closes a group of it; elements outside are left out.
TREFOIL_DEVICE void store_box_2d(const TensorMap *map, int32_t x, int32_t y, uint32_t shared_src) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               :: "l"(map), "r"(x), "r"(y), "r"(shared_src) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// A group of no stores, which counts like others.
TREFOIL_DEVICE void store_nothing() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Starts the copy of bytes that follow each other, a multiple of 16 from and to one.
TREFOIL_DEVICE void store_bytes(void *global_dst, uint32_t shared_src, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :: "l"(global_dst), "r"(shared_src), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

TREFOIL_DEVICE void store_box_4d(const TensorMap *map, int32_t x, int32_t y, int32_t z, int32_t n, uint32_t shared_src) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
               :: "l"(map), "r"(x), "r"(y), "r"(z), "r"(n), "r"(shared_src) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's stores have not read their shared memory yet.
template <int kPending> TREFOIL_DEVICE void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(kPending) : "memory");
}

// Makes this thread's writes to shared memory visible to the copy engine, once a barrier has followed.
TREFOIL_DEVICE void fence_shared_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- matrices of halves in shared memory -------------------------------------------------------------------------

// Four 8x8 matrices, transposed; lane i gives the address of row i % 8 of matrix i / 8.
TREFOIL_DEVICE void stmatrix_x4_trans(uint32_t shared_dst, const uint32_t (&s)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(shared_dst), "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3]) : "memory");
}

TREFOIL_DEVICE void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t shared_src) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_src) : "memory");
}

TREFOIL_DEVICE void ldmatrix_x2_trans(uint32_t (&d)[2], uint32_t shared_src) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(d[0]), "=r"(d[1]) : "r"(shared_src) : "memory");
}

TREFOIL_DEVICE void stmatrix_x4(uint32_t shared_dst, const uint32_t (&s)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(shared_dst), "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3]) : "memory");
}

TREFOIL_DEVICE void stmatrix_x2_trans(uint32_t shared_dst, const uint32_t (&s)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
               :: "r"(shared_dst), "r"(s[0]), "r"(s[1]) : "memory");
}

TREFOIL_DEVICE void stmatrix_x1_trans(uint32_t shared_dst, uint32_t s) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" :: "r"(shared_dst), "r"(s) : "memory");
}

// An 8x8 matrix of halves, transposed: lane l has row l / 4, columns 2(l%4) and the next.
TREFOIL_DEVICE uint32_t transpose_8x8(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

// ---- warpgroups --------------------------------------------------------------------------------------------------

template <int kRegisters> TREFOIL_DEVICE void give_registers_up() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(kRegisters));
}

template <int kRegisters> TREFOIL_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(kRegisters));
}

// Before the first product and after any other write to the sums.
TREFOIL_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes a group of the products since the last commit.
TREFOIL_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `kPending` groups of products are unfinished.
template <int kPending> TREFOIL_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(kPending) : "memory");
}

// Keeps the compiler from reading the sums before the wait that precedes it.
template <int kCount> TREFOIL_DEVICE void wgmma_use(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
}

// Where a matrix lies of rows of 128, 64 or 32 bytes, in the copy engine's swizzle of as many. 32 bytes of columns on, the
// address is 32 more: add 2 to the descriptor.
template <int kRowBytes = 128> TREFOIL_DEVICE uint64_t wgmma_operand(uint32_t shared_src) {
  static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32, "a swizzle");
  constexpr uint64_t kGroupBytes = 8 * kRowBytes, kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3;
  return (shared_src & 0x3ffff) >> 4 | 1ull << 16 | (kGroupBytes >> 4) << 32 | kSwizzle << 62;
}

// The same of rows of 64 halves of which a product takes 16, all their columns: the next 64 columns lie `columns_bytes`
// away. Sixteen rows on, the address is 2048 more.
TREFOIL_DEVICE uint64_t wgmma_operand_rows(uint32_t shared_src, uint64_t columns_bytes) {
  return (wgmma_operand(shared_src) & ~(0xffffull << 16)) | columns_bytes >> 4 << 16;
}

// Where a matrix lies that is not swizzled: blocks of 8 rows by 8 halves, each 128 bytes together, the next 8 columns
// and the next 8 rows at these distances. Blocks may overlap.
TREFOIL_DEVICE uint64_t wgmma_operand_plain(uint32_t shared_src, uint64_t columns_bytes, uint64_t rows_bytes) {
  return (shared_src & 0x3ffff) >> 4 | columns_bytes >> 4 << 16 | rows_bytes >> 4 << 32;
}

// d[64][kN] += a[64][16] * b[kN][16]: values of type Of in, floats out; `add` false: d is overwritten. Warp w of the four,
// lane l: d[4j], d[4j+1] = D[16w + l/4][8j + 2(l%4)], and the next column; d[4j+2], d[4j+3] the same eight rows below.
template <int kN, class Of = F16> struct Wgmma;

#define TREFOIL_SUMS_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TREFOIL_SUMS_1 TREFOIL_SUMS_0 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TREFOIL_SUMS_1_AND_A_HALF TREFOIL_SUMS_1 ", %16, %17, %18, %19"
#define TREFOIL_SUMS_2 TREFOIL_SUMS_1 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TREFOIL_SUMS_3 TREFOIL_SUMS_2 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TREFOIL_SUMS_3_AND_A_HALF TREFOIL_SUMS_3 ", %32, %33, %34, %35"
#define TREFOIL_SUMS_4 TREFOIL_SUMS_3 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TREFOIL_SUMS_4_AND_A_HALF TREFOIL_SUMS_4 ", %40, %41, %42, %43"
#define TREFOIL_SUMS_5 TREFOIL_SUMS_4 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TREFOIL_SUMS_5_AND_A_HALF TREFOIL_SUMS_5 ", %48, %49, %50, %51"
#define TREFOIL_SUMS_6 TREFOIL_SUMS_5 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define TREFOIL_SUMS_6_AND_A_HALF TREFOIL_SUMS_6 ", %56, %57, %58, %59"
#define TREFOIL_SUMS_7 TREFOIL_SUMS_6 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TREFOIL_SUMS_8 TREFOIL_SUMS_7 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define TREFOIL_SUMS_9 TREFOIL_SUMS_8 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TREFOIL_SUMS_9_AND_A_HALF TREFOIL_SUMS_9 ", %80, %81, %82, %83"
#define TREFOIL_SUMS_10 TREFOIL_SUMS_9 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TREFOIL_SUMS_10_AND_A_HALF TREFOIL_SUMS_10 ", %88, %89, %90, %91"
#define TREFOIL_SUMS_11 TREFOIL_SUMS_10 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TREFOIL_SUMS_12 TREFOIL_SUMS_11 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define TREFOIL_SUMS_13 TREFOIL_SUMS_12 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define TREFOIL_SUMS_14 TREFOIL_SUMS_13 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define TREFOIL_SUMS_15 TREFOIL_SUMS_14 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define TREFOIL_EIGHT(i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),    \
      "+f"(d[i + 7])
#define TREFOIL_REFS_1 TREFOIL_EIGHT(0), TREFOIL_EIGHT(8)
#define TREFOIL_REFS_1_AND_A_HALF TREFOIL_REFS_1, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define TREFOIL_REFS_3 TREFOIL_REFS_1, TREFOIL_EIGHT(16), TREFOIL_EIGHT(24)
#define TREFOIL_REFS_3_AND_A_HALF TREFOIL_REFS_3, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define TREFOIL_REFS_4 TREFOIL_REFS_3, TREFOIL_EIGHT(32)
#define TREFOIL_REFS_4_AND_A_HALF TREFOIL_REFS_4, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define TREFOIL_REFS_5 TREFOIL_REFS_4, TREFOIL_EIGHT(40)
#define TREFOIL_REFS_5_AND_A_HALF TREFOIL_REFS_5, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define TREFOIL_REFS_7 TREFOIL_REFS_3, TREFOIL_EIGHT(32), TREFOIL_EIGHT(40), TREFOIL_EIGHT(48), TREFOIL_EIGHT(56)
#define TREFOIL_REFS_6 TREFOIL_REFS_3, TREFOIL_EIGHT(32), TREFOIL_EIGHT(40), TREFOIL_EIGHT(48)
#define TREFOIL_REFS_6_AND_A_HALF TREFOIL_REFS_6, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define TREFOIL_REFS_8 TREFOIL_REFS_7, TREFOIL_EIGHT(64)
#define TREFOIL_REFS_9 TREFOIL_REFS_8, TREFOIL_EIGHT(72)
#define TREFOIL_REFS_9_AND_A_HALF TREFOIL_REFS_9, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define TREFOIL_REFS_10 TREFOIL_REFS_9, TREFOIL_EIGHT(80)
#define TREFOIL_REFS_10_AND_A_HALF TREFOIL_REFS_10, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define TREFOIL_REFS_11 TREFOIL_REFS_7, TREFOIL_EIGHT(64), TREFOIL_EIGHT(72), TREFOIL_EIGHT(80), TREFOIL_EIGHT(88)
#define TREFOIL_REFS_15 TREFOIL_REFS_11, TREFOIL_EIGHT(96), TREFOIL_EIGHT(104), TREFOIL_EIGHT(112), TREFOIL_EIGHT(120)

#define TREFOIL_FOUR(i) "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])

// `Of`, `of`: the type, as a class and in the instruction. `last`: eights of sums less one; the operands that follow the
// sums are %a, %b, %add.
#define TREFOIL_WGMMA_OF(Of, of, n, last, a_operand, b_operand, add_operand)                                    \
  template <> struct Wgmma<n, Of> {                                                                             \
    static __device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t a, uint64_t b, bool add) {      \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_operand ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." of "." of " {" TREFOIL_SUMS_##last        \
                   "}, " a_operand ", " b_operand ", add, 1, 1, 0, 0;\n}"                                       \
                   : TREFOIL_REFS_##last : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));                     \
    }                                                                                                           \
  };

#define TREFOIL_WGMMA(n, last, a_operand, b_operand, add_operand)                                               \
  TREFOIL_WGMMA_OF(F16, "f16", n, last, a_operand, b_operand, add_operand)                                      \
  TREFOIL_WGMMA_OF(Bf16, "bf16", n, last, a_operand, b_operand, add_operand)

TREFOIL_WGMMA(32, 1, "%16", "%17", "%18")
TREFOIL_WGMMA(40, 1_AND_A_HALF, "%20", "%21", "%22")
TREFOIL_WGMMA(64, 3, "%32", "%33", "%34")
TREFOIL_WGMMA(72, 3_AND_A_HALF, "%36", "%37", "%38")
TREFOIL_WGMMA(80, 4, "%40", "%41", "%42")
TREFOIL_WGMMA(88, 4_AND_A_HALF, "%44", "%45", "%46")
TREFOIL_WGMMA(96, 5, "%48", "%49", "%50")
TREFOIL_WGMMA(104, 5_AND_A_HALF, "%52", "%53", "%54")
TREFOIL_WGMMA(112, 6, "%56", "%57", "%58")
TREFOIL_WGMMA(120, 6_AND_A_HALF, "%60", "%61", "%62")
TREFOIL_WGMMA(128, 7, "%64", "%65", "%66")
TREFOIL_WGMMA(144, 8, "%72", "%73", "%74")
TREFOIL_WGMMA(168, 9_AND_A_HALF, "%84", "%85", "%86")
TREFOIL_WGMMA(176, 10, "%88", "%89", "%90")
TREFOIL_WGMMA(184, 10_AND_A_HALF, "%92", "%93", "%94")
TREFOIL_WGMMA(192, 11, "%96", "%97", "%98")
TREFOIL_WGMMA(256, 15, "%128", "%129", "%130")

// The same product of halves with sums of halves, rounded behind each sixteen: d[i] is what the left operand of a product
// `WgmmaFrom` has of the sixteen columns i.
template <int kN> struct WgmmaHalves;

template <> struct WgmmaHalves<128> {
  static __device__ __forceinline__ void multiply(uint32_t (&d)[8][4], uint64_t a, uint64_t b, bool add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f16.f16.f16 {" TREFOIL_SUMS_3 "}, %32, %33, add, 1, 1, 0, 0;\n}"
                 : TREFOIL_FOUR(0), TREFOIL_FOUR(1), TREFOIL_FOUR(2), TREFOIL_FOUR(3), TREFOIL_FOUR(4), TREFOIL_FOUR(5),
                   TREFOIL_FOUR(6), TREFOIL_FOUR(7)
                 : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));
  }
};

// The same with a in registers: lane l of warp w has a[16w + l/4][2(l%4)] and the next column, the same eight rows below,
// and both eight columns on. They must not change before the product has ended.
template <int kN> struct WgmmaFrom;

#define TREFOIL_WGMMA_FROM(n, last, a_operand, b_operand, add_operand)                                          \
  template <> struct WgmmaFrom<n> {                                                                             \
    static __device__ __forceinline__ void multiply(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b,       \
                                                    bool add) {                                                 \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_operand ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" TREFOIL_SUMS_##last               \
                   "}, {" a_operand "}, " b_operand ", add, 1, 1, 0;\n}"                                        \
                   : TREFOIL_REFS_##last                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(add)));       \
    }                                                                                                           \
  };

TREFOIL_WGMMA_FROM(64, 3, "%32, %33, %34, %35", "%36", "%37")
TREFOIL_WGMMA_FROM(112, 6, "%56, %57, %58, %59", "%60", "%61")

// The same with b[16][kN] instead, in rows of 64 halves: 16 rows on, the address is 2048 more. Where kN is more than 64,
// the next 64 columns are `columns_bytes` away, as `wgmma_operand_rows` has it.
template <int kN, class Of = F16> struct WgmmaFromRows;

#define TREFOIL_WGMMA_FROM_ROWS_OF(Of, of, n, last, a_operand, b_operand, add_operand)                          \
  template <> struct WgmmaFromRows<n, Of> {                                                                     \
    static __device__ __forceinline__ void multiply(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b,       \
                                                    bool add) {                                                 \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_operand ", 0;\n"                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." of "." of " {" TREFOIL_SUMS_##last        \
                   "}, {" a_operand "}, " b_operand ", add, 1, 1, 1;\n}"                                        \
                   : TREFOIL_REFS_##last                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(add)));       \
    }                                                                                                           \
  };

#define TREFOIL_WGMMA_FROM_ROWS(n, last, a_operand, b_operand, add_operand)                                     \
  TREFOIL_WGMMA_FROM_ROWS_OF(F16, "f16", n, last, a_operand, b_operand, add_operand)                            \
  TREFOIL_WGMMA_FROM_ROWS_OF(Bf16, "bf16", n, last, a_operand, b_operand, add_operand)

TREFOIL_WGMMA_FROM_ROWS(32, 1, "%16, %17, %18, %19", "%20", "%21")
TREFOIL_WGMMA_FROM_ROWS(64, 3, "%32, %33, %34, %35", "%36", "%37")
TREFOIL_WGMMA_FROM_ROWS(96, 5, "%48, %49, %50, %51", "%52", "%53")
TREFOIL_WGMMA_FROM_ROWS(128, 7, "%64, %65, %66, %67", "%68", "%69")

// ---- words in shared memory --------------------------------------------------------------------------------------

// 16 bits, in the low half of a word.
TREFOIL_DEVICE uint32_t load_shared_u16(uint32_t shared_src) {
  uint32_t value;
  asm volatile("{\n.reg .b16 low;\nld.shared.u16 low, [%1];\ncvt.u32.u16 %0, low;\n}" : "=r"(value) : "r"(shared_src) : "memory");
  return value;
}

TREFOIL_DEVICE uint2 load_shared_u32x2(uint32_t shared_src) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(shared_src) : "memory");
  return value;
}

TREFOIL_DEVICE void store_shared_u32x2(uint32_t shared_dst, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(shared_dst), "r"(value.x), "r"(value.y) : "memory");
}

// ---- order of launches -------------------------------------------------------------------------------------------

// Lets the launch after this one start once every block has said so or ended, where that launch allows it. It says
// nothing about what can be read.
TREFOIL_DEVICE void allow_next_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the launches before this one have ended and what they wrote can be read. Does nothing where the launch
// was not allowed to start earlier.
TREFOIL_DEVICE void wait_for_earlier_launches() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
