// Mean over all pixels of an image of bytes.
#include "common.cuh"

struct MeanS8Args {
  const uint4 *x;   // [images][pixels][c_chunks] chunks of 16 bytes
  uint32_t *y;      // [images][y_words] pairs of halves
  int32_t images;
  int32_t pixels;
  int32_t c_chunks;
  int32_t chunk_blocks;  // ceil(c_chunks / 32)
  float scale;
  uint32_t flip;    // what makes four bytes unsigned: 0x80808080 if they are signed, else 0
  int32_t y_words;  // 4 bytes each, of an image's means
  int32_t padding;
};
static_assert(sizeof(MeanS8Args) == 48 && offsetof(MeanS8Args, images) == 16, "mirrored in mean_s8.rs");

constexpr int kLanes = 32;      // chunks of a block, one a lane
constexpr int kParts = 8;       // warps, each with every eighth pixel
constexpr int kBytes = 16;      // of a chunk

// Purpose    y[i][c] = (sum over pixels of x[i][pixel][c]) * scale.
// Operands   x  read   bytes [images][pixels][16 * c_chunks], 16-byte aligned; signed if flip says so
//            y  write  halves [images][2 * y_words], of the first channels of x, 4-byte aligned, disjoint from x
// Arithmetic exact sums; then the sum rounded to float, the product rounded to float, and that to half.
// Launch     grid images * chunk_blocks, block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     images * chunk_blocks and c_chunks below 2^31, pixels up to 2^23, y_words <= 8 * c_chunks, all at least 1.
//            Deterministic.
extern "C" __global__ void __launch_bounds__(kLanes *kParts) sm80_mean_s8(const __grid_constant__ MeanS8Args args) {
  __shared__ uint32_t partial[kParts][kBytes][kLanes];
  const uint32_t lane = threadIdx.x % kLanes, part = threadIdx.x / kLanes;
  const uint32_t image = blockIdx.x / args.chunk_blocks;
  const uint32_t chunk = (blockIdx.x - image * args.chunk_blocks) * kLanes + lane;
  const bool exists = chunk < static_cast<uint32_t>(args.c_chunks);

  uint32_t sum[kBytes] = {};
  if (exists) {
    const uint4 *column = args.x + static_cast<int64_t>(image) * args.pixels * args.c_chunks + chunk;
#pragma unroll 4
    for (int32_t pixel = part; pixel < args.pixels; pixel += kParts) {
      const uint4 x = load_chunk(column, static_cast<int64_t>(pixel) * args.c_chunks);
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < kBytes; ++i) sum[i] = __dp4a(words[i / 4] ^ args.flip, 1u << i % 4 * 8, sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kBytes; ++i) partial[part][i][lane] = sum[i];
  __syncthreads();

  // A warp has two of the bytes of all chunks.
  if (!exists) return;
  float mean[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t total = 0;
#pragma unroll
    for (int of = 0; of < kParts; ++of) total += partial[of][2 * part + i][lane];
    const int32_t added = args.flip != 0 ? 128 * args.pixels : 0;
    mean[i] = __fmul_rn(__int2float_rn(static_cast<int32_t>(total) - added), args.scale);
  }
  const uint32_t word = chunk * (kBytes / 2) + part;
  if (word < static_cast<uint32_t>(args.y_words))
    args.y[static_cast<int64_t>(image) * args.y_words + word] = pack_half2(mean[0], mean[1]);
}
