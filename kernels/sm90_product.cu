// Matrix product with a transformer's epilogues, on Hopper.
#include "element.cuh"
#include "product_epilogue.cuh"
#include "sm90_product.cuh"

// The tiles. A test compares these lines with the table in sm90_product.rs.
//                       in turns, channels, rows, stages, buffers
using Tile128x192 = ProductTile<true, 128, 192, 4, 3>;
using Tile128x184 = ProductTile<true, 128, 184, 4, 3>;
using Tile128x176 = ProductTile<true, 128, 176, 4, 3>;
using Tile128x168 = ProductTile<true, 128, 168, 4, 3>;
using Tile128x144 = ProductTile<true, 128, 144, 5, 3>;
using Tile128x128 = ProductTile<true, 128, 128, 5, 3>;
using Tile128x64 = ProductTile<true, 128, 64, 6, 3>;
using Tile192x192 = ProductTile<false, 192, 192, 4, 0>;
using Tile128x256 = ProductTile<false, 128, 256, 4, 0>;
using Pair128x192 = ProductPair<true, 128, 192, 4, 3>;
using Pair128x184 = ProductPair<true, 128, 184, 4, 3>;
using Pair128x168 = ProductPair<true, 128, 168, 4, 3>;

// Purpose    y[m][n] = act(sum over k of x[m][k] * w[n][k] + bias[n]) * scale[n] + residual[m][n]
// Operands   x         read   elements [m][k], rows at a distance, by its map
//            w         read   elements [n][k], by its map
//            bias      read   floats [n], null: zeros
//            scale     read   floats [n], null: ones
//            residual  read   elements [m][n], rows at a distance, by its map; null: zeros. Disjoint from y
//            y         write  elements [m][n], rows y_pitch apart, by its map; disjoint from x
//            Elements are f16, or bf16 by entries *_bf16.
//            Matrices are at multiples of 16 bytes, n, k and pitches multiples of 8. The maps swizzle by 128 bytes and
//            fill with zeros; their boxes are those that Sm90ProductArgs names.
// Arithmetic products of elements, float sums in a fixed order, float bias, activation, scale and residual, one rounding
//            to an element at the end, to nearest even (overflow becomes infinity). The activation is of the entry's
//            kind, as product_epilogue.cuh has it: clamped (none, ReLU), sigmoid (SiLU, QuickGELU, GELU by tanh), ramp
//            (hard swish), erf (GELU by erf), with two numbers of the launch. By erf of f16 sum and bias are rounded to
//            f16 before the activation, and what it gives before scale and residual. NaN stays NaN; an infinite sum
//            becomes NaN by a sigmoid, and minus infinity by a ramp.
// Launch     Tile*: grid up to `tiles` blocks, best as many as run at once: a block takes every gridDim.x-th tile, its
//            two warpgroups in turns, or all together. tiles = ceil(m / kTileM) * n_tiles, n_tiles =
//            ceil(n / kTileN). One block on a multiprocessor.
//            Pair*: as Tile*, in clusters of two blocks, which have neighbouring channels of the same rows: n_tiles and the
//            grid are even.
//            Block and dynamic shared memory as the tile's kThreads and kSharedBytes. Compute capability 9.0 exactly.
// Limits     m, n and tiles * steps below 2^31 - 256. Tails in m, n and k are the maps': nothing outside the operands is
//            read or written. The launcher checks all of it. Deterministic, no atomics.
// Ordering   may be launched before its predecessor has ended, and lets its successor be: reads x and residual, and
//            writes y, only after griddepcontrol.wait; w, bias and scale before.
// Source     warpgroups in turns as in CUTLASS (Thakkar et al., 2017-2024, "ping-pong"); wgmma, tensor maps, mbarrier:
//            PTX ISA 9.0.
#define TREFOIL_SM90_PRODUCT(tile, kind, Activation)                                                              \
  extern "C" __global__ void __launch_bounds__(Tile##tile::kThreads, 1)                                           \
      TREFOIL_ENTRY(sm90_product_##tile##_##kind)(const __grid_constant__ Sm90ProductArgs args) {                 \
    sm90_product<Tile##tile, Activation>(args);                                                                   \
  }

#define TREFOIL_SM90_PRODUCT_PAIR(tile, kind, Activation)                                                         \
  extern "C" __global__ void __launch_bounds__(Pair##tile::kThreads, 1)                                           \
      TREFOIL_ENTRY(sm90_product_pair_##tile##_##kind)(const __grid_constant__ Sm90ProductArgs args) {            \
    sm90_product<Pair##tile, Activation>(args);                                                                   \
  }

#define TREFOIL_SM90_PRODUCTS(kind, Activation)                                                                   \
  TREFOIL_SM90_PRODUCT(128x192, kind, Activation)                                                                 \
  TREFOIL_SM90_PRODUCT(128x184, kind, Activation)                                                                 \
  TREFOIL_SM90_PRODUCT(128x176, kind, Activation)                                                                 \
  TREFOIL_SM90_PRODUCT(128x168, kind, Activation)                                                                 \
  TREFOIL_SM90_PRODUCT(128x144, kind, Activation)                                                                 \
  TREFOIL_SM90_PRODUCT(128x128, kind, Activation)                                                                 \
  TREFOIL_SM90_PRODUCT(128x64, kind, Activation)                                                                  \
  TREFOIL_SM90_PRODUCT(192x192, kind, Activation)                                                                 \
  TREFOIL_SM90_PRODUCT(128x256, kind, Activation)                                                                 \
  TREFOIL_SM90_PRODUCT_PAIR(128x192, kind, Activation)                                                            \
  TREFOIL_SM90_PRODUCT_PAIR(128x184, kind, Activation)                                                            \
  TREFOIL_SM90_PRODUCT_PAIR(128x168, kind, Activation)

TREFOIL_SM90_PRODUCTS(clamped, Clamped)
TREFOIL_SM90_PRODUCTS(sigmoid, Sigmoid)
TREFOIL_SM90_PRODUCTS(ramp, Ramp)
#ifdef TREFOIL_BF16
TREFOIL_SM90_PRODUCTS(erf, Erf)
#else
TREFOIL_SM90_PRODUCTS(erf, ErfOfHalves)
#endif
