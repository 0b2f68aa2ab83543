// Fully connected layer.
#include "gemm_tiles.cuh"

// Purpose    y[i][n] = act(sum over c of x[i][c] * filter[n][c] + bias[n]): a 1x1 convolution of a 1x1 image, kept in
//            float because the classifier's sums are compared and exponentiated.
// Operands   x         read   halves [images][8 * c_chunks]
//            filter    read   halves [k_stored][8 * c_chunks], zeros in padded channels
//            bias      read   floats [k_stored], zeros in padded channels
//            residual  null
//            y         write  floats [images][k_stored]
//            All are row-major, without gaps, at multiples of 16 bytes, disjoint; channel counts are multiples of 8.
// Arithmetic half products, float sums in a fixed order, no rounding to half. NaN stays NaN.
// Launch, limits, source: as in conv2d_fprop.cu, with height = width = filter_h = filter_w = 1.
#define TREFOIL_LINEAR(tile)                                                                                    \
  extern "C" __global__ void __launch_bounds__(Tile##tile::kThreads, Tile##tile::kMinBlocks)                    \
      sm80_linear_##tile(const __grid_constant__ ImplicitGemmArgs args) {                                       \
    implicit_gemm<Tile##tile, float>(args);                                                                     \
  }

TREFOIL_LINEAR(128x64)
TREFOIL_LINEAR(64x64)
TREFOIL_LINEAR(32x64)
