// Elementwise sum and activation.
#include "common.cuh"

struct AddArgs {
  const uint4 *a;  // [chunks] chunks of halves
  const uint4 *b;  // the same, or null
  uint4 *out;      // the same, pixels out_chunks apart
  uint32_t chunks;
  int32_t activation;
  int32_t c_chunks;  // of a pixel
  int32_t out_chunks;
  FastDivide by_c_chunks;
};
static_assert(sizeof(AddArgs) == 48 && offsetof(AddArgs, chunks) == 24, "mirrored in add.rs");

// Purpose    out = act(a + b), or act(a) where b is null.
// Operands   a, b  read   halves, 8 * chunks of them, 16-byte aligned
//            out   write  the same, pixels of c_chunks chunks out_chunks apart; may be a or b themselves if it is without
//                         gaps, else disjoint from them
// Arithmetic in float, rounded to half once. NaN stays NaN. Zeros (padded channels) stay zeros.
// Launch     grid ceil(chunks / 256), block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     1 <= chunks < 2^31. Deterministic.
extern "C" __global__ void __launch_bounds__(256) sm80_add(const __grid_constant__ AddArgs args) {
  const uint32_t index = blockIdx.x * 256u + threadIdx.x;
  if (index >= args.chunks) return;
  // Plain loads: out may be an input, so the read-only path is not allowed.
  Chunk sum = unpack_chunk(args.a[index]);
  if (args.b != nullptr) {
    const Chunk other = unpack_chunk(args.b[index]);
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i) sum.v[i] += other.v[i];
  }
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i) sum.v[i] = activate(sum.v[i], args.activation);
  const uint32_t pixel = divide(index, args.by_c_chunks);
  args.out[static_cast<int64_t>(pixel) * args.out_chunks + (index - pixel * args.c_chunks)] = pack_chunk(sum);
}
