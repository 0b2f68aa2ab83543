// Convolution of bytes as a matrix product on Hopper: the kernel body of sm90_conv2d_s8.cu.
//
//   S[m][k] = sum over (r, s, c) of X[m][r, s, c] * F[k][r, s, c];  Y[m][k] = requantised(S[m][k], k, residual[m][k])
//
// Pixels lie on the rows of the warpgroup product, 64 at a time, output channels on its columns: then the sums of a thread
// are of neighbouring channels. Filters are stored in an order in which a thread has four channels that follow each other,
// so that its results are a word, and a warp's are matrices as stmatrix stores them. The last warp copies: filters, pixels
// (im2col by the copy engine) and residuals go through one ring of stages, in the order in which they are read, and
// run ahead into the next tile. The other warpgroups multiply, each its own pixels of the tile; each of their warps
// requantises 16 pixels at a time and stores them.
//
// Two blocks with neighbouring pixels may be a pair: each copies half of their filters for both.
#pragma once

#include "common.cuh"
#include "sm90_ptx_s8.cuh"

// The one argument of every entry point. Mirrored in sm90_conv2d_s8.rs.
struct Sm90ConvS8Args {
  TensorMap filter;      // pairs of bytes {C, R * S, K}, box {kRowBytes, 1, channels of the tile or half of them}
  TensorMap x;           // pairs of bytes {C, W, H, images} by windows, or {C, pixels}, of kRowBytes of the tile's pixels
  TensorMap residual;    // pairs of bytes {K, pixels}, box {kOutRowBytes, pixels of the tile}
  TensorMap y;           // pairs of bytes {K, pixels}, box {kOutRowBytes, pixels of a warp}
  const int32_t *bias;   // [k_stored]
  const float *scale;    // [k_stored]
  int32_t k_stored;
  int32_t tiles;         // of a block, or of a pair
  int32_t channel_tiles;
  int32_t out_pixels;    // P * Q
  int32_t out_width;     // Q
  int32_t steps;
  FastDivide by_channel_tiles;
  FastDivide by_out_pixels;
  FastDivide by_out_width;
  int32_t filter_w;
  int32_t c_bytes;       // of all steps of a tap
  int32_t stride_h;
  int32_t stride_w;
  int32_t pad_top;
  int32_t pad_left;
  int32_t dilation_h;
  int32_t dilation_w;
  int32_t by_windows;    // 0: x is a matrix, one filter tap
  int32_t has_residual;
  float residual_scale;
  uint32_t residual_flip;  // what makes its bytes unsigned: 0x80808080 if they are signed, else 0
  float residual_base;     // 2^23, and 128 more if they are signed
  float lowest;            // of a result
  float highest;
  int32_t padding;
};
static_assert(sizeof(Sm90ConvS8Args) == 640, "mirrored in sm90_conv2d_s8.rs");
static_assert(offsetof(Sm90ConvS8Args, bias) == 512 && offsetof(Sm90ConvS8Args, filter_w) == 576,
              "mirrored in sm90_conv2d_s8.rs");

constexpr int kSlabPixels = 64;  // of a warpgroup's product
constexpr int kWarpPixels = 16;  // of a warp's part of it
constexpr int kProductBytes = 32;

// Everything that follows from a tile's shape: kGroups warpgroups with kSlabs times 64 pixels each, all with the same
// kChannels output channels, and steps of kRowBytes input channels of a tap.
template <int kGroups_, int kSlabs_, int kChannels_, int kRowBytes_, int kStages_, int kMinBlocks_> struct S8Tile {
  static constexpr int kGroups = kGroups_, kSlabs = kSlabs_, kChannels = kChannels_, kRowBytes = kRowBytes_;
  static constexpr int kStages = kStages_, kMinBlocks = kMinBlocks_;
  static constexpr int kPixels = kGroups * kSlabs * kSlabPixels, kThreads = 128 * kGroups + 32;

  // A stage: filters, then pixels.
  static constexpr int kFilterBytes = kChannels * kRowBytes, kPixelBytes = kPixels * kRowBytes;
  static constexpr int kStageBytes = kFilterBytes + kPixelBytes;

  // Results go out by warps, in chunks of 16 pixels, from kChunks places for each.
  static constexpr int kOutRowBytes = kChannels < 128 ? kChannels : 128;
  static constexpr int kOutRows = kChannels / kOutRowBytes;  // of a pixel
  static constexpr int kChunks = 2, kChunkBytes = kWarpPixels * kOutRowBytes;
  static constexpr int kResidualBytes = kPixels * kChannels;

  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + 4 * kGroups * kChunks * kChunkBytes;

  static_assert(kFilterBytes % 2048 == 0 && kPixelBytes % 1024 == 0 && kChunkBytes % 512 == 0, "whole swizzles");
  static_assert(kOutRowBytes == 128 || kOutRowBytes == 64, "a swizzle");
  static_assert(kResidualBytes <= kStageBytes, "a residual takes a stage");
  static_assert(kChannels <= 256 && kPixels <= 256, "a box");
  static_assert(kMinBlocks * (kSharedBytes + 1024) <= 228 * 1024, "what a multiprocessor has");
};

// A place in the ring of stages; runs on from tile to tile.
template <class Tile> struct S8Ring {
  uint32_t smem;  // of stage 0
  uint32_t stage = 0, phase = 0;

  __device__ __forceinline__ uint32_t filters() const { return smem + stage * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t pixels() const { return filters() + Tile::kFilterBytes; }
  __device__ __forceinline__ uint32_t chunks() const { return smem + Tile::kStages * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t full() const {
    return smem + Tile::kSharedBytes - Tile::kStages * 16 + stage * 8;
  }
  __device__ __forceinline__ uint32_t empty() const { return full() + Tile::kStages * 8; }
  __device__ __forceinline__ void advance() {
    if (++stage == Tile::kStages) stage = 0, phase ^= 1;
  }
};

// This block's place in a pair, and the tiles of it, or of a block by itself.
struct S8Share {
  uint32_t rank, blocks;
  int32_t first_tile, tile_stride;
};

TREFOIL_DEVICE S8Share s8_share() {
  const uint32_t blocks = cluster_blocks(), log_blocks = 31 - __clz(blocks);
  return {cluster_rank(), blocks, static_cast<int32_t>(blockIdx.x >> log_blocks),
          static_cast<int32_t>(gridDim.x >> log_blocks)};
}

// The first output channel and pixel of a block's tile. Channel tiles of one pixel tile follow each other, so that all but
// the first read the pixels from the L2 cache.
struct S8Origin {
  int32_t k, m;
};

template <class Tile> TREFOIL_DEVICE S8Origin s8_origin(const Sm90ConvS8Args &args, const S8Share &share, int32_t tile) {
  const int32_t m_tile = divide(tile, args.by_channel_tiles);
  return {(tile - m_tile * args.channel_tiles) * Tile::kChannels,
          static_cast<int32_t>(m_tile * share.blocks + share.rank) * Tile::kPixels};
}

// ---- load: one thread --------------------------------------------------------------------------------------------

// A step of the sum: kRowBytes channels of a filter tap.
template <class Tile> struct S8Step {
  int32_t r = 0, s = 0, tap = 0, c = 0;

  __device__ __forceinline__ void advance(const Sm90ConvS8Args &args) {
    c += Tile::kRowBytes;
    if (c < args.c_bytes) return;
    c = 0, ++tap;
    if (++s < args.filter_w) return;
    s = 0, ++r;
  }
};

// Expects a stage's bytes, and copies its filters: of a pair each block one half of them, for both.
template <class Tile>
TREFOIL_DEVICE void load_filters(const Sm90ConvS8Args &args, const S8Share &share, const S8Ring<Tile> &ring,
                                 const S8Step<Tile> &step, int32_t k) {
  barrier_arrive_expect(ring.full(), Tile::kStageBytes);
  if (share.blocks == 1) {
    copy_box_3d(ring.filters(), &args.filter, ring.full(), step.c / 2, step.tap, k);
  } else {
    const uint16_t both = 3;
    copy_box_3d_to(both, ring.filters() + share.rank * (Tile::kFilterBytes / 2), &args.filter, ring.full(), step.c / 2,
                   step.tap, k + share.rank * (Tile::kChannels / 2));
  }
}

// Where the window of a tile's first pixel starts.
struct S8Window {
  int32_t w, h, n;
};

TREFOIL_DEVICE S8Window window_of(const Sm90ConvS8Args &args, int32_t m) {
  const int32_t n = divide(m, args.by_out_pixels), in_image = m - n * args.out_pixels;
  const int32_t p = divide(in_image, args.by_out_width), q = in_image - p * args.out_width;
  return {q * args.stride_w - args.pad_left, p * args.stride_h - args.pad_top, n};
}

template <class Tile>
TREFOIL_DEVICE void load_pixels(const Sm90ConvS8Args &args, const S8Ring<Tile> &ring, const S8Step<Tile> &step,
                                int32_t m, const S8Window &at) {
  if (args.by_windows)
    copy_im2col(ring.pixels(), &args.x, ring.full(), step.c / 2, at.w, at.h, at.n, step.s * args.dilation_w,
                step.r * args.dilation_h);
  else
    copy_box_2d(ring.pixels(), &args.x, ring.full(), step.c / 2, m);
}

template <class Tile>
TREFOIL_DEVICE void load_residual(const Sm90ConvS8Args &args, S8Ring<Tile> &ring, const S8Origin &origin) {
  barrier_wait(ring.empty(), ring.phase ^ 1);
  barrier_arrive_expect(ring.full(), Tile::kResidualBytes);
#pragma unroll
  for (int row = 0; row < Tile::kOutRows; ++row)
    copy_box_2d(ring.filters() + row * Tile::kPixels * Tile::kOutRowBytes, &args.residual, ring.full(),
                (origin.k + row * Tile::kOutRowBytes) / 2, origin.m);
  ring.advance();
}

template <class Tile> TREFOIL_DEVICE void load(const Sm90ConvS8Args &args, const S8Share &share, S8Ring<Tile> ring) {
  allow_next_launch();
  // Filters depend on no launch: those of the first stages come while earlier launches end.
  int32_t filters_ahead = min(args.steps, Tile::kStages);
  S8Ring<Tile> ahead = ring;
  S8Step<Tile> step_ahead;
  for (int32_t i = 0; i < filters_ahead; ++i, ahead.advance(), step_ahead.advance(args))
    load_filters(args, share, ahead, step_ahead, s8_origin<Tile>(args, share, share.first_tile).k);
  wait_for_earlier_launches();
  for (int32_t tile = share.first_tile; tile < args.tiles; tile += share.tile_stride) {
    const S8Origin origin = s8_origin<Tile>(args, share, tile);
    const S8Window window = window_of(args, origin.m);
    S8Step<Tile> step;
    for (int32_t i = 0; i < args.steps; ++i, ring.advance(), step.advance(args)) {
      if (filters_ahead > 0) {
        --filters_ahead;
      } else {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        load_filters(args, share, ring, step, origin.k);
      }
      load_pixels(args, ring, step, origin.m, window);
    }
    if (args.has_residual) load_residual(args, ring, origin);
  }
  if (share.blocks > 1) {
    // The block ends after the other has read what it copied there, and has given all stages back.
    for (int32_t i = 0; i < Tile::kStages; ++i, ring.advance()) barrier_wait(ring.empty(), ring.phase ^ 1);
  }
}

// ---- multiply and store: a warpgroup -----------------------------------------------------------------------------

// Gives a stage back, once for each warp: to all who copy into it.
template <class Tile> TREFOIL_DEVICE void release(const S8Share &share, const S8Ring<Tile> &ring) {
  const uint32_t lane = threadIdx.x % 32;
  if (share.blocks == 1) {
    if (lane == 0) barrier_arrive(ring.empty());
  } else {
    if (lane < share.blocks) barrier_arrive_at(ring.empty(), lane);
  }
}

// The sums of one tile: this warpgroup's pixels.
template <class Tile, bool kSigned>
TREFOIL_DEVICE void multiply(const Sm90ConvS8Args &args, const S8Share &share, S8Ring<Tile> &ring, uint32_t group,
                             int32_t (&d)[Tile::kSlabs][Tile::kChannels / 2]) {
  constexpr int kSlabBytes = kSlabPixels * Tile::kRowBytes;
  S8Ring<Tile> before = ring;
  for (int32_t step = 0; step < args.steps; ++step) {
    barrier_wait(ring.full(), ring.phase);
    const uint64_t a = wgmma_operand_bytes<Tile::kRowBytes>(ring.pixels() + group * Tile::kSlabs * kSlabBytes);
    const uint64_t b = wgmma_operand_bytes<Tile::kRowBytes>(ring.filters());
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Tile::kRowBytes / kProductBytes; ++k)
#pragma unroll
      for (int slab = 0; slab < Tile::kSlabs; ++slab)
        WgmmaBytes<Tile::kChannels, kSigned>::multiply(d[slab], a + (slab * kSlabBytes >> 4) + 2 * k, b + 2 * k,
                                                       step + k > 0);
    wgmma_commit();
    // One group stays in flight; the one before it has read its stage.
    wgmma_wait<1>();
    if (step > 0) release(share, before);
    before = ring;
    ring.advance();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int slab = 0; slab < Tile::kSlabs; ++slab) wgmma_use(d[slab]);
  release(share, before);
}

// What makes sums of four channels that follow each other bytes.
struct Requantiser {
  uint4 bias, scale;

  __device__ __forceinline__ Requantiser(const Sm90ConvS8Args &args, int32_t k)
      : bias(load_u32x4_or_zero(reinterpret_cast<const uint4 *>(args.bias + k), k < args.k_stored)),
        scale(load_u32x4_or_zero(reinterpret_cast<const uint4 *>(args.scale + k), k < args.k_stored)) {}

  // The integer that is nearest to the scaled sum, the even one of two, in the lowest byte: a sum with 1.5 * 2^23 is
  // rounded to one. Bounds are integers, so that it does not matter that they come first.
  template <bool kAdds>
  static __device__ __forceinline__ uint32_t byte_of(const Sm90ConvS8Args &args, int32_t sum, uint32_t scale,
                                                     uint32_t residual, uint32_t which) {
    float value = __fmul_rn(__int2float_rn(sum), __uint_as_float(scale));
    if (kAdds) {
      // A byte below an exponent of 2^23.
      const float add = __uint_as_float(__byte_perm(residual, 0x4b000000u, 0x7650 + which)) - args.residual_base;
      value = __fmaf_rn(add, args.residual_scale, value);
    }
    return __float_as_uint(__fadd_rn(fminf(fmaxf(value, args.lowest), args.highest), 12582912.0f));
  }

  template <bool kAdds>
  __device__ __forceinline__ uint32_t operator()(const Sm90ConvS8Args &args, int32_t sum_0, int32_t sum_1,
                                                 int32_t sum_2, int32_t sum_3, uint32_t residual) const {
    if (kAdds) residual ^= args.residual_flip;
    const uint32_t low = __byte_perm(byte_of<kAdds>(args, sum_0 + bias.x, scale.x, residual, 0),
                                     byte_of<kAdds>(args, sum_1 + bias.y, scale.y, residual, 1), 0x0040);
    const uint32_t high = __byte_perm(byte_of<kAdds>(args, sum_2 + bias.z, scale.z, residual, 2),
                                      byte_of<kAdds>(args, sum_3 + bias.w, scale.w, residual, 3), 0x0040);
    return __byte_perm(low, high, 0x5410);
  }
};

// A warp's 16 pixels of kOutRowBytes channels from `k` on: requantised to shared memory. `smem_out` and
// `smem_residual` are this lane's row of four 8x8 matrices of words' halves: pixels 0-7 and 8-15 of 16 channels, and of
// the next 16.
template <class Tile, bool kAdds>
TREFOIL_DEVICE void requantise(const Sm90ConvS8Args &args, int32_t k, const int32_t *d, uint32_t smem_out,
                               uint32_t smem_residual) {
  const int32_t k_lane = k + threadIdx.x % 4 * 4;
#pragma unroll
  for (int pair = 0; pair < Tile::kOutRowBytes / 32; ++pair) {
    uint32_t add[4] = {}, out[4];
    if (kAdds) ldmatrix_x4(add, smem_residual ^ pair * 32);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t *sums = d + (2 * pair + i) * 8;
      const Requantiser requantiser(args, k_lane + (2 * pair + i) * 16);
      out[2 * i] = requantiser.template operator()<kAdds>(args, sums[0], sums[1], sums[4], sums[5], add[2 * i]);
      out[2 * i + 1] = requantiser.template operator()<kAdds>(args, sums[2], sums[3], sums[6], sums[7], add[2 * i + 1]);
    }
    stmatrix_x4(smem_out ^ pair * 32, out);
  }
}

template <class Tile, bool kSigned>
TREFOIL_DEVICE void multiply_and_store(const Sm90ConvS8Args &args, const S8Share &share, S8Ring<Tile> ring,
                                       uint32_t group) {
  const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32 % 4, 0), lane = threadIdx.x % 32;
  // Chunks lie in the copy engine's swizzle: 16 bytes at a time in another order in each row of 128 or 64.
  constexpr uint32_t kRowsOfOrder = 128 / Tile::kOutRowBytes, kOrders = Tile::kOutRowBytes / 16;
  const uint32_t lane_offset = lane % 16 * Tile::kOutRowBytes + (lane / 16 ^ lane % 8 / kRowsOfOrder % kOrders) * 16;
  const uint32_t smem_chunks = ring.chunks() + (group * 4 + warp) * Tile::kChunks * Tile::kChunkBytes;

  uint32_t chunk_slot = 0;
  for (int32_t tile = share.first_tile; tile < args.tiles; tile += share.tile_stride) {
    const S8Origin origin = s8_origin<Tile>(args, share, tile);
    int32_t d[Tile::kSlabs][Tile::kChannels / 2];
    multiply<Tile, kSigned>(args, share, ring, group, d);
    if (args.has_residual) barrier_wait(ring.full(), ring.phase);
#pragma unroll
    for (int slab = 0; slab < Tile::kSlabs; ++slab) {
      const int32_t pixel = (group * Tile::kSlabs + slab) * kSlabPixels + warp * kWarpPixels;
#pragma unroll
      for (int row = 0; row < Tile::kOutRows; ++row) {
        const uint32_t smem_chunk = smem_chunks + chunk_slot * Tile::kChunkBytes;
        const uint32_t smem_residual = ring.filters() + (row * Tile::kPixels + pixel) * Tile::kOutRowBytes;
        const int32_t k = origin.k + row * Tile::kOutRowBytes;
        const int32_t *sums = d[slab] + row * (Tile::kOutRowBytes / 2);
        if (lane == 0) wait_stores_read<Tile::kChunks - 1>();
        __syncwarp();
        if (args.has_residual)
          requantise<Tile, true>(args, k, sums, smem_chunk + lane_offset, smem_residual + lane_offset);
        else
          requantise<Tile, false>(args, k, sums, smem_chunk + lane_offset, 0);
        fence_shared_for_copies();
        __syncwarp();
        if (lane == 0) store_box_2d(&args.y, k / 2, origin.m + pixel, smem_chunk);
        chunk_slot = chunk_slot + 1 == Tile::kChunks ? 0 : chunk_slot + 1;
      }
    }
    if (args.has_residual) {
      release(share, ring);
      ring.advance();
    }
  }
  if (lane == 0) wait_stores_read<0>();
}

// The kernel body.
template <class Tile, bool kSigned> TREFOIL_DEVICE void sm90_conv2d_s8(const Sm90ConvS8Args &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  S8Ring<Tile> ring{shared_address(shared_bytes)};
  const S8Share share = s8_share();
  if (threadIdx.x == 0) {
    if (ring.smem % 1024 != 0) __trap();  // the swizzle is of addresses
    S8Ring<Tile> each = ring;
    for (int stage = 0; stage < Tile::kStages; ++stage, each.advance()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), 4 * Tile::kGroups * share.blocks);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (share.blocks > 1) cluster_arrive(), cluster_wait();
  // The same for all lanes, and the compiler knows it.
  const uint32_t group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (group < Tile::kGroups) multiply_and_store<Tile, kSigned>(args, share, ring, group);
  else if (threadIdx.x % 32 == 0) load(args, share, ring);
}
