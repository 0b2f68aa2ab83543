// Dense convolution, forward.
#include "gemm_tiles.cuh"

// The one argument of every entry point. Mirrored in conv2d_fprop.rs.
struct ImplicitGemmArgs {
  GemmSource source[1];   // chunks of halves
  GemmResult result;
  const float *bias;      // [k_stored]
  const uint4 *residual;  // [m_pixels][k_stored / 8] chunks of halves, or null
  uint4 *y;               // the same, pixels y_chunks apart
  int32_t activation;
  int32_t y_chunks;       // from one pixel of y to the next
};
static_assert(sizeof(ImplicitGemmArgs) == 152, "mirrored in conv2d_fprop.rs");
static_assert(offsetof(ImplicitGemmArgs, bias) == 120, "mirrored in conv2d_fprop.rs");

// Makes halves of sums of floats.
struct HalfEpilogue {
  template <class Tile>
  static __device__ __forceinline__ void load_channel(const ImplicitGemmArgs &args, uint32_t smem, int32_t i, int32_t n,
                                                      bool exists) {
    store_shared_u32(smem + i * 4, __float_as_uint(exists ? __ldg(args.bias + n) : 0.0f));
  }

  // A lane holds channels col, col + 1 of rows row and row + 8.
  template <class Tile>
  static __device__ __forceinline__ void finish(const ImplicitGemmArgs &args,
                                                const float (&acc)[Tile::kFragsM][Tile::kFragsN][4],
                                                const OutTile<Tile> &out, uint32_t smem_bias, uint32_t lane_row,
                                                uint32_t warp_col) {
    const bool has_residual = args.residual != nullptr;
    const uint32_t lane_col = warp_col + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < Tile::kFragsN; ++j) {
      const uint32_t col = lane_col + j * 8;
      const float2 bias = load_shared_f32x2(smem_bias + col * 4);
#pragma unroll
      for (int i = 0; i < Tile::kFragsM * 2; ++i) {
        const uint32_t row = lane_row + i * 8;
        float2 sum = make_float2(acc[i / 2][j][i % 2 * 2] + bias.x, acc[i / 2][j][i % 2 * 2 + 1] + bias.y);
        const uint32_t address = out.chunk_address(row, col / kChunkElems) + col % kChunkElems * 2;
        if (has_residual) {
          const float2 residual = unpack_half2(load_shared_u32(address));
          sum.x += residual.x, sum.y += residual.y;
        }
        store_shared_u32(address, pack_half2(activate(sum.x, args.activation), activate(sum.y, args.activation)));
      }
    }
  }
};

// Purpose    y[i][p][q][n] = act(sum over r, s, c of x[i][p*stride_h - pad_top + r*dilation_h]
//                                                       [q*stride_w - pad_left + s*dilation_w][c] * filter[n][r][s][c]
//            + bias[n] + residual[i][p][q][n]); x is zero outside the image.
// Operands   x         read   halves [images][height][width][8 * c_chunks]
//            filter    read   halves [k_stored][filter_h][filter_w][8 * c_chunks], zeros in padded channels
//            bias      read   floats [k_stored], zeros in padded channels
//            residual  read   halves like y, or null; may be y itself, else disjoint from it
//            y         write  halves [images][P][Q][k_stored], disjoint from x
//            All are row-major, without gaps, at multiples of 16 bytes; channel counts are multiples of 8.
// Arithmetic half products, float sums in a fixed order, one rounding to half at the end (overflow becomes infinity).
//            NaN stays NaN, through every activation. Padded channels of y come out zero if x is finite.
// Launch     grid ceil(m_pixels / tile_m) * ceil(k_stored / tile_n), block and dynamic shared memory as the tile's
//            kThreads and kSharedBytes. compute capability 8.0 and up.
// Limits     coordinates, image sizes and filter extents below 2^14; chunks of x and of filter, pixels + 256 below
//            2^31. Tails in pixels, channels and k are masked: nothing outside the operands is read or written.
//            The launcher checks all of it. Deterministic, no atomics.
// Source     implicit GEMM as in CUTLASS (Thakkar et al., 2017-2024); ldmatrix and mma fragments: PTX ISA 9.0.
#define TREFOIL_CONV2D_FPROP(tile)                                                                              \
  extern "C" __global__ void __launch_bounds__(Tile##tile::kThreads, Tile##tile::kMinBlocks)                    \
      sm80_conv2d_fprop_##tile(const __grid_constant__ ImplicitGemmArgs args) {                                 \
    implicit_gemm<Tile##tile, ImplicitGemmArgs, HalfEpilogue>(args);                                            \
  }

TREFOIL_CONV2D_FPROP(256x128)
TREFOIL_CONV2D_FPROP(256x64)
TREFOIL_CONV2D_FPROP(128x128)
TREFOIL_CONV2D_FPROP(128x64)
TREFOIL_CONV2D_FPROP(128x32)
TREFOIL_CONV2D_FPROP(64x64)
TREFOIL_CONV2D_FPROP(32x64)
