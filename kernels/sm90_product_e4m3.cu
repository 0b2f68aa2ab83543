// Matrix product of numbers of e4m3 with a transformer's epilogues, on Hopper.
#include "product_epilogue.cuh"
#include "sm90_product.cuh"

template <bool kPromotes_, bool kWritesBytes_> struct ProductOfE4m3 {
  using Operand = E4m3;
  static constexpr bool kHasUnits = true, kPromotes = kPromotes_, kWritesBytes = kWritesBytes_;
};

// The tiles. A test compares these lines with the table in sm90_product_e4m3.rs.
//                                                     in turns, channels, rows, stages, buffers, operands
template <bool kBytes> using Tile128x192 = ProductTile<true, 128, 192, 4, 3, ProductOfE4m3<false, kBytes>>;
template <bool kBytes> using Long128x192 = ProductTile<false, 128, 192, 4, 0, ProductOfE4m3<true, kBytes>>;
template <bool kBytes> using Long128x64 = ProductTile<true, 128, 64, 6, 3, ProductOfE4m3<true, kBytes>>;

// Purpose    y[m][n] = act(sum over k of x[m][k] * w[n][k] * factor * unit[n] + bias[n]) * scale[n] + residual[m][n]; by
//            entries *_bytes e4m3(act(...) * scale[n] * result_factor)
// Operands   x         read   codes of e4m3 [m][k], rows at a distance, by its map
//            w         read   codes of e4m3 [n][k], by its map; by *_bytes of each 16 rows the even ones before the odd ones
//            unit      read   floats [n], null: ones
//            bias      read   floats [n], null: zeros
//            scale     read   floats [n], null: ones
//            residual  read   f16 [m][n], rows at a distance, by its map; null: zeros. Disjoint from y. Not by *_bytes
//            y         write  f16 [m][n], or codes of e4m3; rows at a distance, by its map; disjoint from x
//            Matrices are at multiples of 16 bytes, n, k and pitches of bytes multiples of 16. The maps swizzle by 128 bytes,
//            that of y by 64 where it is of bytes, and fill with zeros; their elements are pairs of codes, and their boxes
//            those that Sm90ProductArgs names.
// Arithmetic exact products, sums of about 14 bits in the tensor core, which Long* adds up in float every 128 of k; float
//            bias, activation, scale and residual; one rounding at the end, to nearest even: to f16 (overflow becomes
//            infinity), or to e4m3 (overflow becomes 448 with its sign, NaN the code 0x7f). Activations are as those of
//            sm90_product.cu. A code 0x7f or 0xff makes the sums NaN that it goes into.
// Launch     as Tile* of sm90_product.cu.
// Limits     m, n and tiles * steps below 2^31 - 256. Tails in m, n and k are the maps': nothing outside the operands is read
//            or written. The launcher checks all of it. Deterministic, no atomics.
// Ordering   as sm90_product.cu.
// Source     Micikevicius et al., FP8 Formats for Deep Learning (2022); sums every 128 of k as in DeepGEMM (2025); wgmma:
//            PTX ISA 9.0.
#define TREFOIL_SM90_PRODUCT_E4M3(tile, kind, Activation, bytes, suffix)                                          \
  extern "C" __global__ void __launch_bounds__(tile<bytes>::kThreads, 1)                                          \
      sm90_product_e4m3_##tile##_##kind##suffix(const __grid_constant__ Sm90ProductArgs args) {                   \
    sm90_product<tile<bytes>, Activation>(args);                                                                  \
  }

#define TREFOIL_SM90_PRODUCTS_E4M3(kind, Activation)                                                              \
  TREFOIL_SM90_PRODUCT_E4M3(Tile128x192, kind, Activation, false, )                                               \
  TREFOIL_SM90_PRODUCT_E4M3(Tile128x192, kind, Activation, true, _bytes)                                          \
  TREFOIL_SM90_PRODUCT_E4M3(Long128x192, kind, Activation, false, )                                               \
  TREFOIL_SM90_PRODUCT_E4M3(Long128x192, kind, Activation, true, _bytes)                                          \
  TREFOIL_SM90_PRODUCT_E4M3(Long128x64, kind, Activation, false, )                                                \
  TREFOIL_SM90_PRODUCT_E4M3(Long128x64, kind, Activation, true, _bytes)

TREFOIL_SM90_PRODUCTS_E4M3(clamped, Clamped)
TREFOIL_SM90_PRODUCTS_E4M3(sigmoid, Sigmoid)
TREFOIL_SM90_PRODUCTS_E4M3(ramp, Ramp)
TREFOIL_SM90_PRODUCTS_E4M3(erf, Erf)
