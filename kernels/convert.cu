// Halves to bytes of a scale, and back.
#include "common.cuh"

struct ConvertArgs {
  const uint4 *halves;  // chunks of 8 halves, pixels half_chunks apart; written by sm80_dequantize
  const uint2 *bytes;   // [chunks] chunks of 8 bytes; written by sm80_quantize
  uint32_t chunks;
  float factor;       // what a value is multiplied by
  int32_t lowest;     // -128 where bytes are signed, else 0
  int32_t c_chunks;   // of a pixel in bytes
  int32_t half_chunks;
  int32_t c_halves;   // chunks of a pixel in halves, c_chunks at most
  FastDivide by_c_chunks;
};
static_assert(sizeof(ConvertArgs) == 48 && offsetof(ConvertArgs, chunks) == 16, "mirrored in convert.rs");

// Purpose    bytes = the integer nearest to halves * factor, the even one of two, from lowest to lowest + 255.
// Operands   halves  read   pixels of 8 * c_halves, half_chunks chunks apart, 16-byte aligned
//            bytes   write  8 * chunks of them, pixels of 8 * c_chunks without gaps, 8-byte aligned, disjoint from halves
// Arithmetic one product in float. A NaN becomes 0. Zeros (padded channels) stay zeros, and so are channels that only the
//            bytes have.
// Launch     grid ceil(chunks / 256), block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     1 <= chunks < 2^31. Deterministic.
extern "C" __global__ void __launch_bounds__(256) sm80_quantize(const __grid_constant__ ConvertArgs args) {
  const uint32_t index = blockIdx.x * 256u + threadIdx.x;
  if (index >= args.chunks) return;
  const uint32_t pixel = divide(index, args.by_c_chunks), c = index - pixel * args.c_chunks;
  const bool exists = c < static_cast<uint32_t>(args.c_halves);
  const Chunk chunk = unpack_chunk(
      exists ? load_chunk(args.halves, static_cast<int64_t>(pixel) * args.half_chunks + c) : make_uint4(0, 0, 0, 0));
  const float lowest = __int2float_rn(args.lowest), highest = __int2float_rn(args.lowest + 255);
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i) {
    const float scaled = chunk.v[i] * args.factor;
    const float value = scaled != scaled ? 0.0f : fminf(fmaxf(scaled, lowest), highest);
    words[i / 4] |= (__float2int_rn(value) & 0xff) << (8 * (i % 4));
  }
  const_cast<uint2 *>(args.bytes)[index] = make_uint2(words[0], words[1]);
}

// Purpose    halves = bytes * factor.
// Operands   bytes   read   8 * chunks of them, pixels of 8 * c_chunks without gaps, 8-byte aligned
//            halves  write  pixels of the first 8 * c_halves channels, half_chunks chunks apart, 16-byte aligned, disjoint
//                           from bytes
// Arithmetic one product in float, rounded to half. Zeros (padded channels) stay zeros.
// Launch     grid ceil(chunks / 256), block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     1 <= chunks < 2^31. Deterministic.
extern "C" __global__ void __launch_bounds__(256) sm80_dequantize(const __grid_constant__ ConvertArgs args) {
  const uint32_t index = blockIdx.x * 256u + threadIdx.x;
  if (index >= args.chunks) return;
  const uint32_t pixel = divide(index, args.by_c_chunks), c = index - pixel * args.c_chunks;
  if (c >= static_cast<uint32_t>(args.c_halves)) return;
  const uint2 bytes = __ldg(args.bytes + index);
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < kChunkElems; ++i) {
    const int32_t byte = ((i < 4 ? bytes.x : bytes.y) >> (8 * (i % 4))) & 0xff;
    chunk.v[i] = __int2float_rn(byte - (args.lowest != 0 && byte > 127 ? 256 : 0)) * args.factor;
  }
  const_cast<uint4 *>(args.halves)[static_cast<int64_t>(pixel) * args.half_chunks + c] = pack_chunk(chunk);
}
