// Two 1x1 convolutions on Hopper, one behind the other: the second reads the first one's result from shared memory.
//
// A tile is all channels of some pixels. The first convolution's channels are computed in slabs of 64: each goes to
// memory, and its products with the second one's filter are added to that one's sums, which stay in registers until the
// last slab. Channels lie on the rows of the warpgroup product, pixels on its columns, as in sm90_conv2d_fprop.cuh, so a
// slab as it is stored is an operand of the second product as it lies.
//
// Three threads copy: filters, x, and residuals. Residuals go where their slab will be: the slots of a part's ring. The
// other warpgroups multiply and store, each its own part of the tile's pixels.
#include "common.cuh"
#include "sm90_ptx.cuh"

// An input of the first convolution, which may be the sum of two. Mirrored in sm90_conv2d_chain.rs.
struct Sm90ChainSource {
  int32_t steps;  // ceil(C / 64)
  int32_t stride_h;
  int32_t stride_w;
  int32_t by_windows;  // 0: x is a matrix
};

// The one argument of every entry point. Mirrored in sm90_conv2d_chain.rs.
struct Sm90ChainArgs {
  TensorMap filter[2];    // of each source: halves {C, 1, K}, box {64, 1, 64}
  TensorMap x[2];         // of each source: halves {C, W, H, images} by windows, or {C, pixels}, of 64 channels of a
                        // part
  TensorMap next_filter;  // halves {K, 1, N}, box {64, 1, 64}
  TensorMap residual;     // halves {K, pixels}, box {64, pixels of a part}
  TensorMap y;            // the same of y
  TensorMap z;            // halves {N, pixels}, box {64, pixels of a part}
  const float *bias;       // [k_stored]
  const float *next_bias;  // [n_stored]
  int32_t k_stored;
  int32_t n_stored;
  int32_t slabs;       // ceil(k_stored / 64)
  int32_t tiles;
  int32_t out_pixels;  // P * Q
  int32_t out_width;   // Q
  int32_t has_residual;
  int32_t activation;
  int32_t next_activation;
  int32_t filter_stages;  // in shared memory, of 64x64 each; as many as a tile has: they stay there
  int32_t x_buffers;      // of a tile's x
  int32_t slots;          // for slabs of a part
  FastDivide by_out_pixels;
  FastDivide by_out_width;
  Sm90ChainSource source[2];  // the second one's steps are 0 where there is none
  int32_t backward_from;      // the last tile: they are taken from there on down; negative: from 0 up
  int32_t padding[3];
};
static_assert(sizeof(Sm90ChainArgs) == 1152, "mirrored in sm90_conv2d_chain.rs");
static_assert(offsetof(Sm90ChainArgs, bias) == 1024 && offsetof(Sm90ChainArgs, source) == 1104,
              "mirrored in sm90_conv2d_chain.rs");

constexpr int kSlabChannels = 64;                        // 128 bytes, the copy engine's widest swizzle
constexpr int kRowBytes = kSlabChannels * 2;             // of a pixel, and of a channel's filter
constexpr int kFilterBytes = kSlabChannels * kRowBytes;  // of 64 channels from 64
constexpr int kBarrierBytes = 16;                        // of each place in shared memory: full, empty

// A half of the tile's pixels for each of two warpgroups; kNext times 64 channels of z.
template <int kTilePixels, int kNext_> struct ChainTile {
  static constexpr int kParts = 2, kPixels = kTilePixels / kParts, kNext = kNext_;
  static constexpr int kThreads = 128 * (1 + kParts);
  static constexpr int kPartBytes = kPixels * kRowBytes;  // of 64 channels of a part

  static_assert(kPixels % 16 == 0 && kPartBytes % 1024 == 0, "whole products, swizzled in 1024 bytes");
};

// Places in shared memory that are filled and emptied in turns.
struct Ring {
  uint32_t smem, bytes, barriers, places;
  uint32_t turns = 1;  // 0: it is filled once, and stays
  uint32_t place = 0, phase = 0;

  __device__ __forceinline__ uint32_t data() const { return smem + place * bytes; }
  __device__ __forceinline__ uint32_t full() const { return barriers + place * kBarrierBytes; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  __device__ __forceinline__ void advance() {
    if (++place == places) place = 0, phase ^= turns;
  }
};

// What lies where in shared memory.
template <class Tile> struct Rings {
  const Sm90ChainArgs &args;
  uint32_t smem;
  uint32_t steps;  // of both sources

  __device__ __forceinline__ Rings(const Sm90ChainArgs &args, uint32_t smem)
      : args(args), smem(smem), steps(args.source[0].steps + args.source[1].steps) {}

  __device__ __forceinline__ uint32_t pieces() const { return args.slabs * (steps + Tile::kNext); }
  __device__ __forceinline__ uint32_t x_places() const { return Tile::kParts * args.x_buffers; }
  __device__ __forceinline__ uint32_t smem_x() const { return smem + args.filter_stages * kFilterBytes; }
  __device__ __forceinline__ uint32_t smem_slots() const {
    return smem_x() + x_places() * steps * Tile::kPartBytes;
  }
  __device__ __forceinline__ uint32_t barriers() const {
    return smem_slots() + Tile::kParts * args.slots * Tile::kPartBytes;
  }
  __device__ __forceinline__ Ring filters() const {
    const uint32_t places = args.filter_stages;
    return {smem, kFilterBytes, barriers(), places, pieces() > places};
  }
  __device__ __forceinline__ Ring x(uint32_t part) const {
    const uint32_t places = args.x_buffers, bytes = steps * Tile::kPartBytes;
    const uint32_t first = barriers() + (args.filter_stages + part * places) * kBarrierBytes;
    return {smem_x() + part * places * bytes, bytes, first, places};
  }
  __device__ __forceinline__ Ring slots(uint32_t part) const {
    const uint32_t places = args.slots;
    const uint32_t first = barriers() + (args.filter_stages + x_places() + part * places) * kBarrierBytes;
    return {smem_slots() + part * places * Tile::kPartBytes, Tile::kPartBytes, first, places};
  }
};

// Where a part of a tile begins.
template <class Tile> TREFOIL_DEVICE int32_t first_pixel(const Sm90ChainArgs &args, int32_t tile, int32_t part) {
  if (args.backward_from >= 0) tile = args.backward_from - tile;
  return (tile * Tile::kParts + part) * Tile::kPixels;
}

// ---- copy: a thread each -----------------------------------------------------------------------------------------

// Filters in the order in which they are read: for each slab its own, then the second convolution's from it. They
// depend on no launch.
template <class Tile> TREFOIL_DEVICE void load_filters(const Sm90ChainArgs &args, const Rings<Tile> &rings) {
  Ring ring = rings.filters();
  auto load = [&](const TensorMap *map, int32_t c, int32_t k) {
    barrier_wait(ring.empty(), ring.phase ^ 1);
    barrier_arrive_expect(ring.full(), kFilterBytes);
    copy_box_3d(ring.data(), map, ring.full(), c * kSlabChannels, 0, k * kSlabChannels);
    ring.advance();
  };
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    for (int32_t slab = 0; slab < args.slabs; ++slab) {
      for (int32_t source = 0; source < 2; ++source)
        for (int32_t step = 0; step < args.source[source].steps; ++step) load(&args.filter[source], step, slab);
      for (int32_t next = 0; next < Tile::kNext; ++next) load(&args.next_filter, slab, next);
    }
    if (ring.turns == 0) return;
  }
}

template <class Tile> TREFOIL_DEVICE void load_x(const Sm90ChainArgs &args, const Rings<Tile> &rings) {
  Ring parts[Tile::kParts];
#pragma unroll
  for (int part = 0; part < Tile::kParts; ++part) parts[part] = rings.x(part);
  wait_for_earlier_launches();
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
#pragma unroll
    for (int part = 0; part < Tile::kParts; ++part) {
      Ring &ring = parts[part];
      const int32_t m = first_pixel<Tile>(args, tile, part);
      const int32_t n = divide(m, args.by_out_pixels), in_image = m - n * args.out_pixels;
      const int32_t p = divide(in_image, args.by_out_width), q = in_image - p * args.out_width;
      barrier_wait(ring.empty(), ring.phase ^ 1);
      barrier_arrive_expect(ring.full(), ring.bytes);
      uint32_t to = ring.data();
      for (int32_t index = 0; index < 2; ++index) {
        const Sm90ChainSource &from = args.source[index];
        for (int32_t c = 0; c < from.steps * kSlabChannels; c += kSlabChannels, to += Tile::kPartBytes) {
          if (from.by_windows)
            copy_im2col(to, &args.x[index], ring.full(), c, q * from.stride_w, p * from.stride_h, n, 0, 0);
          else
            copy_box_2d(to, &args.x[index], ring.full(), c, m);
        }
      }
      ring.advance();
    }
  }
}

// Residuals, to the slots that their slabs will have; those without one, and z's, are only handed on.
template <class Tile> TREFOIL_DEVICE void load_residuals(const Sm90ChainArgs &args, const Rings<Tile> &rings) {
  Ring parts[Tile::kParts];
#pragma unroll
  for (int part = 0; part < Tile::kParts; ++part) parts[part] = rings.slots(part);
  wait_for_earlier_launches();
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    for (int32_t slab = 0; slab < args.slabs + Tile::kNext; ++slab) {
#pragma unroll
      for (int part = 0; part < Tile::kParts; ++part) {
        Ring &ring = parts[part];
        barrier_wait(ring.empty(), ring.phase ^ 1);
        if (args.has_residual && slab < args.slabs) {
          barrier_arrive_expect(ring.full(), Tile::kPartBytes);
          copy_box_2d(ring.data(), &args.residual, ring.full(), slab * kSlabChannels,
                      first_pixel<Tile>(args, tile, part));
        } else {
          barrier_arrive(ring.full());
        }
        ring.advance();
      }
    }
  }
}

// ---- multiply and store: a warpgroup -----------------------------------------------------------------------------

// Products of the filter that is next in its ring with 64 channels of this part's pixels. One group of products stays in
// flight; the one before it has read its filter, which is given back.
template <int kSums>
TREFOIL_DEVICE void multiply(float (&d)[kSums], Ring &filters, uint32_t &before, uint32_t pixels, bool add) {
  barrier_wait(filters.full(), filters.phase);
  const uint64_t a = wgmma_operand(filters.data()), b = wgmma_operand(pixels);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSlabChannels / 16; ++k) Wgmma<kSums * 2>::multiply(d, a + 2 * k, b + 2 * k, add || k > 0);
  wgmma_commit();
  wgmma_wait<1>();
  if (before != 0 && threadIdx.x % 32 == 0) barrier_arrive(before);
  before = filters.turns != 0 ? filters.empty() : 0;
  filters.advance();
}

// This thread's two channels of the bias.
TREFOIL_DEVICE float2 bias_at(const float *bias, int32_t channel, int32_t channels) {
  return make_float2(channel < channels ? __ldg(bias + channel) : 0.0f,
                     channel + 8 < channels ? __ldg(bias + channel + 8) : 0.0f);
}

// Sums and bias, and what lies there if it is to be added, as halves where this lane's matrices begin.
template <int kSums>
TREFOIL_DEVICE void put(uint32_t smem_lane, const float (&d)[kSums], float2 bias, bool adds, const Clamp &clamp) {
#pragma unroll
  for (int j = 0; j < kSums / 8; ++j) {
    uint32_t there[4] = {}, out[4];
    if (adds) ldmatrix_x4_trans(there, smem_lane + j * 16 * kRowBytes);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const float add = q % 2 == 0 ? bias.x : bias.y;
      float2 sum = make_float2(d[j * 8 + q * 2] + add, d[j * 8 + q * 2 + 1] + add);
      if (adds) {
        const float2 other = unpack_half2(there[q]);
        sum.x += other.x, sum.y += other.y;
      }
      out[q] = clamp(sum);
    }
    stmatrix_x4_trans(smem_lane + j * 16 * kRowBytes, out);
  }
}

template <class Tile>
TREFOIL_DEVICE void multiply_and_store(const Sm90ChainArgs &args, const Rings<Tile> &rings, uint32_t part) {
  constexpr int kSums = Tile::kPixels / 2;
  const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool stores = threadIdx.x % 128 == 0;
  // This lane's row of the four 8x8 matrices of 16 pixels: pixel, and 8 channels, swizzled like a tensor map's box.
  const uint32_t pixel = lane / 16 * 8 + lane % 8, channel_chunk = warp * 2 + lane / 8 % 2;
  const uint32_t lane_offset = pixel * kRowBytes + (channel_chunk ^ lane % 8) * 16;
  const int32_t channel = warp * 16 + lane / 4;  // of a slab, and eight more
  const Clamp clamp(args.activation), next_clamp(args.next_activation);

  Ring filters = rings.filters(), x = rings.x(part), slots = rings.slots(part);
  uint32_t filter_before = 0, slot_before = 0;
  // Stores the slot that was just written, and gives the one before it back: all products and copies have read that.
  auto store = [&](const TensorMap *map, int32_t k, int32_t m) {
    fence_shared_for_copies();
    barrier_sync(1 + part, 128);
    if (stores) {
      wait_stores_read<0>();
      store_box_2d(map, k, m, slots.data());
    }
    if (slot_before != 0 && lane == 0) barrier_arrive(slot_before);
    slot_before = slots.empty();
  };

  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    const int32_t m = first_pixel<Tile>(args, tile, part);
    float z[Tile::kNext][kSums];
    barrier_wait(x.full(), x.phase);
    for (int32_t slab = 0; slab < args.slabs; ++slab) {
      const float2 bias = bias_at(args.bias, slab * kSlabChannels + channel, args.k_stored);
      float y[kSums];
      for (uint32_t step = 0; step < rings.steps; ++step)
        multiply(y, filters, filter_before, x.data() + step * Tile::kPartBytes, step > 0);
      wgmma_wait<0>();
      wgmma_use(y);
      if (slab + 1 == args.slabs && lane == 0) barrier_arrive(x.empty());

      barrier_wait(slots.full(), slots.phase);
      put(slots.data() + lane_offset, y, bias, args.has_residual, clamp);
      store(&args.y, slab * kSlabChannels, m);
#pragma unroll
      for (int next = 0; next < Tile::kNext; ++next) multiply(z[next], filters, filter_before, slots.data(), slab > 0);
      slots.advance();
    }
    x.advance();
    wgmma_wait<0>();
#pragma unroll
    for (int next = 0; next < Tile::kNext; ++next) {
      wgmma_use(z[next]);
      const float2 bias = bias_at(args.next_bias, next * kSlabChannels + channel, args.n_stored);
      barrier_wait(slots.full(), slots.phase);
      put(slots.data() + lane_offset, z[next], bias, false, next_clamp);
      store(&args.z, next * kSlabChannels, m);
      slots.advance();
    }
  }
  if (stores) wait_stores_read<0>();
}

// The kernel body.
template <class Tile> TREFOIL_DEVICE void sm90_conv2d_chain(const Sm90ChainArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const Rings<Tile> rings(args, shared_address(shared_bytes));
  if (threadIdx.x == 0) {
    if (rings.smem % 1024 != 0) __trap();  // the swizzle is of addresses
    const uint32_t of_parts = rings.x_places() + Tile::kParts * args.slots;
    for (uint32_t place = 0; place < args.filter_stages + of_parts; ++place) {
      const uint32_t full = rings.barriers() + place * kBarrierBytes;
      barrier_init(full, 1);
      barrier_init(full + 8, place < args.filter_stages ? 4 * Tile::kParts : 4);  // warps
    }
    fence_barrier_init();
  }
  __syncthreads();
  const uint32_t group = uniform(threadIdx.x / 128);
  if (group == 0) {
    // Three warpgroups start with 168 registers a thread; those that multiply want more.
    give_registers_up<40>();
    allow_next_launch();
    if (threadIdx.x == 0) load_filters(args, rings);
    if (threadIdx.x == 32) load_x(args, rings);
    if (threadIdx.x == 64) load_residuals(args, rings);
  } else {
    take_registers<232>();
    multiply_and_store(args, rings, group - 1);
  }
}

// Purpose    y[m][k] = act(sum over c of x[m][c] * filter[k][c] + the same sum of a second source + bias[k]
//                          + residual[m][k])
//            z[m][n] = next_act(sum over k of y[m][k] * next_filter[n][k] + next_bias[n]), of y as it is stored
//            A source's pixels may be every stride-th of each axis. The second one and the residual may be missing.
// Operands   x            read   of each source: halves [images][height][width][C], by its map
//            filter       read   of each source: halves [k_stored][C], zeros in padded channels, by its map
//            next_filter  read   halves [n_stored][k_stored], the same
//            bias         read   floats [k_stored], zeros in padded channels; next_bias: floats [n_stored]
//            residual     read   halves like y, by its map; has_residual 0: not read
//            y            write  halves [images][P][Q][k_stored], by its map, disjoint from all that is read
//            z            write  halves [images][P][Q][n_stored], by its map, disjoint from y and all that is read
//            All are row-major, without gaps, at multiples of 16 bytes; channel counts are multiples of 8. The maps
//            swizzle by 128 bytes and fill with zeros; their boxes are those that Sm90ChainArgs names.
// Arithmetic half products, float sums in a fixed order, one rounding to half of y and of z (overflow becomes infinity).
//            NaN stays NaN, through every activation. Padded channels come out zero if what is read is finite.
// Launch     grid up to `tiles` blocks: a block takes every gridDim.x-th tile. Block: the tile's kThreads. tiles =
//            ceil(pixels / (kParts * kPixels)). Dynamic shared memory: filter_stages * (8192 + 16) + kParts * (x_buffers
//            * (steps of both sources * kPartBytes + 16) + slots * (kPartBytes + 16)). compute capability 9.0 exactly.
// Limits     n_stored up to kNext * 64; strides up to 8; at least two slots and filter stages; pixels and tiles below
//            2^31. Tails in pixels and channels are the maps': nothing outside the operands is read or written. The
//            launcher checks all of it. Deterministic, no atomics.
// Ordering   may be launched before its predecessor has ended, and lets its successor be: reads x and residual, and
//            writes y and z, only after griddepcontrol.wait; filters and biases before.
#define TREFOIL_SM90_CHAIN(pixels, next)                                                                        \
  extern "C" __global__ void __launch_bounds__(ChainTile<pixels, next>::kThreads, 1)                            \
      sm90_conv2d_chain_##pixels##_##next(const __grid_constant__ Sm90ChainArgs args) {                         \
    sm90_conv2d_chain<ChainTile<pixels, next>>(args);                                                           \
  }

TREFOIL_SM90_CHAIN(128, 1)
TREFOIL_SM90_CHAIN(128, 2)
TREFOIL_SM90_CHAIN(128, 4)
TREFOIL_SM90_CHAIN(256, 1)
TREFOIL_SM90_CHAIN(256, 2)
