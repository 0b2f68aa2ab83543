// Mean over all pixels of an image.
#include "common.cuh"

struct GlobalAvgPoolArgs {
  const uint4 *x;  // [images][pixels][c_chunks] chunks of halves
  uint4 *y;        // [images][c_chunks]
  int32_t images;
  int32_t pixels;
  int32_t c_chunks;
  int32_t chunk_blocks;  // ceil(c_chunks / 32)
};
static_assert(sizeof(GlobalAvgPoolArgs) == 32 && offsetof(GlobalAvgPoolArgs, images) == 16,
              "mirrored in global_avg_pool.rs");

constexpr int kLanes = 32;  // chunks of a block, one a lane
constexpr int kParts = 8;   // warps, each with every eighth pixel

// Purpose    y[i][c] = (sum over pixels of x[i][pixel][c]) / pixels.
// Operands   x  read   halves [images][pixels][8 * c_chunks], 16-byte aligned
//            y  write  halves [images][8 * c_chunks], 16-byte aligned, disjoint from x
// Arithmetic float sums: warp w adds pixels w, w + 8, ...; then the eight partial sums are added in order. One
//            rounding to half. NaN stays NaN; padded channels stay zero.
// Launch     grid images * chunk_blocks, block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     images * chunk_blocks, pixels, c_chunks below 2^31, all at least 1. Deterministic.
extern "C" __global__ void __launch_bounds__(kLanes *kParts)
    sm80_global_avg_pool(const __grid_constant__ GlobalAvgPoolArgs args) {
  __shared__ float partial[kParts][kChunkElems][kLanes];
  const uint32_t lane = threadIdx.x % kLanes, part = threadIdx.x / kLanes;
  const uint32_t image = blockIdx.x / args.chunk_blocks;
  const uint32_t chunk = (blockIdx.x - image * args.chunk_blocks) * kLanes + lane;
  const bool exists = chunk < static_cast<uint32_t>(args.c_chunks);

  Chunk sum = {};
  if (exists) {
    const uint4 *column = args.x + static_cast<int64_t>(image) * args.pixels * args.c_chunks + chunk;
#pragma unroll 4
    for (int32_t pixel = part; pixel < args.pixels; pixel += kParts) {
      const Chunk x = unpack_chunk(load_chunk(column, static_cast<int64_t>(pixel) * args.c_chunks));
#pragma unroll
      for (int i = 0; i < kChunkElems; ++i) sum.v[i] += x.v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i) partial[part][i][lane] = sum.v[i];
  __syncthreads();

  if (part != 0 || !exists) return;
#pragma unroll
  for (int other = 1; other < kParts; ++other)
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i) sum.v[i] += partial[other][i][lane];
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i) sum.v[i] /= static_cast<float>(args.pixels);
  args.y[static_cast<int64_t>(image) * args.c_chunks + chunk] = pack_chunk(sum);
}
