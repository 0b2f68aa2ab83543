// Attention on Hopper: the launch's argument, a block's shared memory, and its way over blocks of tiles.
#pragma once

#include "attention_softmax.cuh"
#include "sm90_ptx_e4m3.cuh"

constexpr int kTileRows = 64;  // of a warpgroup's products
constexpr int kStoreRows = 16; // of a warp
constexpr int kTailRows = 8;   // of a head, behind its tiles, at most
constexpr int kBoxDims = 64;   // elements in a row of a swizzled box
constexpr int kRowBytes = kBoxDims * 2;
constexpr int kCodeRowBytes = kBoxDims;  // of a result in codes
constexpr int kSharedBytes = 227 << 10;
constexpr int kRecordBytes = 32;
constexpr int kRecords = 4;  // of a group's tiles: those whose rows are loaded, the one before, and one to spare

struct Sm90AttentionArgs {
  TensorMap q;            // {dims, heads, rows, batch} boxes {64, 1, 64, 1}
  TensorMap k;            // {dims, heads, keys, batch} boxes {64, 1, kKeys, 1}
  TensorMap v;            // the same
  TensorMap out;          // the same boxes of 16 rows; of codes pairs of them, boxes {32, 1, 16, 1}
  TensorMap tail_q;       // as q, boxes {64, 1, 8, 1}
  const int32_t *lengths; // [batch] keys of each image that count, or null: all
  const uint16_t *mask;   // elements that are added to scaled scores
  uint64_t mask_batch;    // elements from one image's to the next
  uint64_t mask_head;     // from one head's
  uint64_t mask_row;      // from one row's
  int32_t rows;
  int32_t keys;
  int32_t blocks;         // of tiles, over all heads
  int32_t block_tiles;    // tiles of a block, of a head's last maybe fewer
  int32_t row_tiles;      // of a head, whole but for the last where there is no tail
  int32_t ahead;          // row i sees keys up to i + ahead
  float scale_log2;       // scale * log2(e)
  FastDivide by_heads;
  FastDivide by_blocks;   // of a head
  int32_t heads;
  int32_t head_blocks;
  int32_t tail;           // rows of a head behind its tiles; 0: there are none
  const int4 *table;      // the blocks of packed rows; the rest too is theirs
  uint16_t *result;       // what `out` shows
  int32_t result_row;     // halves from one row of it to the next
  int32_t result_head;    // from one head's
  int32_t dims;
  float to_codes;         // what results are multiplied by before they are rounded to codes
  int32_t first_block;    // blocks are taken from there on: from 0 up, or from the last down; of packed rows 0
  uint32_t pair_order;    // 0x5410, which exp2_approximate takes
  int32_t padding[14];
};
static_assert(sizeof(Sm90AttentionArgs) == 832 && offsetof(Sm90AttentionArgs, rows) == 680 &&
                  offsetof(Sm90AttentionArgs, table) == 736,
              "mirrored in sm90_attention.rs");

// What is added to scores: nothing, a value for each key, or one for each row and key.
enum class MaskOf { kNothing, kKeys, kRows };

template <int kDims_, int kKeys_, int kGroups_, bool kHasTails, MaskOf kMask_, bool kPacked_ = false, bool kCodes_ = false,
          int kFirstKeys_ = kKeys_>
struct AttentionTile {
  static constexpr int kDims = kDims_, kKeys = kKeys_, kGroups = kGroups_;
  static constexpr int kFirstKeys = kFirstKeys_;  // of a head's first chunk
  static constexpr bool kPacked = kPacked_, kCodes = kCodes_;  // whether the result is codes of e4m3
  static constexpr MaskOf kMask = kMask_;
  // Whether scores behind a head's first chunk are sums of halves. Masks are added to floats.
  static constexpr bool kHalfScores =
      !Element::kIsWide && kDims == 64 && kKeys == 128 && kMask == MaskOf::kNothing && !kPacked;
  // Whether what a tile's sums are multiplied by is found beside its last products: no registers beside a mask of rows.
  static constexpr bool kEarlyFactors = kMask != MaskOf::kRows;
  // Whether tails have a warp: no registers beside a mask's, and beside packed rows those warps have other work.
  static constexpr bool kTails = kHasTails && kMask == MaskOf::kNothing && !kPacked;
  static constexpr int kThreads = (kGroups + 1) * 128;
  static constexpr int kBoxes = (kDims + kBoxDims - 1) / kBoxDims;  // side by side, of each operand
  static constexpr int kValues = (kKeys + 15) / 16 * 16;  // keys whose values a chunk has: the last may have no weights
  static constexpr int kQBytes = kTileRows * kRowBytes * kBoxes;
  static constexpr int kKeyBoxBytes = kKeys * kRowBytes, kKeyBytes = kKeyBoxBytes * kBoxes;
  static constexpr int kValueBoxBytes = kValues * kRowBytes, kValueBytes = kValueBoxBytes * kBoxes;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes;
  static constexpr int kQs = 2;  // of a warpgroup: one is loaded while the other is read
  static constexpr int kGroupBytes = (kQs + 1) * kQBytes;  // and the place of its result
  static constexpr int kTailQBytes = kTailRows * kRowBytes, kTailOutBytes = kStoreRows * kRowBytes;  // of a box
  static constexpr int kTailWarps = kTails ? 2 : 0, kReaders = kGroups + kTailWarps;  // who has rows
  static constexpr int kTailWarpBytes = (kQs * kTailQBytes + kTailOutBytes) * kBoxes;
  static constexpr int kTailBytes = kTailWarps * kTailWarpBytes;
  static constexpr int kStagesThatFit = (kSharedBytes - 1024 - kGroups * kGroupBytes - kTailBytes) / kStageBytes;
  static constexpr int kStages = kStagesThatFit < 6 ? kStagesThatFit : 6;  // each a chunk's keys and its values
  static constexpr int kTailAt = kGroups * kGroupBytes + kStages * kStageBytes;
  static constexpr int kBarriersAt = kTailAt + kTailBytes;
  static constexpr int kLandedAt = kBarriersAt + 8 * (4 * kStages + 2 * kReaders * kQs);  // of packed rows' values
  static constexpr int kRecordsAt = kLandedAt + (kPacked ? (8 * kStages + 15) / 16 * 16 : 0);
  static constexpr int kMaskAt = kRecordsAt + kReaders * kRecords * kRecordBytes;
  static constexpr int kMaskBytes = kMask == MaskOf::kKeys ? kKeys * 4 + 16 : 0;  // of a stage
  static constexpr int kLeaving = kMask == MaskOf::kKeys ? 32 : 1;  // arrivals of a warp that has read a chunk's keys
  static constexpr int kDynamicBytes = kMaskAt + kStages * kMaskBytes + 16;
  static constexpr int kProductRegisters = kTails ? 144 : kGroups == 3 ? (kPacked ? 152 : 160) : 232;
  static constexpr int kLoadRegisters = kTails ? 80 : kGroups == 3 ? (kPacked ? 56 : 32) : 40;
  // The first key of a chunk, and the number of chunks that so many keys fill.
  static __device__ __forceinline__ int32_t first_key(int32_t chunk) {
    return chunk == 0 ? 0 : chunk * kKeys - (kKeys - kFirstKeys);
  }
  static __device__ __forceinline__ int32_t whole_chunks(int32_t keys) {
    return static_cast<uint32_t>(keys + (kKeys - kFirstKeys)) / kKeys;
  }
  static_assert(kDims % 16 == 0 && kKeys % 8 == 0 && kKeys <= 256, "whole products, and a box");
  static_assert(kFirstKeys == kKeys || (kFirstKeys < kKeys && kFirstKeys % 16 == 0), "whole products of values");
  static_assert(kFirstKeys == kKeys || (kMask == MaskOf::kNothing && !kPacked && !kTails), "chunks of others are alike");
  static_assert(kQBytes % 1024 == 0 && kKeyBoxBytes % 1024 == 0, "swizzled in 1024 bytes");
  static_assert(kRecordsAt % 16 == 0 && kBarriersAt % 8 == 0, "read in one");
  static_assert(kStages >= 2 && kDynamicBytes <= kSharedBytes, "a ring");
};

// Shared memory: each group's rows and result, stages of keys and values, a tail's rows and result, barriers.
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
  // Where values land that are not all of the row that they are read for.
  __device__ __forceinline__ uint32_t v_landed(uint32_t at) const {
    return base + Tile::kLandedAt + 8 * (at % Tile::kStages);
  }
  static __device__ __forceinline__ uint32_t parity(uint32_t at) { return at / Tile::kStages & 1; }
  __device__ __forceinline__ uint32_t q_full(int32_t group, uint32_t use) const {
    return barriers(4 * Tile::kStages + (group * Tile::kQs + use % Tile::kQs) * 2);
  }
  __device__ __forceinline__ uint32_t q_empty(int32_t group, uint32_t use) const { return q_full(group, use) + 8; }
  __device__ __forceinline__ uint32_t tail_q(uint32_t reader, uint32_t use) const {
    return base + Tile::kTailAt + (reader - Tile::kGroups) * Tile::kTailWarpBytes +
           use % Tile::kQs * Tile::kTailQBytes * Tile::kBoxes;
  }
  __device__ __forceinline__ uint32_t tail_result(uint32_t reader) const {
    return tail_q(reader, 0) + Tile::kQs * Tile::kTailQBytes * Tile::kBoxes;
  }
  // What is added to the scores of a chunk's keys, and whether that is more than zeros.
  __device__ __forceinline__ uint32_t mask(uint32_t at) const {
    return base + Tile::kMaskAt + at % Tile::kStages * Tile::kMaskBytes;
  }
  __device__ __forceinline__ uint32_t is_masked(uint32_t at) const { return mask(at) + Tile::kKeys * 4; }
  // Where it is told how many chunks have been started.
  __device__ __forceinline__ uint32_t started() const { return base + Tile::kDynamicBytes - 16; }
  __device__ __forceinline__ uint32_t record(int32_t group, uint32_t use) const {
    return base + Tile::kRecordsAt + (group * kRecords + use % kRecords) * kRecordBytes;
  }
};

// The way of a thread over the blocks of its part of the grid, and over the tiles of each.
template <class Tile, bool kPacked = Tile::kPacked> struct Walk {
  const Sm90AttentionArgs &args;
  int32_t block, slot;  // this tile's block, and which of its tiles it is
  int32_t head;         // of all images' heads
  int32_t first_tile, keys;
  uint32_t ring;        // chunks of the blocks before

  __device__ __forceinline__ explicit Walk(const Sm90AttentionArgs &args)
      : args(args), block(blockIdx.x), slot(0), head(0), first_tile(0), keys(0), ring(0) {
    if (block < args.blocks) enter();
  }

  __device__ __forceinline__ bool is_over() const { return block >= args.blocks; }
  __device__ __forceinline__ int32_t row() const { return (first_tile + slot) * kTileRows; }
  __device__ __forceinline__ int32_t end() const { return 0; }
  __device__ __forceinline__ int32_t tiles() const { return min(args.block_tiles, args.row_tiles - first_tile); }

  // Keys that row `row` and those before it see.
  __device__ __forceinline__ int32_t keys_up_to(int32_t row) const { return min(keys, row + args.ahead + 1); }
  // Chunks of the block's tile `index`: one at least, so that its rows become zeros.
  __device__ __forceinline__ int32_t chunks_of(int32_t index) const {
    const int32_t last_row = (first_tile + index) * kTileRows + kTileRows - 1;
    return Tile::whole_chunks(max(keys_up_to(last_row) + Tile::kKeys - 1, Tile::kFirstKeys));
  }
  __device__ __forceinline__ int32_t chunks() const { return chunks_of(slot); }
  __device__ __forceinline__ bool is_last_tile() const { return slot + 1 == tiles(); }
  // Whether a head's tail, which sees as much as a tile behind its last, belongs to this block.
  __device__ __forceinline__ bool has_tail() const {
    return args.tail > 0 && first_tile + args.block_tiles >= args.row_tiles;
  }
  __device__ __forceinline__ int32_t block_chunks() const { return chunks_of(tiles() - 1 + (has_tail() ? 1 : 0)); }

  __device__ __forceinline__ void next_block() {
    ring += block_chunks();
    block += gridDim.x;
    if (block < args.blocks) enter();
  }
  __device__ __forceinline__ void next_tile() {
    if (is_last_tile()) {
      slot = 0;
      next_block();
    } else {
      ++slot;
    }
  }

 private:
  __device__ __forceinline__ void enter() {
    const int32_t at = abs(args.first_block - block);
    head = divide(at, args.by_blocks);
    first_tile = (at - head * args.head_blocks) * args.block_tiles;
    keys = args.keys;
    if (args.lengths == nullptr) return;
    wait_for_earlier_launches();
    keys = max(0, min(keys, __ldcg(args.lengths + divide(head, args.by_heads))));
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

// The image that one of all images' heads is of.
template <class Tile> TREFOIL_DEVICE int32_t batch_of(const Sm90AttentionArgs &args, int32_t head) {
  return Tile::kPacked ? 0 : divide(head, args.by_heads);
}

// Where the 16 codes `chunk` of row `row` lie in boxes of a result in codes, which begin `box_bytes` apart.
TREFOIL_DEVICE uint32_t sixteen_codes(uint32_t shared_dst, uint32_t box_bytes, uint32_t row, uint32_t chunk) {
  return shared_dst + chunk / 4 * box_bytes + row * kCodeRowBytes + (chunk % 4 ^ row / 2 % 4) * 16;
}

// Stores a warp's 16 rows of a box of the result.
template <class Tile>
TREFOIL_DEVICE void store_result_box(const Sm90AttentionArgs &args, int box, int32_t head, int32_t row, int32_t batch,
                                     uint32_t shared_src) {
  store_box_4d(&args.out, box * (Tile::kCodes ? kBoxDims / 2 : kBoxDims), head, row, batch, shared_src);
}

template <class Tile>
TREFOIL_DEVICE void copy_boxes(uint32_t shared_dst, uint32_t box_bytes, const TensorMap &map, uint32_t barrier,
                               int32_t head, int32_t row, int32_t batch) {
  barrier_arrive_expect(barrier, Tile::kBoxes * box_bytes);
#pragma unroll
  for (int box = 0; box < Tile::kBoxes; ++box)
    copy_box_4d(shared_dst + box * box_bytes, &map, barrier, box * kBoxDims, head, row, batch);
}

// One warp: waits until a chunk has been started. Before, its barriers' parity may be of a round too early.
template <class Tile> TREFOIL_DEVICE void await_start(const Shared<Tile> &shared, uint32_t at) {
  while (thread_idx_x() % 32 == 0 && static_cast<int32_t>(told_shared_u32(shared.started()) - at) <= 0) {
  }
  __syncwarp();
}
