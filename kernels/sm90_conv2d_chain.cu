// Two 1x1 convolutions on Hopper, one behind the other: the second reads the first one's result from shared memory.
//
// A tile is all channels of some pixels. The first convolution's channels are computed in slabs of 64: each goes to
// memory, and its products with the second one's filter are added to that one's sums, which stay in registers until the
// last slab. Pixels lie on the rows of the warpgroup product, channels on its columns, so that a thread's sums of the first
// product are, as halves, its registers of the second one's operand.
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
  TensorMap x[2];         // of each source: halves {C, W, H, images} by windows, or {C, pixels}; 64 channels of a part
  TensorMap next_filter;  // halves {K, 1, N}, box {64, 1, 64}
  TensorMap residual;     // halves {K, pixels}, box {64, pixels of a part}
  TensorMap y;            // the same of y
  TensorMap z;            // halves {N, pixels}, box {64, pixels of a part}
  const float *bias;      // [k_stored]
  const float *next_bias; // [n_stored]
  uint64_t wide_policy;   // of the L2 cache for residual and y
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
  int32_t padding[1];
};
static_assert(sizeof(Sm90ChainArgs) == 1152, "mirrored in sm90_conv2d_chain.rs");
static_assert(offsetof(Sm90ChainArgs, bias) == 1024 && offsetof(Sm90ChainArgs, source) == 1112,
              "mirrored in sm90_conv2d_chain.rs");

constexpr int kSlabChannels = 64;                              // 128 bytes, the copy engine's widest swizzle
constexpr int kRowBytes = kSlabChannels * 2;                   // of a pixel, and of a channel's filter
constexpr int kFilterBytes = kSlabChannels * kRowBytes;        // of 64 channels from 64
constexpr uint64_t kNormalPolicy = 0x1000000000000000;         // of the L2 cache
constexpr int kBarrierBytes = 16;                              // of each place in shared memory: full, empty

// 64 pixels for each of kParts warpgroups; kNext times 64 channels of z.
template <int kTilePixels, int kNext_> struct ChainTile {
  static constexpr int kPixels = 64, kParts = kTilePixels / kPixels, kNext = kNext_;
  static constexpr int kThreads = 128 * (1 + kParts);
  static constexpr int kPartBytes = kPixels * kRowBytes;  // of 64 channels of a part

  // Three warpgroups start with 168 registers a thread; those that multiply want more.
  static constexpr bool kMovesRegisters = kParts == 2;
  // Whether a slab's products begin before the slab before it is done with: where there are registers for both.
  static constexpr bool kAhead = kNext <= 2;
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

// Filters in the order in which they are read: for each slab its own, or the next one's, then the second convolution's
// from it. They depend on no launch.
template <class Tile> TREFOIL_DEVICE void load_filters(const Sm90ChainArgs &args, const Rings<Tile> &rings) {
  Ring ring = rings.filters();
  auto load = [&](const TensorMap *map, int32_t c, int32_t k) {
    barrier_wait(ring.empty(), ring.phase ^ 1);
    barrier_arrive_expect(ring.full(), kFilterBytes);
    copy_box_3d(ring.data(), map, ring.full(), c * kSlabChannels, 0, k * kSlabChannels);
    ring.advance();
  };
  auto load_first = [&](int32_t slab) {
    for (int32_t source = 0; source < 2; ++source)
      for (int32_t step = 0; step < args.source[source].steps; ++step) load(&args.filter[source], step, slab);
  };
  auto load_next = [&](int32_t slab) {
    for (int32_t next = 0; next < Tile::kNext; ++next) load(&args.next_filter, slab, next);
  };
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
    if (Tile::kAhead) load_first(0);
    for (int32_t slab = 0; slab < args.slabs; ++slab) {
      if (!Tile::kAhead) load_first(slab), load_next(slab);
      if (Tile::kAhead && slab + 1 < args.slabs) load_first(slab + 1);
      if (Tile::kAhead && slab > 0) load_next(slab - 1);
    }
    if (Tile::kAhead) load_next(args.slabs - 1);
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
          copy_box_2d_by(args.wide_policy, ring.data(), &args.residual, ring.full(), slab * kSlabChannels,
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

constexpr int kSums = 32;                 // of a thread: of 64 pixels by 64 channels
constexpr int kOperands = kSums / 2;      // the same as pairs of halves

// What a warpgroup computes of the tiles.
template <class Tile> struct Multiplier {
  const Sm90ChainArgs &args;
  uint32_t part, steps;
  Ring filters, given, x, slots;  // `given`: the filters that are given back next
  uint32_t slot_before = 0;       // its barrier; 0: none
  uint32_t lane_offset;           // of this lane's row of four 8x8 matrices: 16 pixels by 16 channels
  int32_t channel;                // of a slab: this lane's first
  Clamp clamp, next_clamp;

  __device__ __forceinline__ Multiplier(const Sm90ChainArgs &args, const Rings<Tile> &rings, uint32_t part)
      : args(args), part(part), steps(rings.steps), filters(rings.filters()), given(filters), x(rings.x(part)),
        slots(rings.slots(part)), clamp(args.activation), next_clamp(args.next_activation) {
    const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const uint32_t pixel = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
    lane_offset = pixel * kRowBytes + (lane / 16 ^ lane % 8) * 16;
    channel = lane % 4 * 2;
  }

  __device__ __forceinline__ bool leads() const { return threadIdx.x % 128 == 0; }

  // Gives filters back that have been read.
  __device__ __forceinline__ void release(uint32_t count) {
    if (filters.turns == 0) return;
    for (uint32_t i = 0; i < count; ++i, given.advance())
      if (threadIdx.x % 32 == 0) barrier_arrive(given.empty());
  }

  // A slab's products.
  __device__ __forceinline__ void multiply(float (&y)[kSums]) {
    uint32_t step = 0;
    do {  // there is a step
      barrier_wait(filters.full(), filters.phase);
      const uint64_t a = wgmma_operand(x.data() + step * Tile::kPartBytes), b = wgmma_operand(filters.data());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSlabChannels / 16; ++k) Wgmma<64>::multiply(y, a + 2 * k, b + 2 * k, step > 0 || k > 0);
      wgmma_commit();
      filters.advance();
    } while (++step < steps);
  }

  // A slab's products with the second filter.
  __device__ __forceinline__ void multiply_next(float (&z)[Tile::kNext][kSums], const uint32_t (&slab)[kOperands], bool add) {
#pragma unroll
    for (int next = 0; next < Tile::kNext; ++next, filters.advance()) {
      barrier_wait(filters.full(), filters.phase);
      const uint64_t b = wgmma_operand(filters.data());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSlabChannels / 16; ++k) wgmma_multiply_64(z[next], &slab[4 * k], b + 2 * k, add || k > 0);
    }
    wgmma_commit();
  }

  // Sums and bias, and what lies in the slot if it is to be added, as halves: in the slot, and in `out`.
  __device__ __forceinline__ void put(const float (&d)[kSums], const float *bias, int32_t first, int32_t channels,
                                      bool adds, const Clamp &clamp, uint32_t (&out)[kOperands]) {
    float2 add[kSums / 4];
#pragma unroll
    for (int eight = 0; eight < kSums / 4; ++eight) {
      const int32_t at = first + eight * 8 + channel;
      add[eight] = at < channels ? __ldg(reinterpret_cast<const float2 *>(bias + at)) : make_float2(0.0f, 0.0f);
    }
    barrier_wait(slots.full(), slots.phase);
#pragma unroll
    for (int j = 0; j < kSums / 8; ++j) {
      const uint32_t smem_lane = slots.data() + lane_offset ^ j * 32;
      uint32_t there[4] = {}, halves[4];
      if (adds) ldmatrix_x4(there, smem_lane);
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const float2 of_channels = add[j * 2 + q / 2];
        float2 sum = make_float2(d[j * 8 + q * 2] + of_channels.x, d[j * 8 + q * 2 + 1] + of_channels.y);
        if (adds) {
          const float2 other = unpack_half2(there[q]);
          sum.x += other.x, sum.y += other.y;
        }
        halves[q] = out[j * 4 + q] = clamp(sum);
      }
      stmatrix_x4(smem_lane, halves);
    }
  }

  // Stores the slot that was just written, and gives the one before it back.
  __device__ __forceinline__ void store(const TensorMap *map, uint64_t policy, int32_t k, int32_t m) {
    fence_shared_for_copies();
    barrier_sync(1 + part, 128);
    if (leads()) {
      wait_stores_read<0>();
      if (slot_before != 0) barrier_arrive(slot_before);
      store_box_2d_by(policy, map, k, m, slots.data());
    }
    slot_before = slots.empty();
    slots.advance();
  }

  // From a slab's sums to its operands, while the next slab's sums go on, and the products of the one before with the
  // second filter.
  __device__ __forceinline__ void slab_ahead(float (&z)[Tile::kNext][kSums], float (&y)[kSums], float (&y_next)[kSums],
                                             uint32_t (&operands)[kOperands], uint32_t (&before)[kOperands],
                                             int32_t slab, int32_t m) {
    wgmma_wait<0>();
    wgmma_use(y);
    keep(operands);
    release(steps + (slab > 1 ? Tile::kNext : 0));
    if (slab + 1 < args.slabs) multiply(y_next);
    else if (threadIdx.x % 32 == 0) barrier_arrive(x.empty());
    if (slab > 0) multiply_next(z, before, slab > 1);
    put(y, args.bias, slab * kSlabChannels, args.k_stored, args.has_residual, clamp, operands);
    store(&args.y, args.wide_policy, slab * kSlabChannels, m);
  }

  // The same, one after the other.
  __device__ __forceinline__ void slab_alone(float (&z)[Tile::kNext][kSums], float (&y)[kSums],
                                             uint32_t (&operands)[kOperands], int32_t slab, int32_t m) {
    multiply(y);
    wgmma_wait<0>();
    wgmma_use(y);
    keep(operands);
    release(steps + (slab > 0 ? Tile::kNext : 0));
    if (slab + 1 == args.slabs && threadIdx.x % 32 == 0) barrier_arrive(x.empty());
    put(y, args.bias, slab * kSlabChannels, args.k_stored, args.has_residual, clamp, operands);
    store(&args.y, args.wide_policy, slab * kSlabChannels, m);
    multiply_next(z, operands, slab > 0);
  }

  // Operands stay in their registers until the products that read them are done.
  static __device__ __forceinline__ void keep(uint32_t (&operands)[kOperands]) {
#pragma unroll
    for (uint32_t &operand : operands) asm volatile("" : "+r"(operand)::"memory");
  }

  __device__ __forceinline__ void tile(int32_t m) {
    float z[Tile::kNext][kSums];
    uint32_t operands[2][kOperands] = {};
    barrier_wait(x.full(), x.phase);
    if constexpr (Tile::kAhead) {
      float y[2][kSums];
      multiply(y[0]);
      for (int32_t slab = 0; slab < args.slabs; slab += 2) {
        slab_ahead(z, y[0], y[1], operands[0], operands[1], slab, m);
        if (slab + 1 < args.slabs) slab_ahead(z, y[1], y[0], operands[1], operands[0], slab + 1, m);
      }
      wgmma_wait<0>();
      if (args.slabs > 1) release(Tile::kNext);
      if (args.slabs % 2 != 0) multiply_next(z, operands[0], args.slabs > 1);
      else multiply_next(z, operands[1], true);
    } else {
      float y[kSums];
      for (int32_t slab = 0; slab < args.slabs; ++slab) slab_alone(z, y, operands[0], slab, m);
    }
    x.advance();
    wgmma_wait<0>();
    keep(operands[0]), keep(operands[1]);
    release(Tile::kNext);
#pragma unroll
    for (int next = 0; next < Tile::kNext; ++next) {
      wgmma_use(z[next]);
      put(z[next], args.next_bias, next * kSlabChannels, args.n_stored, false, next_clamp, operands[0]);
      store(&args.z, kNormalPolicy, next * kSlabChannels, m);
    }
  }
};

template <class Tile>
TREFOIL_DEVICE void multiply_and_store(const Sm90ChainArgs &args, const Rings<Tile> &rings, uint32_t part) {
  Multiplier<Tile> multiplier(args, rings, part);
  for (int32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x)
    multiplier.tile(first_pixel<Tile>(args, tile, part));
  if (multiplier.leads()) wait_stores_read<0>();
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
      // Filters and x are given back by each warp, slots by who stores them.
      const bool is_filter = place < args.filter_stages, is_slot = place >= args.filter_stages + rings.x_places();
      barrier_init(full + 8, is_filter ? 4 * Tile::kParts : is_slot ? 1 : 4);
    }
    fence_barrier_init();
  }
  __syncthreads();
  // The same for all lanes, and the compiler knows it.
  const uint32_t group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (group == 0) {
    if constexpr (Tile::kMovesRegisters) give_registers_up<40>();
    allow_next_launch();
    if (threadIdx.x == 0) load_filters(args, rings);
    if (threadIdx.x == 32) load_x(args, rings);
    if (threadIdx.x == 64) load_residuals(args, rings);
  } else {
    if constexpr (Tile::kMovesRegisters) take_registers<232>();
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
// Limits     n_stored up to kNext * 64; strides up to 8; at least two slots, and as many filter stages as steps and
//            kNext; pixels and tiles below 2^31. Tails in pixels and channels are the maps': nothing outside the operands is read or written. The
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
TREFOIL_SM90_CHAIN(64, 1)
TREFOIL_SM90_CHAIN(64, 2)
TREFOIL_SM90_CHAIN(64, 4)
