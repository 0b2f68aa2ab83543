// Attention on compute capability 9.0: softmax(q k^T * scale) v of each head; the scores never leave registers.
//
// A block of the grid walks over blocks of tiles: some tiles of 64 rows of one head, and that head's keys and values in
// chunks, which come through a ring of stages in shared memory once for all of these tiles. Each warpgroup that
// multiplies takes every kGroups-th tile, so that the exponentials of one run beside the products of the others; within
// one a chunk's values are added while the weights of the next are made, or those of the next tile's first. One more
// warpgroup loads.
#include "attention_softmax.cuh"
#include "sm90_ptx.cuh"

constexpr int kTileRows = 64;  // of a warpgroup's products
constexpr int kStoreRows = 16; // of a warp
constexpr int kBoxDims = 64;   // halves in a row of a swizzled box
constexpr int kRowBytes = kBoxDims * 2;
constexpr int kSharedBytes = 227 << 10;
constexpr int kRecordBytes = 32;
constexpr int kRecords = 4;  // of a group's tiles: those whose rows are loaded, the one before, and one to spare

struct Sm90AttentionArgs {
  TensorMap q;            // {dims, heads, rows, batch} boxes {64, 1, 64, 1}
  TensorMap k;            // {dims, heads, keys, batch} boxes {64, 1, kKeys, 1}
  TensorMap v;            // the same
  TensorMap out;          // the same boxes of 16 rows
  const int32_t *lengths; // [batch] keys of each image that count, or null: all
  const uint16_t *mask;   // halves that are added to scaled scores
  uint64_t mask_batch;    // halves from one image's to the next
  uint64_t mask_head;     // from one head's
  uint64_t mask_row;      // from one row's
  int32_t rows;
  int32_t keys;
  int32_t blocks;         // of tiles, over all heads
  int32_t block_tiles;    // tiles of a block, of a head's last maybe fewer
  int32_t row_tiles;      // of a head
  int32_t ahead;          // row i sees keys up to i + ahead
  float scale_log2;       // scale * log2(e)
  FastDivide by_heads;
  FastDivide by_blocks;   // of a head
  int32_t heads;
  int32_t head_blocks;
  int32_t padding[9];
};
static_assert(sizeof(Sm90AttentionArgs) == 640 && offsetof(Sm90AttentionArgs, rows) == 552,
              "mirrored in sm90_attention.rs");

template <int kDims_, int kKeys_, int kGroups_, bool kMasked_> struct AttentionTile {
  static constexpr int kDims = kDims_, kKeys = kKeys_, kGroups = kGroups_;
  static constexpr bool kMasked = kMasked_;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kBoxes = (kDims + kBoxDims - 1) / kBoxDims;  // side by side, of each operand
  static constexpr int kValues = (kKeys + 15) / 16 * 16;  // keys whose values a chunk has: the last may have no weights
  static constexpr int kQBytes = kTileRows * kRowBytes * kBoxes;
  static constexpr int kKeyBoxBytes = kKeys * kRowBytes, kKeyBytes = kKeyBoxBytes * kBoxes;
  static constexpr int kValueBoxBytes = kValues * kRowBytes, kValueBytes = kValueBoxBytes * kBoxes;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes;
  static constexpr int kQs = 2;  // of a warpgroup: one is loaded while the other is read
  static constexpr int kGroupBytes = (kQs + 1) * kQBytes;  // and the place of its result
  static constexpr int kStagesThatFit = (kSharedBytes - 1024 - kGroups * kGroupBytes) / kStageBytes;
  static constexpr int kStages = kStagesThatFit < 6 ? kStagesThatFit : 6;  // each a chunk's keys and its values
  static constexpr int kBarriersAt = kGroups * kGroupBytes + kStages * kStageBytes;
  static constexpr int kRecordsAt = kBarriersAt + 8 * (4 * kStages + 2 * kGroups * kQs);
  static constexpr int kDynamicBytes = kRecordsAt + kGroups * kRecords * kRecordBytes + 16;
  static constexpr int kProductRegisters = kGroups == 3 ? 160 : 240, kLoadRegisters = 24;
  static_assert(kDims % 16 == 0 && kKeys % 8 == 0 && kKeys <= 256, "whole products, and a box");
  static_assert(kQBytes % 1024 == 0 && kKeyBoxBytes % 1024 == 0, "swizzled in 1024 bytes");
  static_assert(kStages >= 2 && kDynamicBytes <= kSharedBytes, "a ring");
  static_assert(kGroups <= 3, "a warp that loads for each group, and one more");
};

// Shared memory: each group's rows and result, stages of keys and values, barriers.
template <class Tile> struct Shared {
  uint32_t base;

  __device__ __forceinline__ uint32_t q(int32_t group, uint32_t use) const {
    return base + group * Tile::kGroupBytes + use % Tile::kQs * Tile::kQBytes;
  }
  __device__ __forceinline__ uint32_t result(int32_t group) const { return q(group, 0) + Tile::kQs * Tile::kQBytes; }
  // Chunk `at` of all that come through the ring.
  __device__ __forceinline__ uint32_t k(uint32_t at) const {
    return base + Tile::kGroups * Tile::kGroupBytes + at % Tile::kStages * Tile::kStageBytes;
  }
  __device__ __forceinline__ uint32_t v(uint32_t at) const { return k(at) + Tile::kKeyBytes; }
  __device__ __forceinline__ uint32_t barriers(int32_t index) const { return base + Tile::kBarriersAt + 8 * index; }
  __device__ __forceinline__ uint32_t k_full(uint32_t at) const { return barriers(at % Tile::kStages * 4); }
  __device__ __forceinline__ uint32_t v_full(uint32_t at) const { return k_full(at) + 8; }
  __device__ __forceinline__ uint32_t k_empty(uint32_t at) const { return k_full(at) + 16; }
  __device__ __forceinline__ uint32_t v_empty(uint32_t at) const { return k_full(at) + 24; }
  static __device__ __forceinline__ uint32_t parity(uint32_t at) { return at / Tile::kStages & 1; }
  __device__ __forceinline__ uint32_t q_full(int32_t group, uint32_t use) const {
    return barriers(4 * Tile::kStages + (group * Tile::kQs + use % Tile::kQs) * 2);
  }
  __device__ __forceinline__ uint32_t q_empty(int32_t group, uint32_t use) const { return q_full(group, use) + 8; }
  // Where it is told how many chunks have been started.
  __device__ __forceinline__ uint32_t started() const { return base + Tile::kDynamicBytes - 16; }
  __device__ __forceinline__ uint32_t record(int32_t group, uint32_t use) const {
    return base + Tile::kRecordsAt + (group * kRecords + use % kRecords) * kRecordBytes;
  }
};

// The way of a thread over the blocks of its part of the grid, and over the tiles of each.
template <class Tile> struct Walk {
  const Sm90AttentionArgs &args;
  int32_t block, slot;  // this tile's block, and which of its tiles it is
  int32_t head;         // of all images' heads
  int32_t first_tile, keys;
  uint32_t ring;        // chunks of the blocks before

  // At tile `slot` of the first block, or of a later one.
  __device__ __forceinline__ Walk(const Sm90AttentionArgs &args, int32_t slot)
      : args(args), block(blockIdx.x), slot(slot), head(0), first_tile(0), keys(0), ring(0) {
    if (block < args.blocks) enter();
    settle();
  }

  __device__ __forceinline__ bool is_over() const { return block >= args.blocks; }
  __device__ __forceinline__ int32_t row() const { return (first_tile + slot) * kTileRows; }
  __device__ __forceinline__ int32_t tiles() const { return min(args.block_tiles, args.row_tiles - first_tile); }

  // Keys that row `row` and those before it see.
  __device__ __forceinline__ int32_t keys_up_to(int32_t row) const { return min(keys, row + args.ahead + 1); }
  // Chunks of the block's tile `index`: one at least, so that its rows become zeros.
  __device__ __forceinline__ int32_t chunks_of(int32_t index) const {
    const int32_t last_row = (first_tile + index) * kTileRows + kTileRows - 1;
    return static_cast<uint32_t>(max(keys_up_to(last_row) + Tile::kKeys - 1, Tile::kKeys)) / Tile::kKeys;
  }
  __device__ __forceinline__ int32_t chunks() const { return chunks_of(slot); }
  __device__ __forceinline__ int32_t block_chunks() const { return chunks_of(tiles() - 1); }

  __device__ __forceinline__ void next_block() {
    ring += block_chunks();
    block += gridDim.x;
    if (block < args.blocks) enter();
  }
  // On to this group's next tile, if there is one.
  __device__ __forceinline__ void next_tile() {
    slot += Tile::kGroups;
    settle();
  }

 private:
  __device__ __forceinline__ void enter() {
    head = divide(block, args.by_blocks);
    first_tile = (block - head * args.head_blocks) * args.block_tiles;
    keys = args.keys;
    if (args.lengths != nullptr) keys = max(0, min(keys, __ldcg(args.lengths + divide(head, args.by_heads))));
  }
  // Leaves a block whose tiles are fewer.
  __device__ __forceinline__ void settle() {
#pragma unroll 1
    while (block < args.blocks && slot >= tiles()) {
      slot -= tiles();
      next_block();
    }
  }
};

// What a warpgroup is told of a tile along with its rows, in shared memory: by whom walks for it.
struct Record {
  uint32_t chunks;   // 0: there are no more tiles
  uint32_t ring;     // where its first chunk is
  uint32_t is_near;  // that comes before the values of the tile before have been released
  int32_t keys;      // that count, of its head
  int32_t head, row;
};

TREFOIL_DEVICE void write_record(uint32_t shared_dst, const Record &record) {
  store_shared_u32x4(shared_dst, make_uint4(record.chunks, record.ring, record.is_near, record.keys));
  store_shared_u32x4(shared_dst + 16, make_uint4(record.head, record.row, 0, 0));
}

TREFOIL_DEVICE Record read_record(uint32_t shared_src) {
  const uint4 first = load_shared_u32x4(shared_src), second = load_shared_u32x4(shared_src + 16);
  return {first.x, first.y, first.z, static_cast<int32_t>(first.w), static_cast<int32_t>(second.x),
          static_cast<int32_t>(second.y)};
}

// ---- loading -----------------------------------------------------------------------------------------------------

template <class Tile>
TREFOIL_DEVICE void copy_boxes(uint32_t shared_dst, uint32_t box_bytes, const TensorMap &map, uint32_t barrier,
                               int32_t head, int32_t row, int32_t batch) {
  barrier_arrive_expect(barrier, Tile::kBoxes * box_bytes);
#pragma unroll
  for (int box = 0; box < Tile::kBoxes; ++box)
    copy_box_4d(shared_dst + box * box_bytes, &map, barrier, box * kBoxDims, head, row, batch);
}

// The rows of each tile of `group`, and its record: one thread.
template <class Tile>
TREFOIL_DEVICE void load_rows(const Sm90AttentionArgs &args, const Shared<Tile> &shared, int32_t group) {
  uint32_t use = 0, last = 0;  // chunk of the tile before
#pragma unroll 1
  for (Walk<Tile> walk(args, group);; walk.next_tile(), ++use) {
    barrier_wait(shared.q_empty(group, use), (use / Tile::kQs & 1) ^ 1);
    if (walk.is_over()) break;
    const uint32_t chunks = walk.chunks();
    const bool is_near = static_cast<int32_t>(walk.ring - last) <= Tile::kStages;
    write_record(shared.record(group, use), {chunks, walk.ring, is_near, walk.keys, walk.head, walk.row()});
    last = walk.ring + chunks - 1;
    const int32_t batch = divide(walk.head, args.by_heads), head = walk.head - batch * args.heads;
    copy_boxes<Tile>(shared.q(group, use), kTileRows * kRowBytes, args.q, shared.q_full(group, use), head, walk.row(),
                     batch);
  }
  write_record(shared.record(group, use), {});
  barrier_arrive(shared.q_full(group, use));
}

// The chunks of each block: one thread. It arrives for tiles that a block has not, and for those that see fewer keys.
template <class Tile> TREFOIL_DEVICE void load_chunks(const Sm90AttentionArgs &args, const Shared<Tile> &shared) {
#pragma unroll 1
  for (Walk<Tile> walk(args, 0); !walk.is_over(); walk.next_block()) {
    const int32_t batch = divide(walk.head, args.by_heads), head = walk.head - batch * args.heads;
    const int32_t chunks = walk.block_chunks();
    int32_t first = 0;  // the first tile that sees a chunk: later rows see more
    int32_t missing = args.block_tiles - walk.tiles();
#pragma unroll 1
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      while (walk.chunks_of(first) <= chunk) ++first, ++missing;
      const uint32_t at = walk.ring + chunk, free = Shared<Tile>::parity(at) ^ 1;
      barrier_wait(shared.k_empty(at), free);
      if (missing > 0) barrier_arrive_many(shared.k_empty(at), missing * 4);
      copy_boxes<Tile>(shared.k(at), Tile::kKeyBoxBytes, args.k, shared.k_full(at), head, chunk * Tile::kKeys, batch);
      barrier_wait(shared.v_empty(at), free);
      if (missing > 0) barrier_arrive_many(shared.v_empty(at), missing * 4);
      copy_boxes<Tile>(shared.v(at), Tile::kValueBoxBytes, args.v, shared.v_full(at), head, chunk * Tile::kKeys, batch);
      tell_shared_u32(shared.started(), at + 1);
      if (at == 0) barrier_wait(shared.k_full(0), 0);  // what is needed first does not share its way with the rest
    }
  }
}

// ---- products ----------------------------------------------------------------------------------------------------

// s = q k^T of a chunk.
template <class Tile> TREFOIL_DEVICE void multiply_keys(float (&s)[Tile::kKeys / 2], uint32_t q, uint32_t k) {
  wgmma_fence();
#pragma unroll
  for (int d = 0; d < Tile::kDims; d += 16) {
    const int box = d / kBoxDims, column = d % kBoxDims;
    Wgmma<Tile::kKeys>::multiply(s, wgmma_operand(q + box * kTileRows * kRowBytes) + column / 8,
                                 wgmma_operand(k + box * Tile::kKeyBoxBytes) + column / 8, d > 0);
  }
  wgmma_commit();
}

// o += p v of a chunk, or o = p v.
template <class Tile>
TREFOIL_DEVICE void multiply_values(float (&o)[Tile::kDims / 2], const uint32_t (&p)[Tile::kValues / 16][4], uint32_t v,
                                    bool add) {
  const uint64_t b = wgmma_operand_rows(v, Tile::kValueBoxBytes);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < Tile::kValues / 16; ++i)
    WgmmaFromRows<Tile::kDims>::multiply(o, p[i], b + i * (16 * kRowBytes / 16), add || i > 0);
  wgmma_commit();
}

// The quotients of a warp's 16 rows by way of shared memory.
template <class Tile>
TREFOIL_DEVICE void store_rows(const Sm90AttentionArgs &args, const float (&o)[Tile::kDims / 2], const float (&sums)[2],
                               uint32_t shared_dst, int32_t head, int32_t row) {
  if (row >= args.rows) return;
  const int32_t lane = thread_idx_x() % 32;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = row_sum(sums[r]);
    factor[r] = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
  }
  if (lane == 0) wait_stores_read<0>();  // of the tile before
  __syncwarp();
  const uint32_t to = shared_dst + lane % 16 * kRowBytes;
#pragma unroll
  for (int i = 0; i < Tile::kDims / 16; ++i) {
    uint32_t halves[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      halves[j] = pack_half2(o[8 * i + 2 * j] * factor[j % 2], o[8 * i + 2 * j + 1] * factor[j % 2]);
    const int box = i / 4, chunk = i % 4 * 2 + lane / 16;
    stmatrix_x4(to + box * kTileRows * kRowBytes + (chunk ^ lane % 8) * 16, halves);
  }
  fence_shared_for_copies();
  __syncwarp();
  if (lane == 0) {
    const int32_t batch = divide(head, args.by_heads), of_batch = head - batch * args.heads;
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box)
      store_box_4d(&args.out, box * kBoxDims, of_batch, row, batch, shared_dst + box * kTileRows * kRowBytes);
  }
}

// The first row of this warp in a tile, and of this thread among those.
TREFOIL_DEVICE int32_t warp_row() { return thread_idx_x() / 32 % 4 * kStoreRows; }
TREFOIL_DEVICE int32_t lane_row() { return thread_idx_x() % 32 / 4; }

// Chunks of a tile that all rows of this warp see whole; -1: of the last tile some warps have no rows.
template <class Tile> TREFOIL_DEVICE int32_t whole_chunks(const Sm90AttentionArgs &args, const Record &tile) {
  const int32_t row = tile.row + warp_row(), keys = max(min(tile.keys, row + args.ahead + 1), 0);
  return row < args.rows ? static_cast<int32_t>(static_cast<uint32_t>(keys) / Tile::kKeys) : -1;
}

// Adds the mask to the scores of a chunk, and hides keys that are not seen. Returns what is left to scale them by.
template <class Tile>
TREFOIL_DEVICE float finish_scores(const Sm90AttentionArgs &args, uint32_t record, int32_t chunk, int32_t whole,
                                   float (&s)[Tile::kKeys / 2]) {
  if (!Tile::kMasked && chunk < whole) return args.scale_log2;
  const Record tile = read_record(record);
  const int32_t key = chunk * Tile::kKeys + thread_idx_x() % 4 * 2, row = tile.row + warp_row() + lane_row();
  if constexpr (Tile::kMasked) {
    const int32_t batch = divide(tile.head, args.by_heads), head = tile.head - batch * args.heads;
    const uint16_t *of_head = args.mask + batch * args.mask_batch + head * args.mask_head + key;
    const int32_t last = args.rows - 1;
    const uint16_t *const mask[2] = {of_head + min(row, last) * args.mask_row,
                                     of_head + min(row + 8, last) * args.mask_row};
    add_mask<Tile::kKeys>(s, mask, args.keys - key, args.scale_log2);
    if (chunk < whole) return 1.0f;
  }
  const int32_t seen[2] = {min(tile.keys, row + args.ahead + 1) - key, min(tile.keys, row + 8 + args.ahead + 1) - key};
  hide<Tile::kKeys>(s, seen);
  return Tile::kMasked ? 1.0f : args.scale_log2;
}

template <int kKeys> TREFOIL_DEVICE void halve(uint32_t (&p)[(kKeys + 15) / 16][4], const float (&s)[kKeys / 2]) {
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) p[i / 4][i % 4] = pack_half2(s[2 * i], s[2 * i + 1]);
}

// The same for all lanes, and the compiler knows it.
TREFOIL_DEVICE uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffff, x, 0); }

// A chunk's scores once more, of this warp's rows alone: where weights were relative to too small a score.
template <class Tile> TREFOIL_DEVICE void multiply_keys_again(float (&s)[Tile::kKeys / 2], uint32_t q, uint32_t k) {
  const uint32_t lane = thread_idx_x() % 32;
  const uint32_t q_row = warp_row() + lane / 4, k_row = lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < Tile::kKeys / 2; ++i) s[i] = 0.0f;
#pragma unroll 1
  for (uint32_t d = 0; d < Tile::kDims; d += 2) {
    const uint32_t box = d / kBoxDims, chunk = d % kBoxDims / 8, in = d % 8 * 2;
    const uint32_t q_here = q + box * kTileRows * kRowBytes + q_row * kRowBytes + (chunk ^ q_row % 8) * 16 + in;
    const float2 a[2] = {unpack_half2(load_shared_u32(q_here)), unpack_half2(load_shared_u32(q_here + 8 * kRowBytes))};
    const uint32_t k_here = k + box * Tile::kKeyBoxBytes + k_row * kRowBytes + (chunk ^ k_row) * 16 + in;
    const uint32_t k_there = k + box * Tile::kKeyBoxBytes + (k_row + 1) * kRowBytes + (chunk ^ (k_row + 1)) * 16 + in;
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i) {
      const float2 b = unpack_half2(load_shared_u32((i % 2 ? k_there : k_here) + i / 4 * 8 * kRowBytes));
      s[i] = fmaf(a[i / 2 % 2].x, b.x, s[i]), s[i] = fmaf(a[i / 2 % 2].y, b.y, s[i]);
    }
  }
}

// Every kGroups-th tile: one warpgroup. While a chunk's values are added, the next chunk's weights are made, also over
// the end of a tile.
template <class Tile>
TREFOIL_DEVICE void multiply(const Sm90AttentionArgs &args, const Shared<Tile> &shared, int32_t group) {
  constexpr int kKeys = Tile::kKeys;
  float s[kKeys / 2], o[Tile::kDims / 2];
  uint32_t p[Tile::kValues / 16][4] = {};  // zeros of keys that a chunk has not
  Rows rows;
  uint32_t use = 0;          // tiles so far
  uint32_t chunks, at;       // of this tile; the chunk whose weights are there
  int32_t whole;

  // This tile's rows, or that there is none, have come.
  auto await_tile = [&] {
    barrier_wait(shared.q_full(group, use), use / Tile::kQs & 1);
    const Record tile = read_record(shared.record(group, use));
    chunks = tile.chunks;
    return tile;
  };
  // Weights of this tile's first chunk, whose scores are there.
  auto begin_tile = [&](const Record &tile) {
    at = tile.ring;
    barrier_arrive_once(shared.k_empty(at));
    if (chunks == 1) barrier_arrive_once(shared.q_empty(group, use));
    rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    whole = whole_chunks<Tile>(args, tile);
    if (whole >= 0) weigh<kKeys>(s, rows, finish_scores<Tile>(args, shared.record(group, use), 0, whole, s));
  };
  auto store_tile = [&](uint32_t use, const float (&sums)[2]) {
    const Record tile = read_record(shared.record(group, use));
    store_rows<Tile>(args, o, sums, shared.result(group) + warp_row() * kRowBytes, tile.head, tile.row + warp_row());
  };

  Record tile = await_tile();
#pragma unroll 1
  while (chunks > 0) {
    // A tile without one before it. Before its chunk is started, its barrier's parity may be of a round too early.
    while (thread_idx_x() % 32 == 0 && static_cast<int32_t>(told_shared_u32(shared.started()) - tile.ring) <= 0) {
    }
    __syncwarp();
    barrier_wait(shared.k_full(tile.ring), shared.parity(tile.ring));
    multiply_keys<Tile>(s, uniform(shared.q(group, use)), uniform(shared.k(tile.ring)));
    wgmma_wait<0>();
    wgmma_use(s);
    begin_tile(tile);
    halve<kKeys>(p, s);

#pragma unroll 1
    for (;;) {
      // The chunks of a tile.
#pragma unroll 1
      for (uint32_t chunk = 1; chunk < chunks; ++chunk, ++at) {
        const uint32_t q = uniform(shared.q(group, use)), k = uniform(shared.k(at + 1)), v = uniform(shared.v(at));
        barrier_wait(shared.k_full(at + 1), shared.parity(at + 1));
        multiply_keys<Tile>(s, q, k);
        barrier_wait(shared.v_full(at), shared.parity(at));
        multiply_values<Tile>(o, p, v, chunk > 1);
        wgmma_wait<1>();
        wgmma_use(s);
        const uint32_t record = shared.record(group, use);
        float scale;
        float2 sum = {};
        constexpr int kHalf = kKeys / 16 * 4;
        if (whole >= 0) {
          scale = finish_scores<Tile>(args, record, chunk, whole, s);
          exponentiate<0, kHalf>(s, scale, rows.top[0], rows.top[1], sum);
        }
        wgmma_wait<0>();
        wgmma_use(o);
        barrier_arrive_once(shared.v_empty(at));
        if (whole >= 0) {
          exponentiate<kHalf, kKeys / 2>(s, scale, rows.top[0], rows.top[1], sum);
          halve<kKeys>(p, s);
          if (are_small(sum)) {
            rows.sum[0] += sum.x, rows.sum[1] += sum.y;
          } else {
            float2 shrink;
            if (are_finite(sum)) {
              shrink = lower<kKeys>(s, rows, sum);
            } else {
              multiply_keys_again<Tile>(s, shared.q(group, use), shared.k(at + 1));
              finish_scores<Tile>(args, record, chunk, whole, s);
              shrink = weigh<kKeys>(s, rows, scale);
            }
            halve<kKeys>(p, s);
#pragma unroll
            for (int i = 0; i < Tile::kDims / 2; ++i) o[i] *= i / 2 % 2 == 0 ? shrink.x : shrink.y;
          }
        }
        barrier_arrive_once(shared.k_empty(at + 1));
        if (chunk + 1 == chunks) barrier_arrive_once(shared.q_empty(group, use));
      }

      // Its last values and the next tile's first scores.
      const bool adds = chunks > 1;
      const uint32_t before = at;
      const float sums[2] = {rows.sum[0], rows.sum[1]};
      ++use;
      tile = await_tile();
      const uint32_t v = uniform(shared.v(at));
      if (chunks == 0 || !tile.is_near) {
        barrier_wait(shared.v_full(at), shared.parity(at));
        multiply_values<Tile>(o, p, v, adds);
        wgmma_wait<0>();
        wgmma_use(o);
        barrier_arrive_once(shared.v_empty(at));
        store_tile(use - 1, sums);
        break;
      }
      const uint32_t q = uniform(shared.q(group, use)), k = uniform(shared.k(tile.ring));
      barrier_wait(shared.k_full(tile.ring), shared.parity(tile.ring));
      multiply_keys<Tile>(s, q, k);
      barrier_wait(shared.v_full(at), shared.parity(at));
      multiply_values<Tile>(o, p, v, adds);
      wgmma_wait<1>();
      wgmma_use(s);
      begin_tile(tile);
      wgmma_wait<0>();
      wgmma_use(o);
      barrier_arrive_once(shared.v_empty(before));
      store_tile(use - 1, sums);
      halve<kKeys>(p, s);
    }
  }
  if (thread_idx_x() % 32 == 0) wait_stores_read<0>();
}

template <class Tile> TREFOIL_DEVICE void attention(const Sm90AttentionArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const Shared<Tile> shared = {shared_address(shared_bytes)};
  const int32_t group = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4);
  if (threadIdx.x == 0) {
    if (shared.base % 1024 != 0) __trap();  // the swizzle is of addresses
    store_shared_u32(shared.started(), 0);
    allow_next_launch();
    for (const TensorMap *map : {&args.q, &args.k, &args.v, &args.out}) prefetch_tensor_map(map);
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      barrier_init(shared.k_full(stage), 1), barrier_init(shared.v_full(stage), 1);
      barrier_init(shared.k_empty(stage), 4 * args.block_tiles);
      barrier_init(shared.v_empty(stage), 4 * args.block_tiles);
    }
    for (int q = 0; q < Tile::kGroups * Tile::kQs; ++q)
      barrier_init(shared.q_full(0, 0) + 16 * q, 1), barrier_init(shared.q_empty(0, 0) + 16 * q, 4);
    fence_barrier_init();
  }
  wait_for_earlier_launches();
  __syncthreads();
  if (group == Tile::kGroups) {
    give_registers_up<Tile::kLoadRegisters>();
    if (threadIdx.x % 32 == 0) {
      if (warp == 3) load_chunks(args, shared);
      else if (warp < Tile::kGroups) load_rows(args, shared, warp);
    }
  } else {
    take_registers<Tile::kProductRegisters>();
    multiply(args, shared, group);
  }
}

// Purpose    out[b][i][h] = sum over j of w[j] * v[b][j][h], w being the softmax over j of
//            scale * (q[b][i][h] . k[b][j][h]) + mask[b][h][i][j], over keys j < lengths[b] with j <= i + ahead. Zeros
//            where a row sees no key.
// Operands   q        read   halves {dims, heads, rows, batch}, any strides, by its map
//            k, v     read   halves {dims, heads, keys, batch}, any strides, by their maps
//            out      write  as q, by its map; overlaps nothing
//            lengths  read   int32 [batch], or null: all keys count
//            mask     read   by *_masked entries: halves, a row's keys next to each other, rows at multiples of 4 bytes
//                            with room for an even number of keys; strides of 0 share rows
//            The maps swizzle by 128 bytes and fill with zeros; their boxes are {64, 1, 64, 1} for q, {64, 1, kKeys, 1}
//            for k, {64, 1, kValues, 1} for v, {64, 1, 16, 1} for out. Values are finite, also those behind a length.
// Arithmetic half products, float sums. Weights in float relative to a power of two: of a row's first chunk the largest
//            score, raised where a chunk has weights of 2^15 or more; rounded to half for the second product; their sums
//            before rounding. Exponentials by the unit for special functions. NaN in q or k stays NaN.
// Launch     grid min(blocks, multiprocessors), blocks = batch * heads * ceil(row_tiles / block_tiles); block kThreads;
//            dynamic shared memory kDynamicBytes. compute capability 9.0 exactly.
// Limits     dims up to the entry's, a multiple of 8; counts positive; rows, keys and ahead below 2^28; batch * heads *
//            row_tiles below 2^31; scale positive. block_tiles above kGroups only where all chunks of a head fit the
//            stages. Any tail: what is beyond is read as zero and not written. Deterministic, no atomics.
// Ordering   may be launched before its predecessors have ended, and lets its successor be: reads and writes only
//            after griddepcontrol.wait.
// Source     online softmax: FlashAttention-2 (arXiv 2307.08691); products beside it: FlashAttention-3 (2407.08608).
#define TREFOIL_SM90_ATTENTION(dims, keys, groups)                                                              \
  extern "C" __global__ void __launch_bounds__(AttentionTile<dims, keys, groups, false>::kThreads, 1)           \
      sm90_attention_##dims##_##keys(const __grid_constant__ Sm90AttentionArgs args) {                          \
    attention<AttentionTile<dims, keys, groups, false>>(args);                                                  \
  }                                                                                                             \
  extern "C" __global__ void __launch_bounds__(AttentionTile<dims, keys, groups, true>::kThreads, 1)            \
      sm90_attention_##dims##_##keys##_masked(const __grid_constant__ Sm90AttentionArgs args) {                 \
    attention<AttentionTile<dims, keys, groups, true>>(args);                                                   \
  }

TREFOIL_SM90_ATTENTION(64, 104, 3)
TREFOIL_SM90_ATTENTION(64, 128, 3)
TREFOIL_SM90_ATTENTION(128, 112, 2)
