// Convolution of bytes, forward.
#include "implicit_gemm.cuh"
#include "requantise.cuh"

// Pixels of unsigned or signed bytes and filters of signed ones, whose products are summed in 32 bits.
template <bool kSigned> struct Bytes {
  using Sum = int32_t;
  static constexpr int kBytes = 1;
  static __device__ __forceinline__ void multiply(Sum (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_m16n8k32<kSigned>(d, a, b0, b1);
  }
};

// The one argument of every entry point. Mirrored in conv2d_s8.rs.
struct ConvS8Args {
  GemmSource source[2];   // chunks of bytes
  GemmResult result;
  const int32_t *bias;    // [k_stored]
  const float *scale;     // [k_stored]
  const uint4 *residual;  // [m_pixels][k_stored / 16] chunks of bytes, or null
  uint4 *y;               // the same
  ByteResult bytes;
  int32_t y_chunks;       // from one pixel of y to the next
  int32_t reserved;
};
static_assert(sizeof(ConvS8Args) == 256, "mirrored in conv2d_s8.rs");
static_assert(offsetof(ConvS8Args, bias) == 200, "mirrored in conv2d_s8.rs");

// Makes bytes of exact sums.
struct ByteEpilogue {
  // Biases of all channels of a tile, then scales.
  template <class Tile>
  static __device__ __forceinline__ void load_channel(const ConvS8Args &args, uint32_t smem, int32_t i, int32_t n,
                                                      bool exists) {
    store_shared_u32(smem + i * 4, exists ? __ldg(args.bias + n) : 0);
    store_shared_u32(smem + (Tile::kTileN + i) * 4, __float_as_uint(exists ? __ldg(args.scale + n) : 0.0f));
  }

  // A lane holds four channels of rows row and row + 8 in two fragments: the filters' order puts channels 0 and 2 of the
  // four in the first one, 1 and 3 in the second.
  template <class Tile>
  static __device__ __forceinline__ void finish(const ConvS8Args &args,
                                                const int32_t (&acc)[Tile::kFragsM][Tile::kFragsN][4],
                                                const OutTile<Tile> &out, uint32_t smem_channels, uint32_t lane_row,
                                                uint32_t warp_col) {
    const bool adds = args.residual != nullptr;
    const uint32_t lane_col = warp_col + threadIdx.x % 4 * 4;
#pragma unroll
    for (int j = 0; j < Tile::kFragsN / 2; ++j) {
      const uint32_t col = lane_col + j * 16;
      const uint4 bias = load_shared_u32x4(smem_channels + col * 4);
      const uint4 bits = load_shared_u32x4(smem_channels + (Tile::kTileN + col) * 4);
      const float4 scale = make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                                       __uint_as_float(bits.w));
#pragma unroll
      for (int i = 0; i < Tile::kFragsM * 2; ++i) {
        const uint32_t row = lane_row + i * 8;
        const uint32_t address = out.chunk_address(row, col / 16) + col % 16;
        const int32_t *even = acc[i / 2][2 * j] + i % 2 * 2, *odd = acc[i / 2][2 * j + 1] + i % 2 * 2;
        const int4 sums = make_int4(even[0] + bias.x, odd[0] + bias.y, even[1] + bias.z, odd[1] + bias.w);
        const uint32_t result = adds ? bytes_of<true>(args.bytes, sums, scale, load_shared_u32(address))
                                     : bytes_of<false>(args.bytes, sums, scale, 0);
        store_shared_u32(address, result);
      }
    }
  }
};

// The tiles, in bytes of k. A test compares these lines with the table in plan/kernels/conv2d_fprop.rs.
//                           pixels  channels  k  warps (pixels x channels)  stages  blocks an SM
template <bool kSigned> using Tile256x128 = GemmTile<256, 128, 128, 4, 2, 3, 1, Bytes<kSigned>, 8>;
template <bool kSigned> using Tile128x128 = GemmTile<128, 128, 128, 2, 2, 3, 2, Bytes<kSigned>, 8>;
template <bool kSigned> using Tile256x64 = GemmTile<256, 64, 64, 4, 1, 4, 2, Bytes<kSigned>, 8>;
template <bool kSigned> using Tile128x64 = GemmTile<128, 64, 128, 2, 2, 3, 3, Bytes<kSigned>, 8>;
template <bool kSigned> using Tile64x64 = GemmTile<64, 64, 128, 2, 2, 3, 4, Bytes<kSigned>, 8>;
template <bool kSigned> using Tile32x64 = GemmTile<32, 64, 128, 2, 2, 4, 4, Bytes<kSigned>, 8>;

// Purpose    sum = bias[n] + sum over r, s, c of x[i][p*stride_h - pad_top + r*dilation_h]
//                                                 [q*stride_w - pad_left + s*dilation_w][c] * filter[n][r][s][c]
//            + the same sum of a second source, a convolution with the same output pixels and channels, which may be
//            missing
//            f = float(sum) * scale[n]; with a residual f = fma(residual[i][p][q][n], its scale, f)
//            y[i][p][q][n] = the integer nearest to f, the even one of two, but not below lowest or above highest. x is
//            zero outside the image.
// Operands   x         read   of each source: bytes [images][height][width][16 * c_chunks]; unsigned, of entry points
//                             _s8 signed
//            filter    read   of each source: signed bytes [k_stored][filter_h][filter_w][16 * c_chunks], zeros in padded
//                             channels; of each 16 output channels in the order 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9,
//                             11, 13, 15
//            bias      read   int32 [k_stored], zeros in padded channels
//            scale     read   floats [k_stored], finite
//            residual  read   bytes like y, or null; disjoint from y. Its scale is below 2^103
//            y         write  bytes [images][P][Q][k_stored], disjoint from x
//            All are row-major, without gaps, at multiples of 16 bytes; channel counts are multiples of 16.
// Arithmetic exact products and sums in 32 bits, which wrap; then floats, each operation rounded to nearest: the sum to a
//            float, the product with the scale, the fused product and sum with a residual. A result is the same whatever
//            the tile.
// Launch     grid ceil(m_pixels / tile_m) * ceil(k_stored / tile_n), block and dynamic shared memory as the tile's
//            kThreads and kSharedBytes. compute capability 8.0 and up.
// Limits     as conv2d_fprop.cu for each source; filter_h * filter_w * C of both sources together up to 2^16, so that sums
//            without a bias do not wrap. The launcher checks all of it. Deterministic, no atomics.
// Source     implicit GEMM as in CUTLASS (Thakkar et al., 2017-2024); ldmatrix and mma fragments: PTX ISA 9.0;
//            quantisation with scales of each channel as in Jacob et al., 2018.
#define TREFOIL_CONV2D_S8(tile, name, is_signed)                                                                \
  extern "C" __global__ void __launch_bounds__(Tile##tile<is_signed>::kThreads, Tile##tile<is_signed>::kMinBlocks) \
      sm80_conv2d_##name##_##tile(const __grid_constant__ ConvS8Args args) {                                    \
    implicit_gemm<Tile##tile<is_signed>, ConvS8Args, ByteEpilogue>(args);                                       \
  }
#define TREFOIL_CONV2D_S8_BOTH(tile)    \
  TREFOIL_CONV2D_S8(tile, u8, false)    \
  TREFOIL_CONV2D_S8(tile, s8, true)

TREFOIL_CONV2D_S8_BOTH(256x128)
TREFOIL_CONV2D_S8_BOTH(128x128)
TREFOIL_CONV2D_S8_BOTH(256x64)
TREFOIL_CONV2D_S8_BOTH(128x64)
TREFOIL_CONV2D_S8_BOTH(64x64)
TREFOIL_CONV2D_S8_BOTH(32x64)
