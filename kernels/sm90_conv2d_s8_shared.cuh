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

  // Reads residuals: only after the wait for earlier launches.
  __device__ __forceinline__ S8Quads(const Sm90ConvS8Args &args, const S8Share &share, const S8Origin &origin) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    count = kMost / share.blocks, first = share.rank * count;
    const int32_t k = origin.k + warp * kWarpChannels + lane / 8 * 4;
#pragma unroll
    for (uint32_t i = 0; i < kMost; ++i) {
      const int32_t m = origin.m + (first + i) * kQuadPixels + lane % 4 * 2 + lane / 4 % 2;
      const bool inside = i < count && k < args.k_stored && m < args.m_pixels;
      at[i] = inside ? static_cast<int64_t>(m) * args.k_stored + k : -1;
      residual[i] = 0;
      if (kAdds && inside) residual[i] = __ldcg(reinterpret_cast<const uint32_t *>(args.residual_values + at[i]));
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
  const uint32_t smem_thread = smem_sums + threadIdx.x * kQuadBytes;
  cluster_wait();
#pragma unroll
  for (uint32_t quad = 0; quad < kMost; ++quad)
    send_four(smem_thread + (share.rank * quads.count + (quad & quads.count - 1)) * (kQuadThreads * kQuadBytes), received,
              quad * share.blocks / kMost, d + quad * 4);
  barrier_wait_cluster(received);
#pragma unroll
  for (uint32_t i = 0; i < kMost / 2; ++i) {
    if (i >= quads.count) break;
    int32_t sums[4] = {};
    for (uint32_t rank = 0; rank < share.blocks; ++rank) {
      const uint4 part = load_shared_u32x4(smem_thread + (rank * quads.count + i) * (kQuadThreads * kQuadBytes));
      sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
    }
    quads.store(args, requantiser, i, sums);
  }
}

template <class Tile, bool kSigned, bool kAdds>
TREFOIL_DEVICE void multiply_and_add_up(const Sm90ConvS8Args &args, const S8Share &share, S8Ring<Tile> ring) {
  const S8Origin origin = s8_origin<Tile>(args, share, share.first_tile);
  Requantiser requantiser;
  requantiser.load(args, origin.k + threadIdx.x / 32 * kWarpChannels + threadIdx.x % 32 / 4 * 2);
  wait_for_earlier_launches();
  const S8Quads<Tile, kAdds> quads(args, share, origin);
  int32_t d[1][Tile::kPixels / 2];
  multiply<Tile, kSigned>(share, ring, 0, d);
  if (share.blocks > 1) {
    add_up_and_store<Tile, kAdds>(args, share, requantiser, quads, ring.out(), ring.received(), d[0]);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < quads.kMost; ++i) quads.store(args, requantiser, i, d[0] + i * 4);
  }
}

// The kernel body.
template <class Tile, bool kSigned, bool kAdds> TREFOIL_DEVICE void sm90_conv2d_s8_shared(const Sm90ConvS8Args &args) {
  static_assert(Tile::kShares && Tile::kPixels * Tile::kChannels * 4 == Tile::kOutBytes, "a tile of one warpgroup");
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  S8Ring<Tile> ring{shared_address(shared_bytes)};
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
  // The same for all lanes, and the compiler knows it.
  if (__shfl_sync(0xffffffff, threadIdx.x / 32, 0) < 4) {
    multiply_and_add_up<Tile, kSigned, kAdds>(args, share, ring);
  } else if (threadIdx.x == 128) {
    load<Tile>(args, share, ring);
  }
}
