// Tiles of one warpgroup of the convolution of bytes on Hopper, for layers of few pixels: a block has one tile, or shares it
// with the other blocks of its cluster.
//
// What takes the time of such a layer is waiting, so nothing waits that need not: filters of the first stages and biases
// come while earlier launches end, residuals beside the products, and results go from registers to memory. Each block of a
// cluster sums a part of the steps, and sends its sums to the shared memory of the blocks that add them up, each for an
// equal part of the pixels. Sums are exact, so results do not depend on how many blocks share a tile.
#pragma once

#include "sm90_conv2d_s8.cuh"

// A quad is what a thread has of eight pixels: sums of two neighbouring pixels of one channel, then of the next channel.
constexpr int kQuadPixels = 8, kQuadBytes = 16;
constexpr uint32_t kQuadThreads = 128;

// Bytes of two pixels of two channels become four channels of one pixel, and the other way round: lanes of neighbouring
// channels exchange half of theirs.
TREFOIL_DEVICE uint32_t exchange_pixels(uint32_t bytes) {
  const uint32_t other = __shfl_xor_sync(0xffffffff, bytes, 4);
  return threadIdx.x / 4 % 2 == 0 ? __byte_perm(bytes, other, 0x5410) : __byte_perm(other, bytes, 0x7632);
}

// The quads that a thread stores, `count` of the tile's from `first` on: where they lie in y, and what is added to them.
template <class Tile, bool kAdds> struct S8Quads {
  static constexpr uint32_t kMost = Tile::kPixels / kQuadPixels;
  uint32_t first, count;
  int64_t at[kMost];       // of four channels in y; negative: outside
  uint32_t residual[kMost];

  __device__ __forceinline__ S8Quads(const Sm90ConvS8Args &args, const S8Share &share, const S8Origin &origin) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, log_blocks = 31 - __clz(share.blocks);
    count = kMost >> log_blocks, first = share.rank * count;
    const int32_t k = origin.k + warp * kWarpChannels + lane / 8 * 4;
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      const int32_t m = origin.m + (first + i) * kQuadPixels + lane % 4 * 2 + lane / 4 % 2;
      const bool inside = i < count && k < args.k_stored && m < args.m_pixels;
      at[i] = inside ? static_cast<int64_t>(m) * args.k_stored + k : -1;
    }
  }

  // Only after the wait for earlier launches.
  __device__ __forceinline__ void read_residual(const Sm90ConvS8Args &args) {
    if constexpr (kAdds) {
#pragma unroll
      for (uint32_t i = 0; i < kMost; ++i)
        residual[i] = at[i] >= 0 ? __ldcg(reinterpret_cast<const uint32_t *>(args.residual_values + at[i])) : 0;
    }
  }

  __device__ __forceinline__ void store(const Sm90ConvS8Args &args, const Requantiser &requantiser, uint32_t i,
                                        const int32_t *sums) const {
    const uint32_t add = kAdds ? exchange_pixels(residual[i]) : 0;
    uint32_t bytes = requantiser.template operator()<kAdds>(args.output, sums, add);
    if (args.output.result_is_low) bytes = low_bytes(bytes);
    bytes = exchange_pixels(bytes);
    if (at[i] >= 0) *reinterpret_cast<uint32_t *>(args.y_values + at[i]) = bytes;
  }
};

// Adds up what the blocks of a cluster have summed, and stores it. A thread's quads go to the block that stores them: its
// `smem_sums` is [blocks][quads that it stores][128 threads], its barrier at `received` counts the bytes.
template <class Tile, bool kAdds>
TREFOIL_DEVICE void add_up_and_store(const Sm90ConvS8Args &args, const S8Share &share, const Requantiser &requantiser,
                                     const S8Quads<Tile, kAdds> &quads, uint32_t smem_sums, uint32_t received,
                                     const int32_t (&d)[Tile::kPixels / 2]) {
  constexpr uint32_t kMost = S8Quads<Tile, kAdds>::kMost;
  constexpr uint32_t kBytes = kQuadThreads * kQuadBytes;
  const uint32_t smem_thread = smem_sums + threadIdx.x * kQuadBytes;
#pragma unroll
  for (uint32_t quad = 0; quad < kMost; ++quad)
    send_four(smem_thread + (share.rank * quads.count + (quad & quads.count - 1)) * kBytes, received,
              quad * share.blocks / kMost, d + quad * 4);
  barrier_wait_cluster(received);
#pragma unroll
  for (uint32_t i = 0; i < kMost / 2; ++i) {
    if (i >= quads.count) break;
    // Pairs of blocks, so that reads of all parts follow each other.
    uint4 parts[kMost] = {};
#pragma unroll
    for (uint32_t rank = 0; rank < kMost; rank += 2) {
      if (rank >= share.blocks) break;
      parts[rank] = load_shared_u32x4(smem_thread + (rank * quads.count + i) * kBytes);
      parts[rank + 1] = load_shared_u32x4(smem_thread + ((rank + 1) * quads.count + i) * kBytes);
    }
    int32_t sums[4] = {};
#pragma unroll
    for (const uint4 &part : parts) sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
    quads.store(args, requantiser, i, sums);
  }
}

template <class Tile, bool kSigned, bool kAdds>
TREFOIL_DEVICE void multiply_and_add_up(const Sm90ConvS8Args &args, const S8Share &share, S8Ring<Tile> ring) {
  const S8Origin origin = s8_origin<Tile>(args, share, share.first_tile);
  Requantiser requantiser;
  requantiser.load(args, origin.k + threadIdx.x / 32 * kWarpChannels + threadIdx.x % 32 / 4 * 2);
  S8Quads<Tile, kAdds> quads(args, share, origin);
  if (share.blocks > 1) cluster_wait();  // the others have begun
  wait_for_earlier_launches();
  quads.read_residual(args);
  int32_t d[1][Tile::kPixels / 2];
  multiply<Tile, kSigned>(share, ring, 0, d);
  if (share.blocks > 1) {
    add_up_and_store<Tile, kAdds>(args, share, requantiser, quads, ring.out(), ring.received(), d[0]);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < quads.kMost; ++i) quads.store(args, requantiser, i, d[0] + i * 4);
  }
}

// ---- load: one thread --------------------------------------------------------------------------------------------

// What a step copies. Everything that has to be multiplied or divided is found before the wait for earlier launches; from one
// step to the next it is added to.
template <class Tile> struct S8Cursor {
  const TensorMap *filter, *x;
  int32_t c, tap, right, down;  // a pair of channels, the tap, and where the tap lies in its window
  int32_t c_end, right_end, down_end, right_by, down_by;
  int32_t w, h;                 // of the first pixel's first tap
  bool by_windows, is_second;

  __device__ __forceinline__ void read(const Sm90ConvS8Args &args, uint32_t source, const S8Pixel &first) {
    const S8Source &from = args.source[source];
    filter = &args.filter[source], x = &args.x[source];
    c_end = from.c_bytes / 2, right_by = from.dilation_w, down_by = from.dilation_h;
    right_end = from.filter_w * right_by, down_end = from.filter_h * down_by;
    w = first.q * from.stride_w - from.pad_left, h = first.p * from.stride_h - from.pad_top;
    by_windows = from.by_windows, is_second = source;
  }

  // At the step `index` of the sum.
  __device__ __forceinline__ S8Cursor(const Sm90ConvS8Args &args, int32_t index, const S8Pixel &first) {
    const uint32_t source = index >= args.first_steps ? 1 : 0;
    read(args, source, first);
    index -= source * args.first_steps;
    tap = divide(index, args.taps[source].by_c_steps);
    c = index * (Tile::kRowBytes / 2) - tap * c_end;
    const int32_t r = divide(tap, args.taps[source].by_filter_w);
    down = r * down_by, right = tap * right_by - r * right_end;
  }

  __device__ __forceinline__ void advance(const Sm90ConvS8Args &args, const S8Pixel &first) {
    c += Tile::kRowBytes / 2;
    if (c < c_end) return;
    c = 0, ++tap, right += right_by;
    if (right < right_end) return;
    right = 0, down += down_by;
    if (down < down_end || is_second) return;
    down = 0, tap = 0;
    read(args, 1, first);
  }
};

// Filters and pixels of all steps. Filters of the first stages come before the wait for earlier launches.
template <class Tile>
TREFOIL_DEVICE void load_one_tile(const Sm90ConvS8Args &args, const S8Share &share, S8Ring<Tile> ring) {
  for (const TensorMap &map : args.x) prefetch_tensor_map(&map);
  const S8Origin origin = s8_origin<Tile>(args, share, share.first_tile);
  const S8Pixel first = pixel_of(args, origin.m);
  const S8Cursor<Tile> begin(args, share.begin, first);
  const auto copy_filters = [&](const S8Ring<Tile> &to, const S8Cursor<Tile> &of) {
    barrier_arrive_expect(to.full(), Tile::kStageBytes);
    copy_box_3d(to.filters(), of.filter, to.full(), of.c, of.tap, origin.k);
  };
  // Filters depend on no launch: those of the first stages come while earlier launches end.
  const int32_t ahead = min(share.steps, Tile::kStages);
  S8Ring<Tile> ring_ahead = ring;
  S8Cursor<Tile> cursor = begin;
#pragma unroll 1
  for (int32_t i = 0; i < ahead; ++i, ring_ahead.advance(), cursor.advance(args, first)) copy_filters(ring_ahead, cursor);
  cursor = begin;
  wait_for_earlier_launches();
  // Not before: filters of the next launch would come beside this one's pixels.
  allow_next_launch();
#pragma unroll 1
  for (int32_t i = 0; i < share.steps; ++i, ring.advance(), cursor.advance(args, first)) {
    if (i >= ahead) {
      if (i == ahead && share.blocks > 1) cluster_wait_alone();
      barrier_wait(ring.empty(), ring.phase ^ 1);
      copy_filters(ring, cursor);
    }
    if (cursor.by_windows)
      copy_im2col(ring.pixels(), cursor.x, ring.full(), cursor.c, cursor.w, cursor.h, first.n, cursor.right, cursor.down);
    else
      copy_box_2d(ring.pixels(), cursor.x, ring.full(), cursor.c, origin.m);
  }
}

// The kernel body.
template <class Tile, bool kSigned, bool kAdds> TREFOIL_DEVICE void sm90_conv2d_s8_shared(const Sm90ConvS8Args &args) {
  static_assert(Tile::kShares && Tile::kPixels * Tile::kChannels * 4 == Tile::kOutBytes, "a tile of one warpgroup");
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  S8Ring<Tile> ring{uniform(shared_address(shared_bytes))};
  const S8Share share = s8_share<Tile>(args);
  if (threadIdx.x == 128) {
    if (ring.smem % 1024 != 0) __trap();  // the swizzle is of addresses
    S8Ring<Tile> each = ring;
    for (int stage = 0; stage < Tile::kStages; ++stage, each.advance()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), 4);
    }
    barrier_init(ring.received(), 1);
    barrier_arrive_expect(ring.received(), Tile::kOutBytes);
    fence_barrier_init();
  }
  __syncthreads();
  if (share.blocks > 1) cluster_arrive();
  if (uniform(threadIdx.x / 32) < 4) {
    multiply_and_add_up<Tile, kSigned, kAdds>(args, share, ring);
  } else if (threadIdx.x == 128) {
    load_one_tile<Tile>(args, share, ring);
  }
}
