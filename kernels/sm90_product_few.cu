// Matrix product with a transformer's epilogues, on Hopper, for few rows; norms of rows within it.
#include "element.cuh"
#include "product_epilogue.cuh"
#include "sm90_product_split.cuh"

// The tiles. A test compares these lines with the table in sm90_product.rs.
//                          rows, stages, most parts
using Split64x32 = SplitTile<32, 8, 4>;
using Split64x40 = SplitTile<40, 7, 4>;
using Split64x72 = SplitTile<72, 6, 1>;

// Purpose    y[m][n] = act(sum over k of x[m][k] * w[n][k] + bias[n]) * scale[n] + residual[m][n]
//            of_norm_*: what act is of is of the row less its mean, over the root of its variance and epsilon:
//              act((sum over k of x[m][k] * w[n][k] - mean[m] * weight_sums[n]) / sqrt(variance[m] + epsilon) + bias[n]);
//              centred 0: mean 0, and the mean of squares for the variance (RMSNorm)
//            for_norm_*: and statistics[n / 64][m] = mean of y[m][n..n + 64], sum of squares of distances from it
// Operands   as those of sm90_product.cu, but that y is written by its address, rows y_pitch apart
//            statistics       floats [ceil(k / 64)][m, and one more if it is odd][2] of x, read by of_norm_*, as
//                             for_norm_* has written them; or [ceil(n / 64)][..][2] of y, written by for_norm_*.
//                             At a multiple of 16 bytes, disjoint from what else is written
//            weight_sums read floats [n]: the sums of the elements w[n]
//            Elements are f16, or bf16 by entries *_bf16.
// Arithmetic as that of sm90_product.cu. A cluster adds its blocks' sums in their order. Statistics are of the rounded
//            elements, in float: a mean, then distances from it; parts are joined in their order, with quotients and a
//            root that are off by two units of the last place. A row with NaN or infinity becomes NaN.
// Launch     clusters of 1, 2 or 4 blocks, the tile's kMostParts at most, `tiles` of them, each of which shares a tile: a
//            block sums a part of the steps, then adds up what all have for some of the tile's rows. tiles =
//            ceil(m / kTileM) * n_tiles, n_tiles = ceil(n / kTileN). Two blocks on a multiprocessor. Block and dynamic
//            shared memory as the tile's kThreads and kSharedBytes; kNormThreads and kNormedBytes with of_norm_*. Compute
//            capability 9.0 exactly.
// Limits     m, n and tiles * steps below 2^31 - 256. Tails in m, n and k are the maps', of y the kernel's: nothing
//            outside the operands is read or written. The launcher checks all of it. Deterministic, no atomics.
// Ordering   may be launched before its predecessor has ended, and lets its successor be once that has; in kernels without a
//            norm blocks of up to kMostShortSteps steps that add a residual let it be at once. Reads x, residual and
//            statistics, and writes y, only after griddepcontrol.wait; w, its sums, bias and scale before.
// Source     wgmma, tensor maps, mbarrier, distributed shared memory: PTX ISA 9.0.
#define TREFOIL_SM90_PRODUCT_SPLIT(tile, threads, norm, kNorm, kind, Activation)                                  \
  extern "C" __global__ void __launch_bounds__(Split##tile::threads, Split##tile::kMinBlocks)                     \
      TREFOIL_ENTRY(sm90_product_##norm##split_##tile##_##kind)(const __grid_constant__ Sm90ProductArgs args) {   \
    sm90_product_split<Split##tile, kNorm, Activation>(args);                                                     \
  }

#define TREFOIL_SM90_PRODUCTS_SPLIT(tile)                                                                         \
  TREFOIL_SM90_PRODUCT_SPLIT(tile, kThreads, , Norm::kNone, clamped, Clamped)                                     \
  TREFOIL_SM90_PRODUCT_SPLIT(tile, kThreads, , Norm::kNone, sigmoid, Sigmoid)                                     \
  TREFOIL_SM90_PRODUCT_SPLIT(tile, kThreads, , Norm::kNone, ramp, Ramp)                                           \
  TREFOIL_SM90_PRODUCT_SPLIT(tile, kThreads, , Norm::kNone, erf, Erf)                                             \
  TREFOIL_SM90_PRODUCT_SPLIT(tile, kNormThreads, of_norm_, Norm::kOfX, clamped, Clamped)                          \
  TREFOIL_SM90_PRODUCT_SPLIT(tile, kNormThreads, of_norm_, Norm::kOfX, sigmoid, Sigmoid)                          \
  TREFOIL_SM90_PRODUCT_SPLIT(tile, kNormThreads, of_norm_, Norm::kOfX, erf, Erf)                                  \
  TREFOIL_SM90_PRODUCT_SPLIT(tile, kThreads, for_norm_, Norm::kOfY, clamped, Clamped)

TREFOIL_SM90_PRODUCTS_SPLIT(64x32)
TREFOIL_SM90_PRODUCTS_SPLIT(64x40)
TREFOIL_SM90_PRODUCTS_SPLIT(64x72)
