// Fully connected layer.
//
// There are few images and outputs and many channels, so what takes the time is the way of both operands to the
// multiprocessors. Each warp of a block has a share of the channels, and loads its operands from global memory straight
// into the registers that the products read: a lane's 16 bytes are k 2t, 2t + 1, 2t + 8, 2t + 9 of two products, of
// both operands alike, for the order of the sum is free. The warps' sums are added at the end.
#include "common.cuh"

struct LinearArgs {
  const uint4 *x;       // [images][c_chunks] chunks of halves
  const uint4 *filter;  // [k_stored][c_chunks] chunks of halves
  const float *bias;    // [k_stored]
  float *y;             // [images][k_stored]
  int32_t images;
  int32_t c_chunks;
  int32_t k_stored;
  int32_t activation;
  FastDivide by_n_tiles;
};
static_assert(sizeof(LinearArgs) == 56, "mirrored in linear.rs");
static_assert(offsetof(LinearArgs, images) == 32 && offsetof(LinearArgs, by_n_tiles) == 48, "mirrored in linear.rs");

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroupChunks = 4;  // that the lanes of a row load together: 32 channels

// A block's images and outputs, as fragments of 16 and 8.
template <int kTileM_, int kTileN_> struct LinearTile {
  static constexpr int kTileM = kTileM_, kTileN = kTileN_;
  static constexpr int kFragsM = kTileM / 16, kFragsN = kTileN / 8;
  static constexpr int kRows = 2 * kFragsM + kFragsN;                    // that a lane loads of, in a group
  static constexpr int kAhead = 32 / kRows < 8 ? 32 / kRows : 8;         // groups in flight
  static constexpr int kPitch = kTileN + 8;                              // of a row of sums, past bank conflicts
  static_assert(kTileM % 16 == 0 && kTileN % 8 == 0 && kAhead >= 1, "whole fragments");
};

// One warp's operands of a group of channels: rows g, g + 8, … of the tile for lanes 4g to 4g + 3.
template <class Tile> struct Operands {
  uint4 x[2 * Tile::kFragsM];
  uint4 filter[Tile::kFragsN];

  __device__ __forceinline__ void load(const LinearArgs &args, int32_t m, int32_t n, int32_t chunk) {
#pragma unroll
    for (int i = 0; i < Tile::kFragsN; ++i) {
      const int32_t row = n + i * 8;
      filter[i] = load_u32x4_or_zero(args.filter + static_cast<int64_t>(row) * args.c_chunks + chunk,
                                     row < args.k_stored && chunk < args.c_chunks);
    }
#pragma unroll
    for (int i = 0; i < 2 * Tile::kFragsM; ++i) {
      const int32_t row = m + i * 8;
      x[i] = load_u32x4_or_zero(args.x + static_cast<int64_t>(row) * args.c_chunks + chunk,
                                row < args.images && chunk < args.c_chunks);
    }
  }

  // Keeps products behind the loads of every group in flight.
  __device__ __forceinline__ void use() {
#pragma unroll
    for (uint4 &chunk : x) keep_order(chunk);
#pragma unroll
    for (uint4 &chunk : filter) keep_order(chunk);
  }

  __device__ __forceinline__ void multiply(float (&acc)[Tile::kFragsM][Tile::kFragsN][4]) const {
#pragma unroll
    for (int i = 0; i < Tile::kFragsM; ++i) {
      const uint4 &low = x[2 * i], &high = x[2 * i + 1];
      const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int j = 0; j < Tile::kFragsN; ++j) {
        mma_m16n8k16(acc[i][j], first, filter[j].x, filter[j].y);
        mma_m16n8k16(acc[i][j], second, filter[j].z, filter[j].w);
      }
    }
  }
};

template <class Tile> TREFOIL_DEVICE void linear(const LinearArgs &args) {
  __shared__ float sums[kWarps][16][Tile::kPitch];
  const uint32_t n_tiles = (args.k_stored + Tile::kTileN - 1) / Tile::kTileN;
  const uint32_t m_tile = divide(blockIdx.x, args.by_n_tiles);
  const int32_t m_first = m_tile * Tile::kTileM, n_first = (blockIdx.x - m_tile * n_tiles) * Tile::kTileN;
  const int32_t warp = threadIdx.x / 32, lane_row = threadIdx.x % 32 / 4, lane_chunk = threadIdx.x % 4;

  float acc[Tile::kFragsM][Tile::kFragsN][4] = {};  // [m fragment][n fragment][register]

  // Main loop: the warps take groups of channels in turn.
  const int32_t groups = (args.c_chunks + kGroupChunks - 1) / kGroupChunks;
  for (int32_t first = warp; first < groups; first += kWarps * Tile::kAhead) {
    Operands<Tile> operands[Tile::kAhead];
#pragma unroll
    for (int i = 0; i < Tile::kAhead; ++i)
      operands[i].load(args, m_first + lane_row, n_first + lane_row, (first + i * kWarps) * kGroupChunks + lane_chunk);
#pragma unroll
    for (int i = 0; i < Tile::kAhead; ++i) operands[i].use();
#pragma unroll
    for (int i = 0; i < Tile::kAhead; ++i) operands[i].multiply(acc);
  }

  // Epilogue: the warps' sums, 16 images at a time. A lane holds outputs 2t, 2t + 1 of rows g and g + 8.
#pragma unroll
  for (int i = 0; i < Tile::kFragsM; ++i) {
    if (i > 0) __syncthreads();
#pragma unroll
    for (int j = 0; j < Tile::kFragsN; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2 *>(&sums[warp][lane_row + half * 8][j * 8 + lane_chunk * 2]) =
            make_float2(acc[i][j][half * 2], acc[i][j][half * 2 + 1]);
    __syncthreads();
#pragma unroll
    for (int item = threadIdx.x; item < 16 * Tile::kTileN; item += kThreads) {
      const int32_t row = item / Tile::kTileN, column = item % Tile::kTileN;
      const int32_t m = m_first + i * 16 + row, n = n_first + column;
      float sum = 0.0f;
#pragma unroll
      for (int of = 0; of < kWarps; ++of) sum += sums[of][row][column];
      if (m < args.images && n < args.k_stored)
        args.y[static_cast<int64_t>(m) * args.k_stored + n] = activate(sum + __ldg(args.bias + n), args.activation);
    }
  }
}

// Purpose    y[i][n] = act(sum over c of x[i][c] * filter[n][c] + bias[n]), kept in float because the classifier's sums
//            are compared and exponentiated.
// Operands   x         read   halves [images][8 * c_chunks]
//            filter    read   halves [k_stored][8 * c_chunks], zeros in padded channels
//            bias      read   floats [k_stored], zeros in padded channels
//            y         write  floats [images][k_stored]
//            All are row-major, without gaps, at multiples of 16 bytes, disjoint; channel counts are multiples of 8.
// Arithmetic half products, float sums in a fixed order, no rounding to half. NaN stays NaN.
// Launch     grid ceil(images / kTileM) * ceil(k_stored / kTileN), block kThreads, no dynamic shared memory; sm_80 and
//            later.
// Limits     every count positive; images and 8 * c_chunks below 2^28, k_stored below 2^20. Any tail: what is beyond is
//            read as zero and not written. Deterministic, no atomics.
// Source     fragments of mma.m16n8k16 as in PTX ISA 9.0.
#define TREFOIL_LINEAR(tile_m, tile_n)                                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                     \
      sm80_linear_##tile_m##x##tile_n(const __grid_constant__ LinearArgs args) {                                \
    linear<LinearTile<tile_m, tile_n>>(args);                                                                   \
  }

TREFOIL_LINEAR(64, 32)
TREFOIL_LINEAR(32, 32)
TREFOIL_LINEAR(32, 16)
TREFOIL_LINEAR(32, 8)
TREFOIL_LINEAR(16, 8)
