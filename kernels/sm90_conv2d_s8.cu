// Convolution of bytes, forward, on Hopper.
#include "sm90_conv2d_s8_shared.cuh"

// The tiles, named by pixels, output channels, and bytes of input channels in a step. A test compares these lines with the
// table in plan/conv_s8.rs.
//                            channel groups, pixel groups, slabs, pixels of a product, row bytes, stages, blocks an SM
using Tile192x256x128 = S8Tile<2, 1, 2, 192, 128, 3, 1>;
using Tile256x128x128 = S8Tile<2, 1, 1, 256, 128, 4, 1>;
using Tile192x128x128 = S8Tile<2, 1, 1, 192, 128, 5, 1>;
using Tile128x128x128 = S8Tile<2, 1, 1, 128, 128, 3, 2>;
using Tile128x128x64 = S8Tile<1, 2, 2, 64, 64, 5, 2>;
using Tile128x64x128 = S8Tile<1, 2, 1, 64, 128, 4, 2>;
using Tile256x64x64 = S8Tile<1, 2, 1, 128, 64, 4, 2>;
using Tile64x128x128 = S8Tile<2, 1, 1, 64, 128, 4, 2>;
using Tile64x64x128 = S8Tile<1, 1, 1, 64, 128, 6, 2>;
using Tile32x64x128 = S8Tile<1, 1, 1, 32, 128, 8, 2>;
// Of these a block keeps its filters, and has two teams of such warpgroups; a stage has pixels only.
using Tile64x256x128_kept = S8Tile<2, 1, 2, 64, 128, 22, 1, true>;
using Tile64x256x64_kept = S8Tile<2, 1, 2, 64, 64, 44, 1, true>;

// Purpose    sum = bias[n] + sum over r, s, c of x[i][p*stride_h - pad_top + r*dilation_h]
//                                                 [q*stride_w - pad_left + s*dilation_w][c] * filter[n][r][s][c]
//            + the same sum of a second source, a convolution with the same output pixels and channels, which may be
//            missing
//            f = float(sum) * scale[n]; in entry points _add f = fma(residual[i][p][q][n], its scale, f)
//            y[i][p][q][n] = the integer nearest to f, the even one of two, but not below 0 or above 255; or not below
//            -128 or 0 and not above 127. x is zero outside the image.
// Operands   x         read   of each source: bytes [images][height][width][C], by its map; unsigned, of entry points
//                             _s8 signed
//            filter    read   of each source: signed bytes [k_stored][filter_h][filter_w][C], by its map; of each 16
//                             output channels in the order 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15
//            bias      read   int32 [k_stored]
//            scale     read   floats [k_stored], finite
//            residual  read   bytes like y, disjoint from it; of entry points _add only. Its scale is below 2^103
//            y         write  bytes [images][P][Q][k_stored], disjoint from x
//            Both are by their maps, in tiles of one warpgroup by their addresses.
//            S8Output says which bytes are signed.
//            All are row-major without gaps, at multiples of 16 bytes; channel counts are multiples of 16. The maps are of
//            pairs of bytes, swizzle by the bytes of a row in shared memory (128 or 64) and fill with zeros; their boxes are
//            those that Sm90ConvS8Args names.
// Arithmetic exact products and sums in 32 bits, which wrap; then floats, each operation rounded to nearest: the sum to a
//            float, the product with the scale, the fused product and sum with a residual. A result is the same whatever
//            the tile.
// Launch     grid up to `tiles` blocks, best as many as run at once: a block takes every gridDim.x-th tile. Or clusters of
//            2, up to `tiles` of them, which take two pixel tiles at a time; filter's box is then half as many channels.
//            Tiles _kept (kKeeps), whose block keeps the filters of all steps: no clusters, and the grid is a multiple of
//            channel_tiles: two teams of a block take turns with its tiles. steps, of both sources together, up to
//            (kStages - 6) / kFilterStages, which leaves each team three stages: 4 of 64x256x128, 9 of 64x256x64.
//            Tiles of one warpgroup (kShares): grid `tiles` blocks, or as many clusters of up to kPixels / 8 blocks, a power
//            of two and not more than steps, each of which shares a tile: a block sums a part of the steps, then adds up
//            what all have for a part of the pixels.
//            Block and dynamic shared memory as the tile's kThreads and kSharedBytes, kMinBlocks on a multiprocessor.
//            tiles = ceil(m_pixels / kPixels / blocks of a pair) * channel_tiles,
//            channel_tiles = ceil(k_stored / kChannels). Compute capability 9.0 exactly.
// Limits     strides up to 8; padding and (taps - 1) * dilation up to 127; pixels of x and y, and tiles, below 2^31;
//            filter_h * filter_w * C of both sources together up to 2^16, so that sums without a bias do not wrap. Tails
//            in pixels, channels and k are the maps', of residual and y in tiles of one warpgroup the kernel's: nothing
//            outside the operands is read or written. The launcher checks all of it. Deterministic, no atomics.
// Ordering   may be launched before its predecessor has ended, and lets its successor be, but only after
//            griddepcontrol.wait: reads x and residual, and writes y, only after that too; filter before; bias and scale
//            are of no launch.
// Source     implicit GEMM as in CUTLASS (Thakkar et al., 2017-2024); wgmma, tensor maps, mbarrier: PTX ISA 9.0;
//            quantisation with scales of each channel as in Jacob et al., 2018.
#define TREFOIL_SM90_CONV2D_S8(tile, body, name, is_signed, adds)                                               \
  extern "C" __global__ void __launch_bounds__(Tile##tile::kThreads, Tile##tile::kMinBlocks)                    \
      sm90_conv2d_##name##_##tile(const __grid_constant__ Sm90ConvS8Args args) {                                \
    sm90_conv2d_##body<Tile##tile, is_signed, adds>(args);                                                      \
  }
#define TREFOIL_SM90_CONV2D_S8_ALL(tile, body)                                                                  \
  TREFOIL_SM90_CONV2D_S8(tile, body, u8, false, false)                                                          \
  TREFOIL_SM90_CONV2D_S8(tile, body, u8_add, false, true)                                                       \
  TREFOIL_SM90_CONV2D_S8(tile, body, s8, true, false)                                                           \
  TREFOIL_SM90_CONV2D_S8(tile, body, s8_add, true, true)

TREFOIL_SM90_CONV2D_S8_ALL(192x256x128, s8)
TREFOIL_SM90_CONV2D_S8_ALL(256x128x128, s8)
TREFOIL_SM90_CONV2D_S8_ALL(192x128x128, s8)
TREFOIL_SM90_CONV2D_S8_ALL(128x128x128, s8)
TREFOIL_SM90_CONV2D_S8_ALL(128x128x64, s8)
TREFOIL_SM90_CONV2D_S8_ALL(128x64x128, s8)
TREFOIL_SM90_CONV2D_S8_ALL(256x64x64, s8)
TREFOIL_SM90_CONV2D_S8_ALL(64x128x128, s8)
TREFOIL_SM90_CONV2D_S8_ALL(64x64x128, s8_shared)
TREFOIL_SM90_CONV2D_S8_ALL(32x64x128, s8_shared)
TREFOIL_SM90_CONV2D_S8_ALL(64x256x128_kept, s8)
TREFOIL_SM90_CONV2D_S8_ALL(64x256x64_kept, s8)
