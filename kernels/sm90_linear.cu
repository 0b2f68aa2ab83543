// Fully connected layer on Hopper.
//
// There are few images and outputs and many channels, so what takes the time is the way of both operands to the
// multiprocessors. The blocks of a cluster share the channels of a tile, so that the tile can be large and its operands
// are copied few times. What a block reads fits its shared memory whole: all its copies are under way from the start,
// filters before earlier launches have ended, and nobody waits for room. Its sums go to the shared memory of the blocks
// that add them up.
#include "common.cuh"
#include "sm90_ptx.cuh"

struct Sm90LinearArgs {
  TensorMap x;        // halves {C, images}, box {64, images of a tile}
  TensorMap filter;   // halves {C, k_stored}, box {64, outputs of a tile}
  const float *bias;  // [k_stored]
  float *y;           // [images][k_stored]
  int32_t images;
  int32_t k_stored;
  int32_t c_boxes;  // ceil(C / 64)
  int32_t activation;
  FastDivide by_n_tiles;
  int32_t padding[6];
};
static_assert(sizeof(Sm90LinearArgs) == 320, "mirrored in sm90_linear.rs");
static_assert(offsetof(Sm90LinearArgs, bias) == 256 && offsetof(Sm90LinearArgs, by_n_tiles) == 288,
              "mirrored in sm90_linear.rs");

constexpr int kBoxChannels = 64;              // 128 bytes, the copy engine's widest swizzle
constexpr int kRowBytes = kBoxChannels * 2;   // of an image or an output in a box
constexpr int kTileN = 80;                    // outputs
constexpr int kGroupM = 64;                   // images of a warpgroup
constexpr uint32_t kTwos = kTileN / 4;        // sums of a thread, by twos: two outputs of an image
constexpr uint32_t kSumBoxes = 2;             // whose place the blocks' sums take
constexpr int kSendBytes = 32 * 8;            // a two of each thread of a warp

// Images of a tile, and blocks of the cluster that share its channels.
template <int kTileM_, int kBlocks_> struct LinearTile {
  static constexpr int kTileM = kTileM_;
  static constexpr uint32_t kBlocks = kBlocks_;
  static constexpr int kThreads = kTileM / kGroupM * 128;
  static constexpr int kXBytes = kTileM * kRowBytes, kBoxBytes = kXBytes + kTileN * kRowBytes;
  static constexpr uint32_t kAddedTwos = (kTwos + kBlocks - 1) / kBlocks;  // that a block adds up, at most
  static_assert(kTileM % kGroupM == 0 && kTileN % 8 == 0, "whole products");
  static_assert(kXBytes % 1024 == 0 && kBoxBytes % 1024 == 0, "swizzled in 1024 bytes");
  static_assert(kBlocks * kAddedTwos * kThreads * 8 <= kSumBoxes * kBoxBytes, "sums take the place of boxes");
};

// Where a block works, and its shared memory: boxes, images before filters, later sums [blocks][twos][threads]; then
// barriers.
template <class Tile> struct Place {
  uint32_t rank;  // of the cluster
  int32_t m_first, n_first;
  int32_t box_first, boxes;  // its share of the channels
  uint32_t smem, smem_barriers;

  __device__ __forceinline__ uint32_t x(int32_t box) const { return smem + box * Tile::kBoxBytes; }
  __device__ __forceinline__ uint32_t filter(int32_t box) const { return x(box) + Tile::kXBytes; }
  __device__ __forceinline__ uint32_t received() const { return smem_barriers; }
  __device__ __forceinline__ uint32_t full(int32_t box) const { return smem_barriers + 8 + box * 8; }
  // Of this thread's two, the `two`-th of those that a block adds up, from the block `from`.
  __device__ __forceinline__ uint32_t sum(uint32_t from, uint32_t two) const {
    return smem + ((from * Tile::kAddedTwos + two) * Tile::kThreads + threadIdx.x) * 8;
  }
};

template <class Tile> TREFOIL_DEVICE Place<Tile> place_of(const Sm90LinearArgs &args, uint32_t smem) {
  const uint32_t n_tiles = (args.k_stored + kTileN - 1) / kTileN, tile = blockIdx.x / Tile::kBlocks;
  const uint32_t m_tile = divide(tile, args.by_n_tiles);
  Place<Tile> place;
  place.rank = cluster_rank();
  place.m_first = m_tile * Tile::kTileM, place.n_first = (tile - m_tile * n_tiles) * kTileN;
  const uint32_t c_boxes = args.c_boxes;
  place.box_first = c_boxes * place.rank / Tile::kBlocks;
  place.boxes = c_boxes * (place.rank + 1) / Tile::kBlocks - place.box_first;
  place.smem = smem;
  const uint32_t room = max((c_boxes + Tile::kBlocks - 1) / Tile::kBlocks, kSumBoxes);
  place.smem_barriers = smem + room * Tile::kBoxBytes;
  return place;
}

// Starts all copies of the block: one thread.
template <class Tile> TREFOIL_DEVICE void load(const Sm90LinearArgs &args, const Place<Tile> &place) {
  allow_next_launch();
  prefetch_tensor_map(&args.filter);
  prefetch_tensor_map(&args.x);
  barrier_init(place.received(), 1);
#pragma unroll 1
  for (int32_t box = 0; box < place.boxes; ++box) barrier_init(place.full(box), 1);
  fence_barrier_init();
  // Only warps that have images send sums.
  const int32_t warps = (min(args.images - place.m_first, Tile::kTileM) + 15) / 16;
  const uint32_t two_first = min(place.rank * Tile::kAddedTwos, kTwos), twos = min(kTwos - two_first, Tile::kAddedTwos);
  barrier_arrive_expect(place.received(), Tile::kBlocks * twos * warps * kSendBytes);
#pragma unroll 1
  for (int32_t box = 0; box < place.boxes; ++box) {
    barrier_arrive_expect(place.full(box), Tile::kBoxBytes);
    copy_box_2d(place.filter(box), &args.filter, place.full(box), (place.box_first + box) * kBoxChannels, place.n_first);
  }
  wait_for_earlier_launches();
#pragma unroll 1
  for (int32_t box = 0; box < place.boxes; ++box)
    copy_box_2d(place.x(box), &args.x, place.full(box), (place.box_first + box) * kBoxChannels, place.m_first);
}

// Adds the products of the boxes from `first` to `end`: 64 images of a warpgroup, 80 outputs.
template <class Tile>
TREFOIL_DEVICE void multiply(const Place<Tile> &place, int32_t first, int32_t end, float (&d)[kTileN / 2]) {
  const uint32_t group = uniform(threadIdx.x / 128);
#pragma unroll 1
  for (int32_t box = first; box < end; ++box) {
    barrier_wait(place.full(box), 0);
    const uint64_t a = wgmma_operand(place.x(box) + group * kGroupM * kRowBytes);
    const uint64_t b = wgmma_operand(place.filter(box));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBoxChannels / 16; ++k) Wgmma<kTileN>::multiply(d, a + 2 * k, b + 2 * k, true);
    wgmma_commit();
  }
  wgmma_wait<0>();
  wgmma_use(d);
}

template <class Tile> TREFOIL_DEVICE void linear(const Sm90LinearArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const Place<Tile> place = place_of<Tile>(args, shared_address(shared_bytes));
  const int32_t warp_row = threadIdx.x / 32 * 16, row = warp_row + threadIdx.x % 32 / 4;
  const int32_t m_first = place.m_first + row, n_first = place.n_first + threadIdx.x % 4 * 2;

  // The bias of what this thread stores: its twos are outputs 8j + 2t and the next of image `row`, then of `row` + 8.
  float2 bias[Tile::kAddedTwos];
#pragma unroll
  for (uint32_t i = 0; i < Tile::kAddedTwos; ++i) {
    const int32_t n = n_first + (place.rank * Tile::kAddedTwos + i) / 2 * 8;
    bias[i] = n < args.k_stored ? __ldg(reinterpret_cast<const float2 *>(args.bias + n)) : float2{};
  }
  if (threadIdx.x == 0) {
    if (place.smem % 1024 != 0) __trap();  // the swizzle is of addresses
    load(args, place);
  }
  __syncthreads();  // also: whoever writes from here on does it after earlier launches

  // Main loop. Whoever arrives at the cluster's barrier has begun, and has multiplied what the sums take the place of.
  float d[kTileN / 2] = {};
  const int32_t boxes_before = min(place.boxes, static_cast<int32_t>(kSumBoxes));
  multiply(place, 0, boxes_before, d);
  cluster_arrive();
  multiply(place, boxes_before, place.boxes, d);
  cluster_wait();

  // Epilogue: sums to the block that stores them, which adds those of all blocks in their order.
  if (place.m_first + warp_row >= args.images) return;
#pragma unroll
  for (uint32_t two = 0; two < kTwos; ++two)
    send_two(place.sum(place.rank, two % Tile::kAddedTwos), place.received(), two / Tile::kAddedTwos, d[two * 2],
             d[two * 2 + 1]);
  barrier_wait_cluster(place.received());
#pragma unroll
  for (uint32_t i = 0; i < Tile::kAddedTwos; ++i) {
    const uint32_t two = place.rank * Tile::kAddedTwos + i;
    const int32_t m = m_first + two % 2 * 8, n = n_first + two / 2 * 8;
    float2 sum = {};
#pragma unroll
    for (uint32_t from = 0; from < Tile::kBlocks; ++from) {
      const float2 part = load_shared_two(place.sum(from, i));
      sum.x += part.x, sum.y += part.y;
    }
    if (two < kTwos && m < args.images && n < args.k_stored)
      *reinterpret_cast<float2 *>(args.y + static_cast<int64_t>(m) * args.k_stored + n) =
          make_float2(activate(sum.x + bias[i].x, args.activation), activate(sum.y + bias[i].y, args.activation));
  }
}

// Purpose    y[i][n] = act(sum over c of x[i][c] * filter[n][c] + bias[n]), kept in float because the classifier's sums
//            are compared and exponentiated.
// Operands   x         read   halves [images][C], by its map
//            filter    read   halves [k_stored][C], zeros in padded channels, by its map
//            bias      read   floats [k_stored], zeros in padded channels
//            y         write  floats [images][k_stored]
//            All are row-major, without gaps, at multiples of 16 bytes, disjoint; channel counts are multiples of 8. The
//            maps swizzle by 128 bytes and fill with zeros; their boxes are those that Sm90LinearArgs names.
// Arithmetic half products, float sums in a fixed order, no rounding to half. NaN stays NaN.
// Launch     clusters of kBlocks along the grid, one for each tile of kTileM images and kTileN outputs: grid
//            ceil(images / kTileM) * ceil(k_stored / kTileN) * kBlocks; block kThreads; dynamic shared memory
//            room * kBoxBytes + (room + 1) * 8 with room = max(ceil(c_boxes / kBlocks), kSumBoxes). compute capability
//            9.0 exactly.
// Limits     every count positive; that much shared memory; images below 2^28, k_stored below 2^20. Any tail: what is
//            beyond is read as zero and not written. Deterministic, no atomics: the sums of a cluster's blocks are added
//            in their order.
// Ordering   may be launched before its predecessors have ended, and lets its successor be: reads x and writes y only
//            after griddepcontrol.wait; filter and bias before.
// Source     wgmma, tensor maps, mbarrier, distributed shared memory: PTX ISA 9.0.
#define TREFOIL_SM90_LINEAR(tile_m, blocks)                                                                     \
  extern "C" __global__ void __launch_bounds__(LinearTile<tile_m, blocks>::kThreads, 1)                         \
      sm90_linear_##tile_m##_##blocks(const __grid_constant__ Sm90LinearArgs args) {                            \
    linear<LinearTile<tile_m, blocks>>(args);                                                                   \
  }

TREFOIL_SM90_LINEAR(64, 4)
TREFOIL_SM90_LINEAR(64, 8)
TREFOIL_SM90_LINEAR(128, 4)
TREFOIL_SM90_LINEAR(128, 8)
