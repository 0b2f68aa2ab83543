// Attention on Hopper: what is added to scores.
//
// A mask of keys, which is the same for all rows, such as that of a text's padding, comes through the ring beside the
// keys: as floats, times log2(e), with a word that says whether any of them is not 0. Where all are 0 nothing is added.
// A mask whose rows differ is read from global memory by those who add it.
#pragma once

#include "sm90_attention.cuh"

// Of a head.
TREFOIL_DEVICE const uint16_t *mask_of(const Sm90AttentionArgs &args, int32_t head) {
  const int32_t batch = divide(head, args.by_heads);
  return args.mask + batch * args.mask_batch + (head - batch * args.heads) * args.mask_head;
}

// The mask of the keys of each block's chunks: one warp. Each of its threads arrives where the keys' copies do.
template <class Tile> TREFOIL_DEVICE void load_key_masks(const Sm90AttentionArgs &args, const Shared<Tile> &shared) {
  constexpr int kPairs = Tile::kKeys / 2;
  const int32_t lane = thread_idx_x() % 32;
#pragma unroll 1
  for (Walk<Tile> walk(args); !walk.is_over(); walk.next_block()) {
    const uint32_t *const mask = reinterpret_cast<const uint32_t *>(mask_of(args, walk.head));
    const int32_t chunks = walk.block_chunks(), pairs = (args.keys + 1) / 2;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      uint32_t bits[(kPairs + 31) / 32] = {};
      uint32_t any = 0;
      const uint32_t at = walk.ring + chunk;
      if (at == 0) wait_for_earlier_launches();
#pragma unroll
      for (int i = 0; i < kPairs; i += 32) {
        const int32_t pair = chunk * kPairs + i + lane;
        if (i + lane < kPairs && pair < pairs) bits[i / 32] = __ldcg(mask + pair);
        any |= bits[i / 32] & 0x7fff7fff;  // but for signs
      }
      barrier_wait(shared.k_empty(at), Shared<Tile>::parity(at) ^ 1);
#pragma unroll
      for (int i = 0; i < kPairs; i += 32) {
        const float2 added = unpack_elements(bits[i / 32]);
        if (i + lane < kPairs)
          store_shared_f32x2(shared.mask(at) + (i + lane) * 8, {added.x * kLog2E, added.y * kLog2E});
      }
      any = __any_sync(0xffffffff, any != 0);
      if (lane == 0) store_shared_u32(shared.is_masked(at), any);
      barrier_arrive(shared.k_full(at));
    }
  }
}

// A warp has read a chunk's keys, and each of its threads their mask: it arrives for itself then.
template <class Tile> TREFOIL_DEVICE void leave_keys(const Shared<Tile> &shared, uint32_t at) {
  if constexpr (Tile::kLeaving == 1)
    barrier_arrive_once(shared.k_empty(at));
  else
    barrier_arrive(shared.k_empty(at));
}

// Scales the scores of a chunk, `at` of all that come through the ring, and adds the mask of its keys, if that is not 0.
// Returns what is left to scale them by.
template <class Tile>
TREFOIL_DEVICE float add_key_mask(const Sm90AttentionArgs &args, const Shared<Tile> &shared, uint32_t at,
                                  float (&s)[Tile::kKeys / 2]) {
  if (load_shared_u32(shared.is_masked(at)) == 0) return args.scale_log2;
  const uint32_t mask = shared.mask(at) + thread_idx_x() % 4 * 8;
#pragma unroll
  for (int i = 0; i < Tile::kKeys / 2; i += 4) {
    const float2 added = load_shared_f32x2(mask + i / 4 * 32);
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i + j] = fmaf(s[i + j], args.scale_log2, j % 2 == 0 ? added.x : added.y);
  }
  return 1.0f;
}

// Scales the scores of a chunk, and adds a mask whose rows differ.
template <class Tile>
TREFOIL_DEVICE void add_row_mask(const Sm90AttentionArgs &args, int32_t head, int32_t row, int32_t key,
                                 float (&s)[Tile::kKeys / 2]) {
  const uint16_t *const of_head = mask_of(args, head) + key;
  const int32_t last = args.rows - 1;
  const uint16_t *const mask[2] = {of_head + min(row, last) * args.mask_row, of_head + min(row + 8, last) * args.mask_row};
#pragma unroll
  for (int i = 0; i < Tile::kKeys / 2; i += 4) {
    uint32_t bits[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (i * 2 < args.keys - key) bits[r] = __ldcg(reinterpret_cast<const uint32_t *>(mask[r] + i * 2));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 added = unpack_elements(bits[r]);
      s[i + 2 * r] = fmaf(s[i + 2 * r], args.scale_log2, added.x * kLog2E);
      s[i + 2 * r + 1] = fmaf(s[i + 2 * r + 1], args.scale_log2, added.y * kLog2E);
    }
  }
}
