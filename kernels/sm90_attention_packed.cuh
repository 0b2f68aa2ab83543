// Attention on Hopper: rows of different lengths that lie end to end on one axis of tokens.
//
// A block's tiles are all of one such row. Behind a row are others': their keys get no weights, their values become zeros
// in shared memory, since 0 times what is not finite is NaN, and their queries get scores of 0 and are not written. So
// nothing of a row's result depends on what lies beside it.
#pragma once

#include "sm90_attention.cuh"

// The table of packed rows: first how many blocks of tiles have keys, and how many there are together with those of tokens
// in no row; then each of the former, those of longer rows first, and each of the latter.
struct PackedBlock {
  int32_t row, end;         // its first token, and the one behind the last of its packed row
  int32_t first_key, keys;  // of the packed row
};

TREFOIL_DEVICE PackedBlock read_block(const Sm90AttentionArgs &args, int32_t index) {
  const int4 block = __ldcg(args.table + 1 + index);
  return {block.x, block.y, block.z, block.w};
}

// The way over blocks of packed rows: each for all heads, forwards and backwards over the grid by turns, so that one that
// has a longer row's block in one turn has a shorter row's in the next.
template <class Tile> struct Walk<Tile, true> {
  const Sm90AttentionArgs &args;
  int32_t unit, turn;  // this block for a head; the first of this turn
  int32_t units, slot;
  int32_t head;
  PackedBlock of;
  int32_t keys;
  uint32_t ring;  // chunks of the blocks before

  __device__ __forceinline__ explicit Walk(const Sm90AttentionArgs &args)
      : args(args), unit(blockIdx.x), turn(0), slot(0), head(0), of{}, keys(0), ring(0) {
    const int4 counts = __ldcg(args.table);
    enter();  // the grid has no more than the table has room for
    units = counts.x * args.heads;
  }

  __device__ __forceinline__ bool is_over() const { return unit >= units; }
  __device__ __forceinline__ int32_t row() const { return of.row + slot * kTileRows; }
  __device__ __forceinline__ int32_t end() const { return of.end; }
  __device__ __forceinline__ int32_t first_key() const { return of.first_key; }
  __device__ __forceinline__ int32_t tiles() const {
    const uint32_t of_row = static_cast<uint32_t>(of.end - of.row + kTileRows - 1) / kTileRows;
    return min(args.block_tiles, static_cast<int32_t>(of_row));
  }
  __device__ __forceinline__ int32_t chunks_of(int32_t) const {
    return static_cast<uint32_t>(keys + Tile::kKeys - 1) / Tile::kKeys;
  }
  __device__ __forceinline__ int32_t chunks() const { return chunks_of(slot); }
  __device__ __forceinline__ bool is_last_tile() const { return slot + 1 == tiles(); }
  __device__ __forceinline__ bool has_tail() const { return false; }
  __device__ __forceinline__ int32_t block_chunks() const { return chunks_of(0); }

  __device__ __forceinline__ void next_block() {
    ring += block_chunks();
    const int32_t grid = gridDim.x, place = unit - turn;
    turn += grid;
    unit = turn + grid - 1 - place;
    if (!is_over()) enter();
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
    const int32_t block = divide(unit, args.by_heads);
    head = unit - block * args.heads;
    of = read_block(args, block);
    keys = of.keys;
  }
};

// Whether the values of a chunk have some behind the packed row.
template <class Tile> TREFOIL_DEVICE bool has_others(int32_t keys, int32_t chunk) {
  return Tile::kPacked && keys - chunk * Tile::kKeys < Tile::kValues;
}

// What a warpgroup is told of a tile besides: where its packed row ends.
TREFOIL_DEVICE void write_end(uint32_t record, int32_t end) { store_shared_u32(record + 24, end); }
TREFOIL_DEVICE int32_t read_end(uint32_t record) { return load_shared_u32(record + 24); }
template <class Tile> TREFOIL_DEVICE int32_t end_of(uint32_t record) { return Tile::kPacked ? read_end(record) : 0; }

template <class Tile> TREFOIL_DEVICE int32_t end_of_rows(const Sm90AttentionArgs &args, int32_t end) {
  return Tile::kPacked ? end : args.rows;
}

// Chunks that all rows from this one of a warp on see whole; -1: it has no rows of the packed row.
template <class Tile> TREFOIL_DEVICE int32_t whole_chunks_packed(int32_t row, int32_t end, int32_t keys) {
  if (row >= end) return -1;
  return row + kStoreRows <= end ? static_cast<int32_t>(static_cast<uint32_t>(keys) / Tile::kKeys) : 0;
}

// Lowers the scores of keys behind the packed row, `seen` of this chunk's, from this thread's first on, being before; and
// makes those of rows behind it 0.
template <int kKeys>
TREFOIL_DEVICE void hide_packed(float (&s)[kKeys / 2], int32_t seen, int32_t row, int32_t end) {
  const bool is_row[2] = {row < end, row + 8 < end};
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    if (i / 4 * 8 + i % 2 >= seen) s[i] = -INFINITY;
    if (!is_row[i / 2 % 2]) s[i] = 0.0f;
  }
}

// The first rows of the 16 that a warp has in shared memory: those that a box of 16 would go beyond.
template <class Tile>
TREFOIL_DEVICE void store_some_rows(const Sm90AttentionArgs &args, uint32_t shared_src, int32_t head, int32_t row,
                                    int32_t rows) {
  constexpr int kChunks = Tile::kDims / 8;
  uint16_t *const to = args.result + static_cast<size_t>(row) * args.result_row + head * args.result_head;
#pragma unroll 1
  for (int32_t i = thread_idx_x() % 32; i < rows * kChunks; i += 32) {
    const int32_t r = i / kChunks, chunk = i % kChunks;
    const uint32_t from = shared_src + chunk / 8 * kTileRows * kRowBytes + r * kRowBytes + (chunk % 8 ^ r % 8) * 16;
    if (chunk * 8 < args.dims)
      *reinterpret_cast<uint4 *>(to + static_cast<size_t>(r) * args.result_row + chunk * 8) = load_shared_u32x4(from);
  }
}

// The chunks of each block: one thread. It arrives for tiles that a block has not.
template <class Tile> TREFOIL_DEVICE void load_packed_chunks(const Sm90AttentionArgs &args, const Shared<Tile> &shared) {
#pragma unroll 1
  for (Walk<Tile> walk(args); !walk.is_over(); walk.next_block()) {
    const int32_t chunks = walk.block_chunks(), missing = 4 * (args.block_tiles - walk.tiles());
#pragma unroll 1
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t at = walk.ring + chunk, free = Shared<Tile>::parity(at) ^ 1;
      const uint32_t v_full = has_others<Tile>(walk.keys, chunk) ? shared.v_landed(at) : shared.v_full(at);
      const int32_t key = walk.first_key() + chunk * Tile::kKeys;
      barrier_wait(shared.k_empty(at), free);
      if (missing > 0) barrier_arrive_many(shared.k_empty(at), missing);
      copy_boxes<Tile>(shared.k(at), Tile::kKeyBoxBytes, args.k, shared.k_full(at), walk.head, key, 0);
      barrier_wait(shared.v_empty(at), free);
      if (missing > 0) barrier_arrive_many(shared.v_empty(at), missing);
      copy_boxes<Tile>(shared.v(at), Tile::kValueBoxBytes, args.v, v_full, walk.head, key, 0);
      tell_shared_u32(shared.started(), at + 1);
      if (at == 0) barrier_wait(shared.k_full(0), 0);  // what is needed first does not share its way with the rest
    }
  }
}

// Makes values behind a packed row zeros, once they have come, and says that the chunk is there: one warp.
template <class Tile> TREFOIL_DEVICE void clear_others(const Sm90AttentionArgs &args, const Shared<Tile> &shared) {
  const int32_t lane = thread_idx_x() % 32;
  uint32_t phases = 0;  // a bit of each stage
#pragma unroll 1
  for (Walk<Tile> walk(args); !walk.is_over(); walk.next_block()) {
    const int32_t chunks = walk.block_chunks();
#pragma unroll 1
    for (int32_t chunk = max(chunks - 2, 0); chunk < chunks; ++chunk) {
      if (!has_others<Tile>(walk.keys, chunk)) continue;
      const uint32_t at = walk.ring + chunk, stage = at % Tile::kStages;
      barrier_wait(shared.v_landed(at), phases >> stage & 1);
      phases ^= 1u << stage;
      const int32_t first = walk.keys - chunk * Tile::kKeys;
#pragma unroll
      for (int box = 0; box < Tile::kBoxes; ++box) {
        const uint32_t values = shared.v(at) + box * Tile::kValueBoxBytes;
#pragma unroll 1
        for (int32_t i = first * kRowBytes + lane * 16; i < Tile::kValueBoxBytes; i += 32 * 16)
          store_shared_u32x4(values + i, {});
      }
      fence_shared_for_copies();
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.v_full(at));
    }
  }
}

// Zeros for tokens in no row: one warp.
template <class Tile> TREFOIL_DEVICE void clear_rows(const Sm90AttentionArgs &args) {
  const int4 counts = __ldcg(args.table);
  const int32_t chunks = args.dims / 8, units = counts.y * args.heads, grid = gridDim.x;
#pragma unroll 1
  for (int32_t unit = counts.x * args.heads + blockIdx.x; unit < units; unit += grid) {
    const int32_t block = divide(unit, args.by_heads), head = unit - block * args.heads;
    const PackedBlock of = read_block(args, block);
    const int32_t rows = min(of.end - of.row, args.block_tiles * kTileRows);
    uint16_t *const to = args.result + static_cast<size_t>(of.row) * args.result_row + head * args.result_head;
#pragma unroll 1
    for (int32_t i = thread_idx_x() % 32; i < rows * chunks; i += 32) {
      const int32_t r = i / chunks, chunk = i - r * chunks;
      *reinterpret_cast<uint4 *>(to + static_cast<size_t>(r) * args.result_row + chunk * 8) = {};
    }
  }
}
