// Convolution as a matrix product on Hopper: the kernel body of sm90_conv2d_fprop.cu.
//
//   D[k][m] = sum over (r, s, c) of F[k][r, s, c] * X[m][r, s, c];  Y[m][k] = act(D[k][m] + bias[k] + residual[m][k])
//
// A second convolution may be part of the sum: its steps follow those of the first, with filters, pixels and windows of
// its own.
//
// Output channels lie on the rows of the warpgroup product, 64 to a warpgroup, pixels on its columns, up to 256: then
// neither operand is transposed, and a tile's pixels can be any multiple of 8. One warp copies: filters, pixels
// (im2col by the copy engine) and residuals go through one ring of stages, in the order in which they are read, and
// run ahead into the next tile. The other warpgroups multiply, each its own part of the tile, and store.
//
// Where there are fewer tiles than multiprocessors, the blocks of a cluster may share one: each sums a part of the steps
// and sends sums to the shared memory of the blocks that add them up. Two blocks with neighbouring channels may be a
// pair: each copies half of their pixels, for both, so that the L2 cache gives them once. A cluster of two pairs is both:
// the pairs have the same two tiles, and each sums one half of the steps.
#pragma once

#include "activation.cuh"
#include "sm90_ptx.cuh"

// One of the convolutions whose sum a launch computes. Mirrored in sm90_conv2d_fprop.rs.
struct Sm90Source {
  int32_t filter_h;
  int32_t filter_w;
  int32_t c_steps;  // ceil(C / 64)
  int32_t stride_h;
  int32_t stride_w;
  int32_t pad_top;
  int32_t pad_left;
  int32_t dilation_h;
  int32_t dilation_w;
  int32_t by_windows;  // 0: x is a matrix, one filter tap
  int32_t last_channel;  // of x, the first of a tap's last step: C - 64, or 0
  int32_t padding;
};

// The one argument of every entry point. Mirrored in sm90_conv2d_fprop.rs.
struct Sm90ConvArgs {
  TensorMap filter[2];  // of each source: halves {64 * c_steps, R * S, K}, box {64, 1, channels of the tile}
  TensorMap x[2];       // of each source: halves {C, W, H, images} by windows, or {C, pixels}, of 64 channels of a part,
                        // or of what a block of a pair copies of it
  TensorMap residual;   // halves {K, pixels}, box {64, pixels of a part}
  TensorMap y;          // halves {K, pixels} at a distance of y_pitch, box {64, pixels of a chunk}
  const float *bias;    // [k_stored]
  const __half *residual_values;  // what its map is of; null: there is none
  __half *y_values;               // what its map is of
  int32_t k_stored;
  int32_t tiles;
  int32_t channel_tiles;
  int32_t m_pixels;
  int32_t out_pixels;  // P * Q
  int32_t out_width;   // Q
  int32_t steps;       // of all sources
  int32_t activation;
  FastDivide by_channel_tiles;
  FastDivide by_out_pixels;
  FastDivide by_out_width;
  Sm90Source source[2];  // the second is read only where `steps` is more than the first one's
  int32_t y_pitch;       // halves from one pixel of y to the next
  int32_t backward_from;  // the last pixel tile: they are taken from there on down; negative: from 0 up
  int32_t cuts;  // whether channels of a source are no multiple of 64
  int32_t padding;
};
static_assert(sizeof(Sm90ConvArgs) == 960, "mirrored in sm90_conv2d_fprop.rs");
static_assert(offsetof(Sm90ConvArgs, bias) == 768 && offsetof(Sm90ConvArgs, source) == 848,
              "mirrored in sm90_conv2d_fprop.rs");

constexpr int kStepChannels = 64;                       // of one stage: 128 bytes, the copy engine's widest swizzle
constexpr int kRowBytes = kStepChannels * 2;            // of a channel's filter and of a pixel, in a stage
constexpr int kSlabChannels = 64;                       // output channels of a warpgroup
constexpr uint32_t kMostBlocks = 8;                     // of a cluster that every device takes
constexpr int kSlabBytes = kSlabChannels * kRowBytes;   // of a slab's filters in a stage

constexpr int max_of(int a, int b) { return a > b ? a : b; }

// Everything that follows from a tile's shape: kSlabs times 64 output channels, kParts times kPartPixels pixels, one
// warpgroup for each slab of each part.
template <int kSlabs_, int kParts_, int kPartPixels_, int kStages_, int kChunkPixels_, int kChunks_, int kMinBlocks_>
struct Sm90Tile {
  static constexpr int kSlabs = kSlabs_, kParts = kParts_, kPartPixels = kPartPixels_, kStages = kStages_;
  static constexpr int kChannels = kSlabs * kSlabChannels, kPixels = kParts * kPartPixels;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr int kConsumers = kSlabs * kParts, kThreads = 128 * (1 + kConsumers);

  // Three warpgroups on a multiprocessor of their own start with 168 registers a thread; those that multiply want more.
  static constexpr bool kMovesRegisters = kThreads == 384 && kMinBlocks == 1;

  // A stage: filters, then pixels, a row of 64 channels each.
  static constexpr int kPartBytes = kPartPixels * kRowBytes;
  static constexpr int kFilterBytes = kSlabs * kSlabBytes, kPixelBytes = kParts * kPartBytes;
  static constexpr int kStageBytes = kFilterBytes + kPixelBytes;

  // The output goes out in chunks: kChunks buffers for each warpgroup.
  static constexpr int kChunkPixels = kChunkPixels_, kChunks = kChunks_;
  static constexpr int kChunkBytes = kChunkPixels * kRowBytes;
  // Two blocks with neighbouring channels may share their pixels: each copies one half of them for both.
  static constexpr bool kPairs = kSlabs == 2;
  // Blocks of a cluster may share a tile of one warpgroup. Pairs may share tiles that fill a multiprocessor and whose
  // chunks have room for a slab's sums. What a block gets of the others' sums lies in place of the chunks, with a barrier
  // of its own.
  static constexpr bool kFits = kMinBlocks == 1 && kChunks * kChunkPixels == kPartPixels;
  static constexpr bool kOneGroup = kConsumers == 1;
  static constexpr bool kSplits = kOneGroup || (kPairs && kFits);
  static constexpr int kSumBytes = kSplits ? kPartPixels * kSlabChannels * 4 : 0;
  static constexpr int kOutBytes = max_of(kConsumers * kChunks * kChunkBytes, kSumBytes);

  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + kOutBytes + (kSplits ? 8 : 0);

  static_assert(kPartPixels % 16 == 0 && kPartPixels <= 256 && kPartPixels % kChunkPixels == 0, "whole products");
  static_assert(kChunkPixels % 16 == 0 && kChunkBytes % 1024 == 0 && kPartBytes % 1024 == 0, "swizzled in 1024 bytes");
  static_assert(kSharedBytes <= 227 * 1024, "what a block may have");
};

// A place in the ring of stages; runs on from tile to tile.
template <class Tile> struct Ring {
  uint32_t smem;  // of stage 0
  uint32_t stage = 0, phase = 0;

  __device__ __forceinline__ uint32_t filters() const { return smem + stage * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t pixels() const { return filters() + Tile::kFilterBytes; }
  __device__ __forceinline__ uint32_t full() const {
    return smem + Tile::kStages * Tile::kStageBytes + Tile::kOutBytes + stage * 8;
  }
  __device__ __forceinline__ uint32_t empty() const { return full() + Tile::kStages * 8; }
  __device__ __forceinline__ uint32_t received() const { return smem + Tile::kSharedBytes - 8; }
  __device__ __forceinline__ void advance() {
    if (++stage == Tile::kStages) stage = 0, phase ^= 1;
  }
};

// The first output channel and pixel of a tile. Channel tiles of one pixel tile follow each other, so that all but
// the first read the pixels from the L2 cache.
struct Sm90Origin {
  int32_t k, m;
};

template <class Tile> TREFOIL_DEVICE Sm90Origin sm90_origin(const Sm90ConvArgs &args, int32_t tile) {
  const int32_t m_tile = divide(tile, args.by_channel_tiles);
  const int32_t m = args.backward_from >= 0 ? args.backward_from - m_tile : m_tile;
  return {(tile - m_tile * args.channel_tiles) * Tile::kChannels, m * Tile::kPixels};
}

// What a block does: which tiles, and of each the steps from `begin` to `end`.
struct Share {
  uint32_t rank = 0, blocks = 1;                         // of the cluster, a power of two
  uint32_t pair = 1;                                     // 2: this block and a neighbour copy pixels for each other
  uint32_t summand = 0, summands = 1, log_summands = 0;  // of a tile: each block of a pair has the same, of its own tile
  int32_t begin, end;
  int32_t first_tile, tile_stride;

  // A sum of this block: 0 if it has no steps, whatever the register holds then.
  __device__ __forceinline__ float sum(float of) const { return begin < end ? of : 0.0f; }
};

template <class Tile> TREFOIL_DEVICE Share share_of(const Sm90ConvArgs &args) {
  Share share;
  if constexpr (Tile::kSplits || Tile::kPairs) share.rank = cluster_rank(), share.blocks = cluster_blocks();
  if constexpr (Tile::kPairs) share.pair = min(share.blocks, 2);
  const uint32_t log_pair = share.pair - 1;
  if constexpr (Tile::kSplits) {
    share.summand = share.rank >> log_pair, share.summands = share.blocks >> log_pair;
    share.log_summands = 31 - __clz(share.summands);
  }
  share.begin = args.steps * share.summand >> share.log_summands;
  share.end = args.steps * (share.summand + 1) >> share.log_summands;
  // The tiles of a pair follow each other.
  share.first_tile = (blockIdx.x >> log_pair + share.log_summands << log_pair) + (share.rank & share.pair - 1);
  share.tile_stride = gridDim.x >> share.log_summands;
  return share;
}

// ---- load: one thread --------------------------------------------------------------------------------------------

// An output pixel.
struct Pixel {
  int32_t n, p, q;
};

TREFOIL_DEVICE Pixel pixel_of(const Sm90ConvArgs &args, int32_t m) {
  const int32_t n = divide(m, args.by_out_pixels), in_image = m - n * args.out_pixels;
  const int32_t p = divide(in_image, args.by_out_width);
  return {n, p, in_image - p * args.out_width};
}

template <class Tile>
TREFOIL_DEVICE void load_residual(const Sm90ConvArgs &args, Ring<Tile> &ring, Sm90Origin origin) {
#pragma unroll
  for (int slab = 0; slab < Tile::kSlabs; ++slab) {
    barrier_wait(ring.empty(), ring.phase ^ 1);
    barrier_arrive_expect(ring.full(), Tile::kPixelBytes);
#pragma unroll
    for (int part = 0; part < Tile::kParts; ++part)
      copy_box_2d(ring.pixels() + part * Tile::kPartBytes, &args.residual, ring.full(), origin.k + slab * kSlabChannels,
                  origin.m + part * Tile::kPartPixels);
    ring.advance();
  }
}

// A step of the sum: 64 channels of a filter tap of a source.
struct Step {
  int32_t source = 0, r = 0, s = 0, tap = 0, c = 0;

  __device__ __forceinline__ void advance(const Sm90ConvArgs &args) {
    const Sm90Source &from = args.source[source];
    c += kStepChannels;
    if (c < from.c_steps * kStepChannels) return;
    c = 0, ++tap;
    if (++s < from.filter_w) return;
    s = 0;
    if (++r < from.filter_h) return;
    r = 0, tap = 0, source = 1;
  }
};

// The step that `index` others come before.
TREFOIL_DEVICE Step step_at(const Sm90ConvArgs &args, int32_t index) {
  Step step;
  const int32_t of_first = args.source[0].filter_h * args.source[0].filter_w * args.source[0].c_steps;
  if (index >= of_first) index -= of_first, step.source = 1;
  const Sm90Source &from = args.source[step.source];
  step.tap = index / from.c_steps;
  step.c = (index - step.tap * from.c_steps) * kStepChannels;
  step.r = step.tap / from.filter_w;
  step.s = step.tap - step.r * from.filter_w;
  return step;
}

// Expects a stage's bytes, and copies its filters.
template <class Tile>
TREFOIL_DEVICE void load_filters(const Sm90ConvArgs &args, const Ring<Tile> &ring, const Step &step, int32_t k) {
  barrier_arrive_expect(ring.full(), Tile::kStageBytes);
  copy_box_3d(ring.filters(), &args.filter[step.source], ring.full(), step.c, step.tap, k);
}

// Copies a stage's pixels: one part of the tile, or the half of it that the block copies for a pair, from output pixel m
// on, which is `first`. A tap's last step ends with the last channel, if there are 64, and filters have zeros for those of
// its channels that the step before had: the copy engine takes several times as long for pixels that end within a box.
template <class Tile>
TREFOIL_DEVICE void load_pixels(const Sm90ConvArgs &args, const Share &share, uint32_t smem, uint32_t full,
                                const Step &step, int32_t m, const Pixel &first) {
  const Sm90Source &from = args.source[step.source];
  const TensorMap *map = &args.x[step.source];
  const int32_t w = first.q * from.stride_w - from.pad_left, h = first.p * from.stride_h - from.pad_top;
  const uint16_t offset_w = step.s * from.dilation_w, offset_h = step.r * from.dilation_h;
  const int32_t c = args.cuts ? min(step.c, from.last_channel) : step.c;
  if (Tile::kPairs && share.pair > 1) {
    const uint16_t both = 3 << share.summand * 2;
    if (from.by_windows) copy_im2col_to(both, smem, map, full, c, w, h, first.n, offset_w, offset_h);
    else copy_box_2d_to(both, smem, map, full, c, m);
  } else {
    if (from.by_windows) copy_im2col(smem, map, full, c, w, h, first.n, offset_w, offset_h);
    else copy_box_2d(smem, map, full, c, m);
  }
}

template <class Tile> TREFOIL_DEVICE void load(const Sm90ConvArgs &args, const Share &share, Ring<Tile> ring) {
  const int32_t steps = share.end - share.begin;
  const Step begin = share.begin > 0 ? step_at(args, share.begin) : Step();
  // Of a pair each block copies one half of the pixels for both.
  const int32_t from_pixel = Tile::kPairs ? (share.rank & share.pair - 1) * (Tile::kPartPixels / 2) : 0;
  // Filters depend on no launch: those of the first stages come while earlier launches end.
  int32_t filters_ahead = min(steps, Tile::kStages);
  Ring<Tile> ahead = ring;
  Step step_ahead = begin;
  for (int32_t i = 0; i < filters_ahead; ++i, ahead.advance(), step_ahead.advance(args))
    load_filters(args, ahead, step_ahead, sm90_origin<Tile>(args, share.first_tile).k);
  wait_for_earlier_launches();
  allow_next_launch();  // not before: the next launch's filters would come beside this one's pixels
  for (int32_t tile = share.first_tile; tile < args.tiles; tile += share.tile_stride) {
    const Sm90Origin origin = sm90_origin<Tile>(args, tile);
    Pixel first[Tile::kParts];
#pragma unroll
    for (int part = 0; part < Tile::kParts; ++part)
      first[part] = pixel_of(args, origin.m + part * Tile::kPartPixels + from_pixel);
    Step step = begin;
    for (int32_t i = 0; i < steps; ++i, ring.advance(), step.advance(args)) {
      if (filters_ahead > 0) {
        --filters_ahead;
      } else {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        load_filters(args, ring, step, origin.k);
      }
#pragma unroll
      for (int part = 0; part < Tile::kParts; ++part)
        load_pixels<Tile>(args, share, ring.pixels() + part * Tile::kPartBytes + from_pixel * kRowBytes, ring.full(),
                          step, origin.m + part * Tile::kPartPixels + from_pixel, first[part]);
    }
    if (args.residual_values != nullptr) load_residual(args, ring, origin);
  }
  if (Tile::kPairs && share.pair > 1) {
    // The block ends after the other has read what it copied there, and has given all stages back.
    for (int32_t i = 0; i < Tile::kStages; ++i, ring.advance()) barrier_wait(ring.empty(), ring.phase ^ 1);
  }
}

// What a step of a tile of one warpgroup copies. Everything that has to be multiplied or divided is found before the wait for
// earlier launches; from one step to the next it is added to.
struct Cursor {
  const TensorMap *filter, *x;
  int32_t c, tap, right, down;  // a channel, the tap, and where the tap lies in its window
  int32_t c_end, right_end, down_end, right_by, down_by, last_channel;
  int32_t w, h;                 // of the first pixel's first tap
  int32_t source;  // not known to the compiler: it would read all of the second one before the first copy
  bool by_windows, is_second;

  __device__ __forceinline__ void read(const Sm90ConvArgs &args, int32_t index, const Pixel &first) {
    const Sm90Source &from = args.source[index];
    filter = &args.filter[index], x = &args.x[index];
    c_end = from.c_steps * kStepChannels, last_channel = args.cuts ? from.last_channel : c_end;
    right_by = from.dilation_w, down_by = from.dilation_h;
    right_end = from.filter_w * right_by, down_end = from.filter_h * down_by;
    w = first.q * from.stride_w - from.pad_left, h = first.p * from.stride_h - from.pad_top;
    by_windows = from.by_windows, is_second = index;
  }

  __device__ __forceinline__ Cursor(const Sm90ConvArgs &args, const Step &step, const Pixel &first) {
    source = step.source;
    asm volatile("" : "+r"(source));
    read(args, step.source, first);
    c = step.c, tap = step.tap, right = step.s * right_by, down = step.r * down_by;
  }

  __device__ __forceinline__ void advance(const Sm90ConvArgs &args, const Pixel &first) {
    c += kStepChannels;
    if (c < c_end) return;
    c = 0, ++tap, right += right_by;
    if (right < right_end) return;
    right = 0, down += down_by;
    if (down < down_end || is_second) return;
    down = 0, tap = 0;
    read(args, ++source, first);
  }
};

// What `load` does, of tiles of one warpgroup.
template <class Tile> TREFOIL_DEVICE void load_of_one_group(const Sm90ConvArgs &args, const Share &share, Ring<Tile> ring) {
  for (const TensorMap &map : args.x) prefetch_tensor_map(&map);
  const int32_t steps = share.end - share.begin;
  const Step begin = share.begin > 0 ? step_at(args, share.begin) : Step();
  Sm90Origin origin = sm90_origin<Tile>(args, share.first_tile);
  Pixel first = pixel_of(args, origin.m);
  Cursor cursor(args, begin, first);
  // Filters depend on no launch: those of the first stages come while earlier launches end.
  int32_t filters_ahead = min(steps, Tile::kStages);
  Ring<Tile> ahead = ring;
  Cursor cursor_ahead = cursor;
  const auto copy_filters = [&](const Ring<Tile> &to, const Cursor &of) {
    barrier_arrive_expect(to.full(), Tile::kStageBytes);
    copy_box_3d(to.filters(), of.filter, to.full(), of.c, of.tap, origin.k);
  };
#pragma unroll 1
  for (int32_t i = 0; i < filters_ahead; ++i, ahead.advance(), cursor_ahead.advance(args, first))
    copy_filters(ahead, cursor_ahead);
  // Found here, not behind the wait.
  asm volatile("" : "+r"(cursor.w), "+r"(cursor.h), "+r"(cursor.c), "+r"(cursor.right), "+r"(cursor.down),
               "+r"(first.n), "+r"(origin.m), "+r"(cursor.c_end), "+r"(cursor.right_end), "+r"(cursor.down_end));
  wait_for_earlier_launches();
  allow_next_launch();  // not before: the next launch's filters would come beside this one's pixels
  for (int32_t tile = share.first_tile;;) {
#pragma unroll 1
    for (int32_t i = 0; i < steps; ++i, ring.advance(), cursor.advance(args, first)) {
      if (filters_ahead > 0) {
        --filters_ahead;
      } else {
        if (i == Tile::kStages && share.blocks > 1) cluster_wait_alone();
        barrier_wait(ring.empty(), ring.phase ^ 1);
        copy_filters(ring, cursor);
      }
      const int32_t c = min(cursor.c, cursor.last_channel);
      if (cursor.by_windows)
        copy_im2col(ring.pixels(), cursor.x, ring.full(), c, cursor.w, cursor.h, first.n, cursor.right, cursor.down);
      else copy_box_2d(ring.pixels(), cursor.x, ring.full(), c, origin.m);
    }
    if (args.residual_values != nullptr && share.summands == 1) load_residual(args, ring, origin);
    tile += share.tile_stride;
    if (tile >= args.tiles) break;
    origin = sm90_origin<Tile>(args, tile);
    first = pixel_of(args, origin.m);
    cursor = Cursor(args, begin, first);
  }
}

// ---- multiply and store: a warpgroup -----------------------------------------------------------------------------

// Gives a stage back, once for each warp: to all who copy into it.
template <class Tile> TREFOIL_DEVICE void release(const Share &share, const Ring<Tile> &ring) {
  const uint32_t lane = threadIdx.x % 32;
  if (!Tile::kPairs || share.pair == 1) {
    if (lane == 0) barrier_arrive(ring.empty());
  } else {
    if (lane < 2) barrier_arrive_at(ring.empty(), share.summand * 2 + lane);
  }
}

// The sums of one tile over some steps: this warpgroup's 64 channels of its part's pixels.
template <class Tile>
TREFOIL_DEVICE void multiply(const Share &share, Ring<Tile> &ring, uint32_t slab, uint32_t part,
                             float (&d)[Tile::kPartPixels / 2]) {
  const int32_t steps = share.end - share.begin;
  Ring<Tile> before = ring;
  for (int32_t step = 0; step < steps; ++step) {
    barrier_wait(ring.full(), ring.phase);
    const uint64_t a = wgmma_operand(ring.filters() + slab * kSlabBytes);
    const uint64_t b = wgmma_operand(ring.pixels() + part * Tile::kPartBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStepChannels / 16; ++k) Wgmma<Tile::kPartPixels>::multiply(d, a + 2 * k, b + 2 * k, step + k > 0);
    wgmma_commit();
    // One group stays in flight; the one before it has read its stage.
    wgmma_wait<1>();
    if (step > 0) release(share, before);
    before = ring;
    ring.advance();
  }
  wgmma_wait<0>();
  wgmma_use(d);
  if (!Tile::kSplits || steps > 0) release(share, before);
}

// Waits for the residual's stages; gives the address of this warpgroup's part and the stage to release after it.
template <class Tile>
TREFOIL_DEVICE Ring<Tile> await_residual(const Share &share, Ring<Tile> &ring, uint32_t slab) {
  Ring<Tile> mine = ring;
#pragma unroll
  for (int i = 0; i < Tile::kSlabs; ++i) {
    barrier_wait(ring.full(), ring.phase);
    if (i == slab) mine = ring;
    else release(share, ring);
    ring.advance();
  }
  return mine;
}

// Twos are what a thread has of a tile of one warpgroup, two pixels of a channel. Those that it stores, where the blocks of a
// cluster share the tile, `count` from `first` on: where they lie in y, and what is added to them. Lanes of an even and
// an odd channel exchange a pixel: then each has two channels of one.
template <class Tile> struct Twos {
  static constexpr uint32_t kAll = Tile::kPartPixels / 4, kMost = kAll / 2;
  uint32_t first, count;
  int64_t at[kMost];  // in y; negative: outside
  uint32_t residual[kMost];

  // Only after the wait for earlier launches is the residual read.
  __device__ __forceinline__ Twos(const Sm90ConvArgs &args, const Share &share, Sm90Origin origin) {
    const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, odd = lane / 4 % 2;
    count = kAll >> share.log_summands, first = share.summand * count;
    int64_t from[kMost];
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      const uint32_t two = first + i;
      const int32_t k = origin.k + warp * 16 + two % 2 * 8 + lane / 4 - odd;
      const int32_t m = origin.m + two / 2 * 8 + lane % 4 * 2 + odd;
      const bool inside = i < count && k < args.k_stored && m < args.m_pixels;
      at[i] = inside ? static_cast<int64_t>(m) * args.y_pitch + k : -1;
      from[i] = static_cast<int64_t>(m) * args.k_stored + k;
    }
    cluster_wait();  // the others have begun
    wait_for_earlier_launches();
#pragma unroll
    for (uint32_t &each : residual) each = 0;
    if (args.residual_values == nullptr) return;
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      if (at[i] >= 0) residual[i] = __ldcg(reinterpret_cast<const uint32_t *>(args.residual_values + from[i]));
    }
  }
};

// Adds up what the blocks of a cluster have summed of a tile of one warpgroup, in their order, and stores it, each block an
// equal part of the tile. A thread's sums go by twos to the block that stores them: its `smem_sums` is [blocks][twos that
// it stores][128 threads], its barrier at `received` counts the bytes.
template <class Tile>
TREFOIL_DEVICE void add_and_store(const Sm90ConvArgs &args, const Share &share, const Twos<Tile> &twos, uint32_t smem_sums,
                                  uint32_t received, const float (&bias)[2], const float (&d)[Tile::kPartPixels / 2]) {
  constexpr uint32_t kTwos = Twos<Tile>::kAll;
  const uint32_t thread = threadIdx.x % 128, odd = thread / 4 % 2;
  const uint32_t smem_thread = smem_sums + thread * 8;
#pragma unroll
  for (uint32_t two = 0; two < kTwos; ++two)
    send_two(smem_thread + (share.summand * twos.count + (two & twos.count - 1)) * 1024, received,
             two * share.summands / kTwos, share.sum(d[two * 2]), share.sum(d[two * 2 + 1]));
  const Activation activation(args.activation);
  barrier_wait_cluster(received);
#pragma unroll
  for (uint32_t i = 0; i < Twos<Tile>::kMost; ++i) {
    if (i >= twos.count) break;
    // Pairs of blocks, so that reads of all parts follow each other.
    float2 parts[kMostBlocks] = {};
#pragma unroll
    for (uint32_t rank = 0; rank < kMostBlocks; rank += 2) {
      if (rank >= share.summands) break;
      parts[rank] = load_shared_two(smem_thread + (rank * twos.count + i) * 1024);
      parts[rank + 1] = load_shared_two(smem_thread + ((rank + 1) * twos.count + i) * 1024);
    }
    float2 sum = {};
#pragma unroll
    for (const float2 &part : parts) sum.x += part.x, sum.y += part.y;
    const float bias_of_channel = (twos.first + i) % 2 == 0 ? bias[0] : bias[1];
    sum.x += bias_of_channel, sum.y += bias_of_channel;
    const float other = __shfl_xor_sync(0xffffffff, odd ? sum.x : sum.y, 4);
    const float2 add = unpack_half2(twos.residual[i]);
    sum = odd ? make_float2(other + add.x, sum.y + add.y) : make_float2(sum.x + add.x, other + add.y);
    if (twos.at[i] >= 0) *reinterpret_cast<uint32_t *>(args.y_values + twos.at[i]) = activation(sum);
  }
}

// Sends this warpgroup's sums to the other block that has the tile. The block with summand s stores slab s.
// A thread's sums go by fours: `smem_sums` of who stores them is [fours of a thread][128 threads], its barrier at `received`
// counts the bytes.
template <class Tile>
TREFOIL_DEVICE void send_slab(const Share &share, uint32_t smem_sums, uint32_t received,
                              const float (&d)[Tile::kPartPixels / 2]) {
  const uint32_t smem_thread = smem_sums + threadIdx.x % 128 * 16, there = share.rank ^ share.pair;
#pragma unroll
  for (uint32_t four = 0; four < Tile::kPartPixels / 8; ++four) {
    const float *own = &d[four * 4];
    const float4 sums = make_float4(share.sum(own[0]), share.sum(own[1]), share.sum(own[2]), share.sum(own[3]));
    send_four(smem_thread + four * 2048, received, there, sums);
  }
}

// Adds to this warpgroup's sums those that the other block sends. The sum of two is the same in either order.
template <class Tile>
TREFOIL_DEVICE void add_slab(const Share &share, uint32_t smem_sums, uint32_t received,
                             float (&d)[Tile::kPartPixels / 2]) {
  const uint32_t smem_thread = smem_sums + threadIdx.x % 128 * 16;
  barrier_wait_cluster(received);
#pragma unroll
  for (uint32_t four = 0; four < Tile::kPartPixels / 8; ++four) {
    const float4 other = load_shared_four(smem_thread + four * 2048);
    float *own = &d[four * 4];
    own[0] = share.sum(own[0]) + other.x, own[1] = share.sum(own[1]) + other.y;
    own[2] = share.sum(own[2]) + other.z, own[3] = share.sum(own[3]) + other.w;
  }
}

template <class Tile>
TREFOIL_DEVICE void multiply_and_store(const Sm90ConvArgs &args, const Share &share, Ring<Tile> ring, uint32_t group) {
  constexpr int kChunksOfPart = Tile::kPartPixels / Tile::kChunkPixels;
  const uint32_t slab = group % Tile::kSlabs, part = group / Tile::kSlabs;
  const uint32_t warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const bool stores = threadIdx.x % 128 == 0;
  const uint32_t smem_sums = ring.smem + Tile::kStages * Tile::kStageBytes;
  const uint32_t smem_out = smem_sums + group * Tile::kChunks * Tile::kChunkBytes;
  // This lane's row of the four 8x8 matrices of 16 pixels: pixel, and 8 channels, swizzled like a tensor map's box.
  const uint32_t pixel = lane / 16 * 8 + lane % 8, channel_chunk = warp * 2 + lane / 8 % 2;
  const uint32_t lane_offset = pixel * kRowBytes + (channel_chunk ^ lane % 8) * 16;
  const Activation activation(args.activation);
  const bool has_residual = args.residual_values != nullptr;

  uint32_t chunk_slot = 0;
  for (int32_t tile = share.first_tile; tile < args.tiles; tile += share.tile_stride) {
    const Sm90Origin origin = sm90_origin<Tile>(args, tile);
    const int32_t k = origin.k + slab * kSlabChannels;
    const int32_t k_lane = k + warp * 16 + lane / 4;  // and eight more
    const float bias[2] = {k_lane < args.k_stored ? __ldg(args.bias + k_lane) : 0.0f,
                           k_lane + 8 < args.k_stored ? __ldg(args.bias + k_lane + 8) : 0.0f};
    float d[Tile::kPartPixels / 2];
    if constexpr (Tile::kOneGroup) {
      if (share.summands > 1) {
        const Twos<Tile> twos(args, share, origin);
        multiply(share, ring, slab, part, d);
        add_and_store<Tile>(args, share, twos, smem_out, ring.received(), bias, d);
        return;  // there is no other tile
      }
    }
    multiply(share, ring, slab, part, d);

    if constexpr (Tile::kSplits && Tile::kPairs) {
      if (share.summands > 1 && slab != share.summand) {
        send_slab<Tile>(share, smem_sums, ring.received(), d);
        if (has_residual) release(share, await_residual(share, ring, slab));
        return;  // there is no other tile
      }
      if (share.summands > 1) add_slab<Tile>(share, smem_sums, ring.received(), d);
    }

    Ring<Tile> residual = ring;
    if (has_residual) residual = await_residual(share, ring, slab);
    const uint32_t smem_residual = residual.pixels() + part * Tile::kPartBytes + lane_offset;
#pragma unroll
    for (int chunk = 0; chunk < kChunksOfPart; ++chunk) {
      const uint32_t smem_chunk = smem_out + chunk_slot * Tile::kChunkBytes;
      if (stores) wait_stores_read<Tile::kChunks - 1>();
      barrier_sync(1 + group, 128);
#pragma unroll
      for (int j = 0; j < Tile::kChunkPixels / 16; ++j) {
        const int sixteen = chunk * Tile::kChunkPixels / 16 + j;
        uint32_t add[4] = {}, out[4];
        if (has_residual) ldmatrix_x4_trans(add, smem_residual + sixteen * 16 * kRowBytes);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          float2 sum = make_float2(d[sixteen * 8 + q * 2] + bias[q % 2], d[sixteen * 8 + q * 2 + 1] + bias[q % 2]);
          if (has_residual) {
            const float2 other = unpack_half2(add[q]);
            sum.x += other.x, sum.y += other.y;
          }
          out[q] = activation(sum);
        }
        stmatrix_x4_trans(smem_chunk + lane_offset + j * 16 * kRowBytes, out);
      }
      fence_shared_for_copies();
      barrier_sync(1 + group, 128);
      if (stores) store_box_2d(&args.y, k, origin.m + part * Tile::kPartPixels + chunk * Tile::kChunkPixels, smem_chunk);
      chunk_slot = chunk_slot + 1 == Tile::kChunks ? 0 : chunk_slot + 1;
    }
    if (has_residual) release(share, residual);
  }
  if (stores) wait_stores_read<0>();
}

// The kernel body.
template <class Tile> TREFOIL_DEVICE void sm90_conv2d_fprop(const Sm90ConvArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  Ring<Tile> ring{shared_address(shared_bytes)};
  if constexpr (Tile::kOneGroup) ring.smem = uniform(ring.smem);
  const Share share = share_of<Tile>(args);
  if (threadIdx.x == 0) {
    if (ring.smem % 1024 != 0) __trap();  // the swizzle is of addresses
    Ring<Tile> each = ring;
    for (int stage = 0; stage < Tile::kStages; ++stage, each.advance()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), 4 * Tile::kConsumers * share.pair);
    }
    if constexpr (Tile::kSplits) {
      barrier_init(ring.received(), 1);
      barrier_arrive_expect(ring.received(), Tile::kSumBytes);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (share.blocks > 1) {
    cluster_arrive();
    if constexpr (Tile::kPairs) cluster_wait();
  }
  const uint32_t group = uniform(threadIdx.x / 128);
  if (group == 0) {
    if constexpr (Tile::kMovesRegisters) give_registers_up<40>();
    if (threadIdx.x == 0) {
      if constexpr (Tile::kOneGroup) load_of_one_group(args, share, ring);
      else load(args, share, ring);
    }
  } else {
    if constexpr (Tile::kMovesRegisters) take_registers<232>();
    multiply_and_store(args, share, ring, group - 1);
  }
}
