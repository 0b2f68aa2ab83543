// Convolution of bytes as a matrix product on Hopper: the kernel body of sm90_conv2d_s8.cu.
//
//   S[k][m] = sum over (r, s, c) of F[k][r, s, c] * X[m][r, s, c];  Y[m][k] = requantised(S[k][m], k, residual[m][k])
//
// Output channels lie on the rows of the warpgroup product, 64 at a time, pixels on its columns: then a thread's sums are
// of a few channels, whose biases and scales it keeps. Filters are stored in an order in which these channels are
// neighbours: two bytes of a pixel, which stmatrix takes for a half. One warp copies: filters and pixels (im2col by the copy
// engine) go through one ring of stages, in the order in which they are read, and run ahead into the next tile. The
// warpgroups multiply, each its own part of the tile, and requantise it chunk by chunk: two with 64 channels each of the
// same pixels fill the halves of a chunk's rows. Another warp stores the chunks, so that none of them waits for the one
// whose turn it would be, and gives their places back, with a later chunk of the residual in them that the results
// overwrite.
//
// Two blocks with neighbouring pixels may be a pair: each copies half of their filters for both. Where the
// filters of all steps fit into shared memory, a block may keep them: its tiles all have the same channels, and two teams,
// each with warpgroups, a warp that copies, one that stores, and a ring of pixels of its own, compute tiles by themselves.
// Where there are far fewer tiles than multiprocessors, the blocks of a cluster share a tile of one warpgroup instead, and
// copy and store it by themselves (sm90_conv2d_s8_shared.cuh).
//
// A second convolution may be part of the sum: its steps follow those of the first, with filters, pixels and windows of
// its own.
#pragma once

#include "sm90_requantise.cuh"

// Where a source's pixels are taken from. Mirrored in sm90_conv2d_s8.rs.
struct S8Source {
  int32_t filter_h;
  int32_t filter_w;
  int32_t c_bytes;  // of all steps of a tap
  int32_t stride_h;
  int32_t stride_w;
  int32_t pad_top;
  int32_t pad_left;
  int32_t dilation_h;
  int32_t dilation_w;
  int32_t by_windows;  // 0: x is a matrix, one filter tap
};
static_assert(sizeof(S8Source) == 40, "mirrored in sm90_conv2d_s8.rs");

// What finds the tap and the channels of a source's step. Mirrored in sm90_conv2d_s8.rs.
struct S8Taps {
  FastDivide by_c_steps;  // steps of a tap
  FastDivide by_filter_w;
};
static_assert(sizeof(S8Taps) == 16, "mirrored in sm90_conv2d_s8.rs");

// The one argument of every entry point. Mirrored in sm90_conv2d_s8.rs.
struct Sm90ConvS8Args {
  TensorMap filter[2];   // of each source: pairs of bytes {C, R * S, K}, box {kRowBytes, 1, channels of the tile or half
                         // of them}
  TensorMap x[2];        // of each source: pairs of bytes {C, W, H, images} by windows, or {C, pixels}, of kRowBytes of
                         // the tile's pixels
  TensorMap residual;    // pairs of bytes {K, pixels}, box {kOutRowBytes, kChunkPixels}
  TensorMap y;           // pairs of bytes {K, pixels}, box {kOutRowBytes, kChunkPixels}
  const int32_t *bias;   // [k_stored]
  const float *scale;    // [k_stored]
  int32_t k_stored;
  int32_t tiles;         // of a block, or of a pair
  int32_t channel_tiles;
  int32_t out_pixels;    // P * Q
  int32_t out_width;     // Q
  int32_t steps;         // of both sources
  FastDivide by_channel_tiles;
  FastDivide by_out_pixels;
  FastDivide by_out_width;
  S8Source source[2];    // the second is read only where `steps` is more than the first one's
  S8Output output;
  const uint8_t *residual_values;  // what its map is of
  uint8_t *y_values;               // what its map is of
  int32_t m_pixels;
  int32_t first_steps;             // of the first source
  S8Taps taps[2];                  // of each source
  int32_t backward_from;           // the last pixel tile, or pair of them: taken from there on down; negative: from 0 up
  int32_t padding[7];
};
static_assert(sizeof(Sm90ConvS8Args) == 1024, "mirrored in sm90_conv2d_s8.rs");
static_assert(offsetof(Sm90ConvS8Args, bias) == 768 && offsetof(Sm90ConvS8Args, source) == 832,
              "mirrored in sm90_conv2d_s8.rs");

constexpr int kSlabChannels = 64;  // of a warpgroup's product
constexpr int kWarpChannels = 16;  // of a warp's part of it
constexpr int kProductBytes = 32;
constexpr int kChunkPixels = 32;  // that are stored at once

// Everything that follows from a tile's shape: kChannelGroups by kPixelGroups warpgroups with kSlabs times 64 channels of
// kProductPixels pixels each, and steps of kRowBytes input channels of a tap. If kKeeps, a block keeps its filters.
template <int kChannelGroups_, int kPixelGroups_, int kSlabs_, int kProductPixels_, int kRowBytes_, int kStages_,
          int kMinBlocks_, bool kKeeps_ = false>
struct S8Tile {
  static constexpr int kChannelGroups = kChannelGroups_, kPixelGroups = kPixelGroups_, kSlabs = kSlabs_;
  static constexpr int kProductPixels = kProductPixels_, kRowBytes = kRowBytes_;
  static constexpr int kStages = kStages_, kMinBlocks = kMinBlocks_;
  static constexpr bool kKeeps = kKeeps_;
  static constexpr int kGroups = kChannelGroups * kPixelGroups;
  // Blocks that keep filters have two teams of as many warpgroups, and of a warp that copies and one that stores.
  static constexpr int kTeams = kKeeps ? 2 : 1;
  // Of more sums than 168 registers of a thread hold, the warps that copy and store leave theirs to the others, for which
  // they have to be a warpgroup.
  static constexpr bool kMovesRegisters = kSlabs * kProductPixels > 256;
  // A tile of one warpgroup is stored by its threads, and may be shared by the blocks of a cluster; what a block gets of
  // their sums lies behind the stages.
  static constexpr bool kShares = kGroups == 1;
  static constexpr int kThreads = kTeams * (128 * kGroups + (kMovesRegisters ? 128 : kShares ? 32 : 64));
  static constexpr int kGroupChannels = kSlabs * kSlabChannels;
  static constexpr int kChannels = kChannelGroups * kGroupChannels, kPixels = kPixelGroups * kProductPixels;

  // A stage: filters, then pixels. If filters are kept: pixels; the first stages have the filters then, those of a step
  // kFilterStages of them, and each team has half of the rest.
  static constexpr int kFilterBytes = kChannels * kRowBytes, kPixelBytes = kPixels * kRowBytes;
  static constexpr int kStageBytes = (kKeeps ? 0 : kFilterBytes) + kPixelBytes;
  static constexpr int kFilterStages = kKeeps ? kFilterBytes / kPixelBytes : 0;

  // Residuals and results: rows of a pixel. They come and go in chunks, in as many places as a tile has, so that its
  // residual comes beside its products, and three at least. Two warpgroups with 64 channels each of the same pixels fill
  // the halves of rows of 128 bytes; the others have rows of their own.
  static constexpr int kJoined = kChannelGroups == 2 && kGroupChannels == 64 ? 2 : 1;
  static constexpr int kOuts = kGroups / kJoined;  // rings of chunks, in a team
  static constexpr int kOutRowBytes = kJoined * kGroupChannels, kOutColumns = kChannels / kOutRowBytes;
  static constexpr int kTileChunks = kProductPixels / kChunkPixels, kChunks = kTileChunks < 3 ? 3 : kTileChunks;
  static constexpr int kChunkBytes = kChunkPixels * kOutRowBytes;

  static constexpr int kOutBytes = kShares ? kPixels * kChannels * 4 : kTeams * kOuts * kChunks * kChunkBytes;
  static constexpr int kOutBarrierBytes = kShares ? 8 : kTeams * kOuts * kChunks * 16;

  static constexpr int kSharedBytes = kStages * (kStageBytes + 16) + kOutBytes + kOutBarrierBytes;

  static_assert(kFilterBytes % 2048 == 0 && kPixelBytes % 1024 == 0 && kChunkBytes % 1024 == 0, "whole swizzles");
  static_assert(!kKeeps || (kFilterBytes % kPixelBytes == 0 && !kShares && !kMovesRegisters), "whole stages");
  static_assert(kOutRowBytes == 128 || kOutRowBytes == 64, "a swizzle");
  static_assert(kChannels <= 256 && kPixels <= 256, "a box");
  static_assert(kProductPixels % kChunkPixels == 0, "whole chunks");
  static_assert(kMinBlocks * (kSharedBytes + 1024) <= 228 * 1024, "what a multiprocessor has");
};

// A place in the ring of stages; runs on from tile to tile.
template <class Tile> struct S8Ring {
  uint32_t smem;  // of stage 0
  uint32_t stage = 0, phase = 0;
  uint32_t first = 0, end = Tile::kStages;  // stages of the ring; fewer than all where filters are kept

  __device__ __forceinline__ uint32_t filters() const { return smem + stage * Tile::kStageBytes; }
  // Those of a step, where they are kept.
  __device__ __forceinline__ uint32_t filters_of(int32_t step) const {
    return Tile::kKeeps ? smem + step * Tile::kFilterBytes : filters();
  }
  __device__ __forceinline__ uint32_t pixels() const { return filters() + (Tile::kKeeps ? 0 : Tile::kFilterBytes); }
  // Chunks, or sums of a tile that blocks share, and the barrier of these.
  __device__ __forceinline__ uint32_t out() const { return smem + Tile::kStages * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t received() const { return smem + Tile::kSharedBytes - 8; }
  __device__ __forceinline__ uint32_t full() const {
    return smem + Tile::kSharedBytes - Tile::kOutBarrierBytes - Tile::kStages * 16 + stage * 8;
  }
  __device__ __forceinline__ uint32_t empty() const { return full() + Tile::kStages * 8; }
  __device__ __forceinline__ void advance() {
    if (++stage == (Tile::kKeeps ? end : Tile::kStages)) stage = Tile::kKeeps ? first : 0, phase ^= 1;
  }
  // A team's ring behind the filters of so many steps.
  __device__ __forceinline__ S8Ring behind_filters(int32_t steps, uint32_t team) const {
    const uint32_t kept = steps * Tile::kFilterStages, stages = (Tile::kStages - kept) / Tile::kTeams;
    const uint32_t begin = kept + team * stages;
    return {smem, begin, 0, begin, begin + stages};
  }
};

// A place in a ring of chunks, of one warpgroup or two; runs on from tile to tile.
template <class Tile> struct S8Chunks {
  uint32_t smem;  // of place 0
  uint32_t barriers;
  uint32_t place = 0, phase = 0;

  __device__ __forceinline__ S8Chunks(const S8Ring<Tile> &ring, uint32_t out)
      : smem(ring.out() + out * Tile::kChunks * Tile::kChunkBytes),
        barriers(ring.smem + Tile::kSharedBytes - (Tile::kTeams * Tile::kOuts - out) * Tile::kChunks * 16) {}
  __device__ __forceinline__ uint32_t results() const { return smem + place * Tile::kChunkBytes; }
  __device__ __forceinline__ uint32_t full() const { return barriers + place * 16; }
  // That warpgroups may write: what was stored from it has been read, and its residual is there.
  __device__ __forceinline__ uint32_t ready() const { return full() + 8; }
  __device__ __forceinline__ void advance() {
    if (++place == Tile::kChunks) place = 0, phase ^= 1;
  }
};

// What a block does: its place in a cluster, the cluster's tiles, and the steps of each that are its own. If filters are
// kept, what a team does.
struct S8Share {
  uint32_t rank, blocks;
  int32_t first_tile, tile_stride;
  int32_t begin, steps;
  uint32_t team;
};

template <class Tile> TREFOIL_DEVICE S8Share s8_share(const Sm90ConvS8Args &args, uint32_t team = 0) {
  if constexpr (Tile::kKeeps) {
    const int32_t blocks = gridDim.x;
    return {0, 1, static_cast<int32_t>(blockIdx.x) + static_cast<int32_t>(team) * blocks, Tile::kTeams * blocks,
            0, args.steps, team};
  }
  const uint32_t rank = cluster_rank(), blocks = cluster_blocks(), log_blocks = 31 - __clz(blocks);
  const int32_t begin = Tile::kShares ? args.steps * rank >> log_blocks : 0;
  const int32_t end = Tile::kShares ? args.steps * (rank + 1) >> log_blocks : args.steps;
  return {rank, blocks, static_cast<int32_t>(blockIdx.x >> log_blocks), static_cast<int32_t>(gridDim.x >> log_blocks),
          begin, end - begin, 0};
}

// Whether the block is one of a pair.
template <class Tile> TREFOIL_DEVICE bool is_paired(const S8Share &share) {
  return !Tile::kShares && !Tile::kKeeps && share.blocks > 1;
}

// The first output channel and pixel of a block's tile, or of a warpgroup's part of it. Channel tiles of one pixel tile
// follow each other, so that all but the first read the pixels from the L2 cache.
struct S8Origin {
  int32_t k, m;
};

template <class Tile> TREFOIL_DEVICE S8Origin s8_origin(const Sm90ConvS8Args &args, const S8Share &share, int32_t tile) {
  const int32_t m_tile = divide(tile, args.by_channel_tiles);
  const int32_t m = args.backward_from >= 0 ? args.backward_from - m_tile : m_tile;
  const int32_t mine = Tile::kShares || Tile::kKeeps ? m : m * share.blocks + share.rank;
  return {(tile - m_tile * args.channel_tiles) * Tile::kChannels, mine * Tile::kPixels};
}

// A warpgroup's part of a tile.
template <class Tile> TREFOIL_DEVICE S8Origin s8_part(const S8Origin &origin, uint32_t group) {
  return {origin.k + static_cast<int32_t>(group % Tile::kChannelGroups) * Tile::kGroupChannels,
          origin.m + static_cast<int32_t>(group / Tile::kChannelGroups) * Tile::kProductPixels};
}

// What the chunks of a ring are of.
template <class Tile> TREFOIL_DEVICE S8Origin s8_out(const S8Origin &origin, uint32_t out) {
  return {origin.k + static_cast<int32_t>(out % Tile::kOutColumns) * Tile::kOutRowBytes,
          origin.m + static_cast<int32_t>(out / Tile::kOutColumns) * Tile::kProductPixels};
}

// ---- load: one thread --------------------------------------------------------------------------------------------

// A step of the sum: kRowBytes channels of a filter tap of a source.
template <class Tile> struct S8Step {
  int32_t source = 0, r = 0, s = 0, tap = 0, c = 0;

  __device__ __forceinline__ void advance(const Sm90ConvS8Args &args) {
    const S8Source &from = args.source[source];
    c += Tile::kRowBytes;
    if (c < from.c_bytes) return;
    c = 0, ++tap;
    if (++s < from.filter_w) return;
    s = 0;
    if (++r < from.filter_h) return;
    r = 0, tap = 0, source = 1;
  }
};

// Expects a stage's bytes, and copies its filters: of a pair each block one half of them, for both.
template <class Tile>
TREFOIL_DEVICE void load_filters(const Sm90ConvS8Args &args, const S8Share &share, const S8Ring<Tile> &ring,
                                 const S8Step<Tile> &step, int32_t k) {
  barrier_arrive_expect(ring.full(), Tile::kStageBytes);
  if (!is_paired<Tile>(share)) {
    copy_box_3d(ring.filters(), &args.filter[step.source], ring.full(), step.c / 2, step.tap, k);
  } else {
    const uint16_t both = 3;
    copy_box_3d_to(both, ring.filters() + share.rank * (Tile::kFilterBytes / 2), &args.filter[step.source], ring.full(),
                   step.c / 2, step.tap, k + share.rank * (Tile::kChannels / 2));
  }
}

// A tile's first pixel: column and row of the result, and image.
struct S8Pixel {
  int32_t q, p, n;
};

TREFOIL_DEVICE S8Pixel pixel_of(const Sm90ConvS8Args &args, int32_t m) {
  const int32_t n = divide(m, args.by_out_pixels), in_image = m - n * args.out_pixels;
  const int32_t p = divide(in_image, args.by_out_width);
  return {in_image - p * args.out_width, p, n};
}

// Copies a stage's pixels, from pixel m of the result on, which is `first`.
template <class Tile>
TREFOIL_DEVICE void load_pixels(const Sm90ConvS8Args &args, const S8Ring<Tile> &ring, const S8Step<Tile> &step,
                                int32_t m, const S8Pixel &first) {
  const S8Source &from = args.source[step.source];
  const TensorMap *map = &args.x[step.source];
  if (from.by_windows)
    copy_im2col(ring.pixels(), map, ring.full(), step.c / 2, first.q * from.stride_w - from.pad_left,
                first.p * from.stride_h - from.pad_top, first.n, step.s * from.dilation_w, step.r * from.dilation_h);
  else
    copy_box_2d(ring.pixels(), map, ring.full(), step.c / 2, m);
}

// The same where filters are kept: the first team copies them once, then each the pixels of its tiles.
template <class Tile>
TREFOIL_DEVICE void load_and_keep(const Sm90ConvS8Args &args, const S8Share &share, const S8Ring<Tile> &all) {
  for (const TensorMap &map : args.x) prefetch_tensor_map(&map);
  if (share.team == 0) {
    // Filters depend on no launch. A block's tiles are all of the same channels.
    const int32_t k = s8_origin<Tile>(args, share, share.first_tile).k;
    S8Ring<Tile> place = all;
    S8Step<Tile> step;
#pragma unroll 1
    for (int32_t i = 0; i < share.steps; ++i, step.advance(args), place.stage += Tile::kFilterStages) {
      barrier_arrive_expect(place.full(), Tile::kFilterBytes);
      copy_box_3d(place.filters(), &args.filter[step.source], place.full(), step.c / 2, step.tap, k);
    }
  }
  wait_for_earlier_launches();
  // Not before: filters of the next launch would come beside this one's pixels.
  allow_next_launch();
  S8Ring<Tile> ring = all.behind_filters(share.steps, share.team);
  for (int32_t tile = share.first_tile; tile < args.tiles; tile += share.tile_stride) {
    const S8Origin origin = s8_origin<Tile>(args, share, tile);
    const S8Pixel first = pixel_of(args, origin.m);
    S8Step<Tile> step;
#pragma unroll 1
    for (int32_t i = 0; i < share.steps; ++i, ring.advance(), step.advance(args)) {
      barrier_wait(ring.empty(), ring.phase ^ 1);
      barrier_arrive_expect(ring.full(), Tile::kPixelBytes);
      load_pixels(args, ring, step, origin.m, first);
    }
  }
}

template <class Tile>
TREFOIL_DEVICE void load(const Sm90ConvS8Args &args, const S8Share &share, S8Ring<Tile> ring) {
  for (const TensorMap &map : args.x) prefetch_tensor_map(&map);
  // Filters depend on no launch: those of the first stages come while earlier launches end.
  int32_t filters_ahead = min(share.steps, Tile::kStages);
  S8Ring<Tile> ahead = ring;
  S8Step<Tile> step_ahead;
#pragma unroll 1
  for (int32_t i = 0; i < filters_ahead; ++i, ahead.advance(), step_ahead.advance(args))
    load_filters(args, share, ahead, step_ahead, s8_origin<Tile>(args, share, share.first_tile).k);
  wait_for_earlier_launches();
  // Not before: filters of the next launch would come beside this one's pixels.
  allow_next_launch();
  for (int32_t tile = share.first_tile; tile < args.tiles; tile += share.tile_stride) {
    const S8Origin origin = s8_origin<Tile>(args, share, tile);
    const S8Pixel first = pixel_of(args, origin.m);
    S8Step<Tile> step;
#pragma unroll 1
    for (int32_t i = 0; i < share.steps; ++i, ring.advance(), step.advance(args)) {
      if (filters_ahead > 0) {
        --filters_ahead;
      } else {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        load_filters(args, share, ring, step, origin.k);
      }
      load_pixels(args, ring, step, origin.m, first);
    }
  }
  if (is_paired<Tile>(share)) {
    // The block ends after the other has read what it copied there, and has given all stages back.
    for (int32_t i = 0; i < Tile::kStages; ++i, ring.advance()) barrier_wait(ring.empty(), ring.phase ^ 1);
  }
}

// ---- store: one thread -------------------------------------------------------------------------------------------

// A chunk of each ring: its tile, and its first pixel in their parts of that.
template <class Tile> struct S8Walk {
  int32_t tile, pixel = 0;

  __device__ __forceinline__ void advance(const S8Share &share) {
    pixel += kChunkPixels;
    if (pixel == Tile::kProductPixels) pixel = 0, tile += share.tile_stride;
  }
};

// Gives warpgroups the place of a chunk, if there is one: with its residual, where one is added.
template <class Tile, bool kAdds>
TREFOIL_DEVICE void give(const Sm90ConvS8Args &args, const S8Share &share, uint32_t place, uint32_t ready,
                         const S8Walk<Tile> &walk, uint32_t out) {
  if (walk.tile >= args.tiles) return;
  if constexpr (kAdds) {
    const S8Origin part = s8_out<Tile>(s8_origin<Tile>(args, share, walk.tile), out);
    barrier_arrive_expect(ready, Tile::kChunkBytes);
    copy_box_2d(place, &args.residual, ready, part.k / 2, part.m + walk.pixel);
  } else {
    barrier_arrive(ready);
  }
}

template <class Tile, bool kAdds>
TREFOIL_DEVICE void store(const Sm90ConvS8Args &args, const S8Share &share, const S8Ring<Tile> &ring) {
  constexpr uint32_t kNextOut = Tile::kChunks * Tile::kChunkBytes, kNextBarriers = Tile::kChunks * 16;
  S8Chunks<Tile> given(ring, share.team * Tile::kOuts), chunks = given;
  S8Walk<Tile> ahead{share.first_tile};  // of `given`, as many chunks ahead as there are places
  const auto give_to = [&](int out) {
    give<Tile, kAdds>(args, share, given.results() + out * kNextOut, given.ready() + out * kNextBarriers, ahead, out);
  };
  if (kAdds) wait_for_earlier_launches();
  for (int place = 0; place < Tile::kChunks; ++place, given.advance(), ahead.advance(share))
#pragma unroll
    for (int out = 0; out < Tile::kOuts; ++out) give_to(out);
  bool is_first = true;
  for (S8Walk<Tile> walk{share.first_tile}; walk.tile < args.tiles; walk.advance(share), chunks.advance()) {
    const S8Origin origin = s8_origin<Tile>(args, share, walk.tile);
#pragma unroll
    for (int out = 0; out < Tile::kOuts; ++out) {
      const S8Origin part = s8_out<Tile>(origin, out);
      barrier_wait(chunks.full() + out * kNextBarriers, chunks.phase);
      store_box_2d(&args.y, part.k / 2, part.m + walk.pixel, chunks.results() + out * kNextOut);
      // What was stored from this ring before has been read.
      wait_stores_read<Tile::kOuts>();
      if (!is_first) give_to(out);
    }
    if (!is_first) given.advance(), ahead.advance(share);
    is_first = false;
  }
  wait_stores_read<0>();
}

// ---- multiply and requantise: a warpgroup ------------------------------------------------------------------------

// Gives a stage back, once for each warp: to all who copy into it.
template <class Tile> TREFOIL_DEVICE void release(const S8Share &share, const S8Ring<Tile> &ring) {
  const uint32_t lane = threadIdx.x % 32;
  if (!is_paired<Tile>(share)) {
    if (lane == 0) barrier_arrive(ring.empty());
  } else {
    if (lane < share.blocks) barrier_arrive_at(ring.empty(), lane);
  }
}

// The sums of one tile over the block's steps, one or more: this warpgroup's part.
template <class Tile, bool kSigned>
TREFOIL_DEVICE void multiply(const S8Share &share, S8Ring<Tile> &ring, uint32_t group,
                             int32_t (&d)[Tile::kSlabs][Tile::kProductPixels / 2]) {
  constexpr int kSlabBytes = kSlabChannels * Tile::kRowBytes;
  const uint32_t filters_at = group % Tile::kChannelGroups * Tile::kSlabs * kSlabBytes;
  const uint32_t pixels_at = group / Tile::kChannelGroups * Tile::kProductPixels * Tile::kRowBytes;
  S8Ring<Tile> before = ring;
#pragma unroll 1
  for (int32_t step = 0; step < share.steps; ++step) {
    barrier_wait(ring.full(), ring.phase);
    const uint64_t a = wgmma_operand<Tile::kRowBytes>(ring.filters_of(step) + filters_at);
    const uint64_t b = wgmma_operand<Tile::kRowBytes>(ring.pixels() + pixels_at);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Tile::kRowBytes / kProductBytes; ++k)
#pragma unroll
      for (int slab = 0; slab < Tile::kSlabs; ++slab)
        WgmmaBytes<Tile::kProductPixels, kSigned>::multiply(d[slab], a + (slab * kSlabBytes >> 4) + 2 * k, b + 2 * k,
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

template <class Tile, bool kSigned, bool kAdds>
TREFOIL_DEVICE void multiply_and_requantise(const Sm90ConvS8Args &args, const S8Share &share, S8Ring<Tile> ring,
                                            uint32_t group) {
  const uint32_t warp = uniform(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
  // A lane gives the address of a pixel's 16 bytes, which lie in the copy engine's swizzle: in another order in each row of
  // 128 bytes. 64 bytes on is the other half of such a row, of the second slab or of the second of two warpgroups.
  constexpr uint32_t kOrders = Tile::kOutRowBytes / 16;
  const uint32_t column = group % Tile::kJoined * (kSlabChannels / 16) + warp;
  const uint32_t lane_offset = lane * Tile::kOutRowBytes + (column ^ lane * Tile::kOutRowBytes / 128 % kOrders) * 16;

  S8Chunks<Tile> chunks(ring, share.team * Tile::kOuts + group / Tile::kJoined);
  Requantiser requantiser[Tile::kSlabs];
  const auto load_requantisers = [&](int32_t tile) {
    const S8Origin part = s8_part<Tile>(s8_origin<Tile>(args, share, tile), group);
#pragma unroll
    for (int slab = 0; slab < Tile::kSlabs; ++slab)
      requantiser[slab].load(args, part.k + slab * kSlabChannels + warp * kWarpChannels + lane / 4 * 2);
  };
  if constexpr (Tile::kKeeps) {
    load_requantisers(blockIdx.x);
    for (S8Ring<Tile> place = ring; place.stage < share.steps * Tile::kFilterStages; place.stage += Tile::kFilterStages)
      barrier_wait(place.full(), 0);
    ring = ring.behind_filters(share.steps, share.team);
  }
  for (int32_t tile = share.first_tile; tile < args.tiles; tile += share.tile_stride) {
    if constexpr (!Tile::kKeeps) load_requantisers(tile);
    int32_t d[Tile::kSlabs][Tile::kProductPixels / 2];
    multiply<Tile, kSigned>(share, ring, group, d);
#pragma unroll
    for (int chunk = 0; chunk < Tile::kProductPixels / kChunkPixels; ++chunk) {
      barrier_wait(chunks.ready(), chunks.phase);
#pragma unroll
      for (int slab = 0; slab < Tile::kSlabs; ++slab) {
        const uint32_t smem = (chunks.results() + lane_offset) ^ slab * kSlabChannels;
        requantise<kAdds>(args.output, requantiser[slab], d[slab] + chunk * (kChunkPixels / 2), smem);
      }
      fence_shared_for_copies();
      barrier_arrive_once(chunks.full());
      chunks.advance();
    }
  }
}

// The kernel body.
template <class Tile, bool kSigned, bool kAdds> TREFOIL_DEVICE void sm90_conv2d_s8(const Sm90ConvS8Args &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  S8Ring<Tile> ring{shared_address(shared_bytes)};
  const S8Share share = s8_share<Tile>(args);
  if (threadIdx.x == 0) {
    if (ring.smem % 1024 != 0) __trap();  // the swizzle is of addresses
    S8Ring<Tile> each = ring;
    for (int stage = 0; stage < Tile::kStages; ++stage, each.advance()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), 4 * Tile::kGroups * share.blocks);
    }
    for (int out = 0; out < Tile::kTeams * Tile::kOuts; ++out) {
      S8Chunks<Tile> chunks(ring, out);
      for (int place = 0; place < Tile::kChunks; ++place, chunks.advance()) {
        barrier_init(chunks.full(), 4 * Tile::kJoined);
        barrier_init(chunks.ready(), 1);
      }
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (share.blocks > 1) cluster_arrive(), cluster_wait();
  const uint32_t group = uniform(threadIdx.x / 128);
  if constexpr (Tile::kKeeps) {
    const bool multiplies = group < Tile::kTeams * Tile::kGroups;
    const uint32_t warp = multiplies ? 0 : uniform(threadIdx.x / 32 % 4);
    const uint32_t team = multiplies ? group / Tile::kGroups : warp / 2;
    const S8Share of_team = s8_share<Tile>(args, team);
    if (multiplies)
      multiply_and_requantise<Tile, kSigned, kAdds>(args, of_team, ring, group % Tile::kGroups);
    else if (threadIdx.x % 64 == 0)
      load_and_keep<Tile>(args, of_team, ring);
    else if (threadIdx.x % 64 == 32)
      store<Tile, kAdds>(args, of_team, ring);
    return;
  }
  if (group < Tile::kGroups) {
    if constexpr (Tile::kMovesRegisters) take_registers<232>();
    multiply_and_requantise<Tile, kSigned, kAdds>(args, share, ring, group);
  } else {
    if constexpr (Tile::kMovesRegisters) give_registers_up<40>();
    if (threadIdx.x == 128 * Tile::kGroups) load<Tile>(args, share, ring);
    if (threadIdx.x == 128 * Tile::kGroups + 32) store<Tile, kAdds>(args, share, ring);
  }
}
