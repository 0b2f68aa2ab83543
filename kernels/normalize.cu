// First step: input rows to halves, channels innermost, padded to a multiple of 8.
#include "common.cuh"

constexpr int kMaxMeans = 8;

struct NormalizeArgs {
  const uint8_t *x;  // `images` rows, `row_pitch_bytes` apart
  uint4 *y;          // [images][pixels][c_chunks] chunks of halves
  uint64_t row_pitch_bytes;
  int32_t pixels;    // of an image
  int32_t channels;  // of a pixel of x
  int32_t c_chunks;  // of a pixel of y
  int32_t tiles;     // blocks of an image
  float mean[kMaxMeans];     // of each channel; used by the u8 kernel only
  float inv_std[kMaxMeans];
};
static_assert(sizeof(NormalizeArgs) == 104, "mirrored in normalize.rs");
static_assert(offsetof(NormalizeArgs, row_pitch_bytes) == 16 && offsetof(NormalizeArgs, mean) == 40,
              "mirrored in normalize.rs");

constexpr int kThreads = 256;
constexpr int kPixelsPerThread = 4;
constexpr int kTilePixels = kThreads * kPixelsPerThread;

struct TilePosition {
  uint32_t image, tile;
};

TREFOIL_DEVICE TilePosition tile_position(const NormalizeArgs &args) {
  const uint32_t image = blockIdx.x / args.tiles;
  return {image, blockIdx.x - image * args.tiles};
}

// Purpose    y[i][pixel][c] = (x[i][pixel][c] / 255 - mean[c]) * inv_std[c], zero for c >= channels.
// Operands   x  read   bytes: row i is [pixels][channels] at i * row_pitch_bytes; the pitch is a multiple of 16 and
//                      all its bytes may be read
//            y  write  halves [images][pixels][8], disjoint from x. Both at multiples of 16 bytes.
// Arithmetic in float, 1/255 as a rounded factor; one rounding to half.
// Launch     grid images * tiles with tiles = ceil(pixels / 1024), block 256, no dynamic shared memory. compute
//            capability 8.0 and up.
// Limits     1 <= channels <= 8, c_chunks = 1, grid and pixels * channels below 2^31. Deterministic.
extern "C" __global__ void __launch_bounds__(kThreads)
    sm80_normalize_u8_nhwc(const __grid_constant__ NormalizeArgs args) {
  __shared__ uint4 staged[kTilePixels * kMaxMeans / 16];
  const TilePosition position = tile_position(args);

  // Load: the tile's bytes, 16 at a time. A tile starts at a multiple of 1024 bytes of its row.
  const uint32_t first_byte = position.tile * kTilePixels * args.channels;
  const uint32_t row_bytes = static_cast<uint32_t>(args.pixels) * args.channels;
  const uint32_t tile_bytes = min(static_cast<uint32_t>(kTilePixels * args.channels), row_bytes - first_byte);
  const uint4 *source = reinterpret_cast<const uint4 *>(args.x + position.image * args.row_pitch_bytes + first_byte);
  for (uint32_t i = threadIdx.x; i < (tile_bytes + 15) / 16; i += kThreads) staged[i] = __ldg(source + i);
  __syncthreads();

  // Convert: neighbouring threads write neighbouring pixels.
  const uint8_t *bytes = reinterpret_cast<const uint8_t *>(staged);
  const uint32_t first_pixel = position.tile * kTilePixels;
#pragma unroll
  for (int i = 0; i < kPixelsPerThread; ++i) {
    const uint32_t in_tile = i * kThreads + threadIdx.x;
    if (first_pixel + in_tile >= static_cast<uint32_t>(args.pixels)) return;
    Chunk chunk = {};
#pragma unroll
    for (int c = 0; c < kMaxMeans; ++c) {
      if (c >= args.channels) break;
      const float value = static_cast<float>(bytes[in_tile * args.channels + c]) * (1.0f / 255.0f);
      chunk.v[c] = (value - args.mean[c]) * args.inv_std[c];
    }
    args.y[static_cast<int64_t>(position.image) * args.pixels + first_pixel + in_tile] = pack_chunk(chunk);
  }
}

// Calls `value(channel, pixel)` for the channels of this thread's chunks and stores them: what the kernels below have
// in common. Tiles run over the image's chunks, pixels fastest.
template <class Value> TREFOIL_DEVICE void convert_tile(const NormalizeArgs &args, Value value) {
  const TilePosition position = tile_position(args);
  const uint32_t chunks = static_cast<uint32_t>(args.pixels) * args.c_chunks;
#pragma unroll
  for (int i = 0; i < kPixelsPerThread; ++i) {
    const uint32_t index = position.tile * kTilePixels + i * kThreads + threadIdx.x;
    if (index >= chunks) return;
    const uint32_t c_chunk = index / args.pixels;
    const uint32_t pixel = index - c_chunk * args.pixels;
    Chunk chunk = {};
#pragma unroll
    for (int e = 0; e < kChunkElems; ++e) {
      const uint32_t channel = c_chunk * kChunkElems + e;
      if (channel < static_cast<uint32_t>(args.channels)) chunk.v[e] = value(position.image, channel, pixel);
    }
    args.y[(static_cast<int64_t>(position.image) * args.pixels + pixel) * args.c_chunks + c_chunk] = pack_chunk(chunk);
  }
}

// Purpose    y[i][pixel][c] = x[i][c][pixel], zero for c >= channels.
// Operands   x  read   floats: row i is [channels][pixels] at i * row_pitch_bytes; address and pitch multiples of 4
//            y  write  halves [images][pixels][8 * c_chunks], 16-byte aligned, disjoint from x
// Arithmetic rounding to half; NaN stays NaN, overflow becomes infinity.
// Launch     grid images * tiles with tiles = ceil(pixels * c_chunks / 1024), block 256, no dynamic shared memory.
//            compute capability 8.0 and up.
// Limits     grid and pixels * 8 * c_chunks below 2^31. Deterministic.
extern "C" __global__ void __launch_bounds__(kThreads)
    sm80_normalize_f32_nchw(const __grid_constant__ NormalizeArgs args) {
  convert_tile(args, [&](uint32_t image, uint32_t channel, uint32_t pixel) {
    const float *row = reinterpret_cast<const float *>(args.x + image * args.row_pitch_bytes);
    return __ldg(row + static_cast<int64_t>(channel) * args.pixels + pixel);
  });
}

// Purpose    y[i][pixel][c] = x[i][pixel][c], zero for c >= channels.
// Operands   x  read   halves: row i is [pixels][channels] at i * row_pitch_bytes; address and pitch multiples of 2
//            y  write  halves [images][pixels][8 * c_chunks], 16-byte aligned, disjoint from x
// Arithmetic exact.
// Launch, limits: as sm80_normalize_f32_nchw.
extern "C" __global__ void __launch_bounds__(kThreads)
    sm80_normalize_f16_nhwc(const __grid_constant__ NormalizeArgs args) {
  convert_tile(args, [&](uint32_t image, uint32_t channel, uint32_t pixel) {
    const __half *row = reinterpret_cast<const __half *>(args.x + image * args.row_pitch_bytes);
    return __half2float(__ldg(row + static_cast<int64_t>(pixel) * args.channels + channel));
  });
}

// Purpose    y[i][pixel][c] = x[i][pixel][c], zero for c >= channels.
// Operands   x  read   floats: row i is [pixels][channels] at i * row_pitch_bytes; address and pitch multiples of 4
//            y  write  halves [images][pixels][8 * c_chunks], 16-byte aligned, disjoint from x
// Arithmetic rounding to half; NaN stays NaN, overflow becomes infinity.
// Launch, limits: as sm80_normalize_f32_nchw.
extern "C" __global__ void __launch_bounds__(kThreads)
    sm80_normalize_f32_nhwc(const __grid_constant__ NormalizeArgs args) {
  convert_tile(args, [&](uint32_t image, uint32_t channel, uint32_t pixel) {
    const float *row = reinterpret_cast<const float *>(args.x + image * args.row_pitch_bytes);
    return __ldg(row + static_cast<int64_t>(pixel) * args.channels + channel);
  });
}
