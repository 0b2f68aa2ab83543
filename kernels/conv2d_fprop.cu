// Dense convolution, forward.
#include "gemm_tiles.cuh"

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
    implicit_gemm<Tile##tile>(args);                                                                    \
  }

TREFOIL_CONV2D_FPROP(256x128)
TREFOIL_CONV2D_FPROP(256x64)
TREFOIL_CONV2D_FPROP(128x128)
TREFOIL_CONV2D_FPROP(128x64)
TREFOIL_CONV2D_FPROP(128x32)
TREFOIL_CONV2D_FPROP(64x64)
TREFOIL_CONV2D_FPROP(32x64)
