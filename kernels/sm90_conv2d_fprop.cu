// Dense convolution, forward, on Hopper.
#include "activation.cuh"
#include "gelu.cuh"
#include "sm90_conv2d_fprop.cuh"

// The tiles. A test compares these lines with the table in select.rs.
//                     slabs  parts  pixels  stages  chunk  chunks  blocks an SM
using Tile128x256 = Sm90Tile<2, 1, 256, 4, 64, 2, 1>;
using Tile128x192 = Sm90Tile<2, 1, 192, 4, 64, 3, 1>;
using Tile128x144 = Sm90Tile<2, 1, 144, 5, 48, 3, 1>;
using Tile128x128 = Sm90Tile<2, 1, 128, 6, 64, 2, 1>;
using Tile128x64 = Sm90Tile<2, 1, 64, 4, 64, 1, 2>;
using Tile64x256 = Sm90Tile<1, 2, 128, 4, 64, 2, 1>;
using Tile64x128 = Sm90Tile<1, 2, 64, 4, 64, 1, 2>;
using Tile64x64 = Sm90Tile<1, 1, 64, 6, 64, 1, 2>;
using Tile64x32 = Sm90Tile<1, 1, 32, 8, 32, 1, 2>;

// Purpose    y[i][p][q][n] = act(sum over r, s, c of x[i][p*stride_h - pad_top + r*dilation_h]
//                                                       [q*stride_w - pad_left + s*dilation_w][c] * filter[n][r][s][c]
//            + the same sum of a second source + bias[n] + residual[i][p][q][n]); x is zero outside the image. The
//            second source, a convolution with the same output pixels and channels, may be missing.
// Operands   x         read   of each source: halves [images][height][width][C], by its map
//            filter    read   of each source: halves [k_stored][filter_h][filter_w][64 * c_steps], by its map: channels in
//                             their order, if they are 64 or more the last step's at its end, zeros in all others
//            bias      read   floats [k_stored], zeros in padded channels
//            residual  read   halves like y, disjoint from it; its address null: not read
//            y         write  halves [images][P][Q][k_stored], pixels y_pitch apart, disjoint from each x
//            Both are by their maps, by their addresses where blocks of one warpgroup share a tile.
//            All are row-major, but for y's pixels without gaps, at multiples of 16 bytes; channel counts and y_pitch are
//            multiples of 8. The maps
//            swizzle by 128 bytes and fill with zeros; their boxes are those that Sm90ConvArgs names.
// Arithmetic half products, float sums in a fixed order, one rounding to half at the end (overflow becomes infinity).
//            The activation is none or a bound, SiLU by entries *_silu, or GELU by entries *_gelu, in halves (gelu.cuh), for
//            which sums are rounded before it too. NaN stays NaN; minus infinity becomes NaN by SiLU, and so may results
//            of an infinite x, where C is no multiple of 64: zeros meet channels that two steps have. Padded channels of y
//            come out zero if x is finite.
// Launch     grid up to `tiles` blocks, best as many as run at once: a block takes every gridDim.x-th tile. Tiles of one
//            warpgroup (kSplits): or clusters of 2, 4 or 8 blocks, `tiles` of them, each of which shares a tile: a block
//            sums a part of the steps, then adds up what all have for a part of the tile. Tiles of 128 channels (kPairs):
//            or clusters of 2, with an even channel_tiles; x's box is then half as many pixels. Tiles with kPairs and
//            kSplits: or clusters of 4, `tiles` / 2 of them, each with two tiles: a pair sums one half of their steps, then
//            adds up both halves for 64 channels of each. Grid 2 * `tiles` then.
//            Block and dynamic shared memory as the tile's kThreads and kSharedBytes, kMinBlocks on a multiprocessor.
//            tiles = ceil(m_pixels / kPixels) * channel_tiles, channel_tiles = ceil(k_stored / kChannels).
//            compute capability 9.0 exactly.
// Limits     strides up to 8; padding and (taps - 1) * dilation up to 127; pixels of x and y, and tiles, below 2^31.
//            Tails in pixels, channels and k are the maps', of residual and y the kernel's where blocks of one warpgroup
//            share a tile: nothing outside the operands is read or written. The launcher checks all of it. Deterministic,
//            no atomics: a cluster adds its blocks' sums in their order.
// Ordering   may be launched before its predecessor has ended, and lets its successor be, but only after
//            griddepcontrol.wait: reads x and residual, and writes y, only after that too; filter and bias before.
// Source     implicit GEMM as in CUTLASS (Thakkar et al., 2017-2024); wgmma, tensor maps, mbarrier: PTX ISA 9.0.
#define TREFOIL_SM90_CONV2D_FPROP(tile)                                                                         \
  extern "C" __global__ void __launch_bounds__(Tile##tile::kThreads, Tile##tile::kMinBlocks)                                         \
      TREFOIL_ENTRY(sm90_conv2d_fprop_##tile)(const __grid_constant__ Sm90ConvArgs args) {                      \
    sm90_conv2d_fprop<Tile##tile>(args);                                                                        \
  }

TREFOIL_SM90_CONV2D_FPROP(128x256)
TREFOIL_SM90_CONV2D_FPROP(128x192)
TREFOIL_SM90_CONV2D_FPROP(128x144)
TREFOIL_SM90_CONV2D_FPROP(128x128)
TREFOIL_SM90_CONV2D_FPROP(128x64)
TREFOIL_SM90_CONV2D_FPROP(64x256)
TREFOIL_SM90_CONV2D_FPROP(64x128)
TREFOIL_SM90_CONV2D_FPROP(64x64)
TREFOIL_SM90_CONV2D_FPROP(64x32)
