// Attention on Hopper: the scores of a chunk as a warpgroup's products leave them, and the weights made of them.
//
// Scores are sums of floats, or of halves. Halves are two in a register: their products read and write half as many
// registers, and one instruction multiplies, subtracts or adds two. A tile's first chunk has floats, which give rows their
// references. A warp makes the scores of a later chunk again in floats if a thread's sum of weights is more than a half
// holds, and those of each later chunk if a reference is so large that halves have too few bits of scores near it.
#pragma once

#include "sm90_attention_mask.cuh"
#include "sm90_attention_packed.cuh"
#include "sm90_attention_tail.cuh"

// The first row of this warp in a tile, and of this thread among those.
TREFOIL_DEVICE int32_t warp_row() { return thread_idx_x() / 32 % 4 * kStoreRows; }
TREFOIL_DEVICE int32_t lane_row() { return thread_idx_x() % 32 / 4; }

// The keys of chunk `chunk` that this thread's two rows of a tile see, from the thread's first on.
template <class Tile>
TREFOIL_DEVICE void find_seen(const Sm90AttentionArgs &args, const Record &tile, int32_t chunk, int32_t (&seen)[2]) {
  const int32_t key = Tile::first_key(chunk) + thread_idx_x() % 4 * 2, row = tile.row + warp_row() + lane_row();
  seen[0] = min(tile.keys, row + args.ahead + 1) - key;
  seen[1] = min(tile.keys, row + 8 + args.ahead + 1) - key;
}

// Whether all rows of this warp see the keys of a chunk of so many, but for some of its last sixteen: only these are then
// hidden, which takes a fraction of the instructions.
constexpr int kLastKeys = 16;
template <class Tile>
TREFOIL_DEVICE bool sees_most(const Sm90AttentionArgs &args, const Record &tile, int32_t chunk, int32_t keys) {
  const int32_t seen_by_first = min(tile.keys, tile.row + warp_row() + args.ahead + 1);
  return seen_by_first - Tile::first_key(chunk) >= keys - kLastKeys;
}

// ---- floats ------------------------------------------------------------------------------------------------------

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
    const float2 a[2] = {unpack_elements(load_shared_u32(q_here)),
                         unpack_elements(load_shared_u32(q_here + 8 * kRowBytes))};
    const uint32_t k_here = k + box * Tile::kKeyBoxBytes + k_row * kRowBytes + (chunk ^ k_row) * 16 + in;
    const uint32_t k_there = k + box * Tile::kKeyBoxBytes + (k_row + 1) * kRowBytes + (chunk ^ (k_row + 1)) * 16 + in;
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i) {
      const float2 b = unpack_elements(load_shared_u32((i % 2 ? k_there : k_here) + i / 4 * 8 * kRowBytes));
      s[i] = fmaf(a[i / 2 % 2].x, b.x, s[i]), s[i] = fmaf(a[i / 2 % 2].y, b.y, s[i]);
    }
  }
}

// Scores of a chunk as floats, then its weights. A tile's first chunk may have fewer keys than its others.
template <class Tile, int kKeys_ = Tile::kKeys> struct FloatScores {
  static constexpr int kKeys = kKeys_;
  // Whether weights of some scores are made beside the product of the values before, and the number of these scores.
  static constexpr bool kBesideValues = true;
  static constexpr int kBeside = kKeys / 16 * 4;
  float s[kKeys / 2];
  float scale;  // of the scores, once they are finished
  float2 sum;   // of the chunk's weights

  // s = q k^T.
  __device__ __forceinline__ void multiply(uint32_t q, uint32_t k) {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < Tile::kDims; d += 16) {
      const int box = d / kBoxDims, column = d % kBoxDims;
      Wgmma<kKeys, Element>::multiply(s, wgmma_operand(q + box * kTileRows * kRowBytes) + column / 8,
                                      wgmma_operand(k + box * Tile::kKeyBoxBytes) + column / 8, d > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void use() { wgmma_use(s); }

  // Adds the mask to the scores of a chunk, `at` of all that come through the ring, and hides keys that are not seen.
  __device__ __forceinline__ void finish(const Sm90AttentionArgs &args, const Shared<Tile> &shared, uint32_t record,
                                         uint32_t at, int32_t chunk, int32_t whole) {
    scale = args.scale_log2;
    if constexpr (Tile::kMask == MaskOf::kKeys) scale = add_key_mask<Tile>(args, shared, at, s);
    if (Tile::kMask != MaskOf::kRows && chunk < whole) return;
    const Record tile = read_record(record);
    const int32_t key = Tile::first_key(chunk) + thread_idx_x() % 4 * 2, row = tile.row + warp_row() + lane_row();
    if constexpr (Tile::kMask == MaskOf::kRows) {
      add_row_mask<Tile>(args, tile.head, row, key, s), scale = 1.0f;
      if (chunk < whole) return;
    }
    if constexpr (Tile::kPacked) {
      hide_packed<kKeys>(s, tile.keys - key, row, read_end(record));
    } else {
      int32_t seen[2];
      find_seen<Tile>(args, tile, chunk, seen);
      if (sees_most<Tile>(args, tile, chunk, kKeys))
        hide<kKeys, kKeys - kLastKeys>(s, seen);
      else
        hide<kKeys>(s, seen);
    }
  }

  // Makes weights of a tile's first chunk.
  __device__ __forceinline__ void weigh_first(Rows &rows) {
    rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    weigh<kKeys, Tile::kHalfScores>(s, rows, scale);
  }

  // Takes the references of rows.
  __device__ __forceinline__ void refer(const Rows &) {}

  // Makes weights of a later chunk, as many as may be made beside the product of the values before, and the rest.
  __device__ __forceinline__ void weigh_some(const Sm90AttentionArgs &, const Rows &rows) {
    sum = {};
    exponentiate<0, kBeside>(s, scale, rows.top[0], rows.top[1], sum);
  }
  // Returns whether all weights are right.
  __device__ __forceinline__ bool weigh_rest(const Sm90AttentionArgs &, Rows &rows,
                                             uint32_t (&p)[Tile::kValues / 16][4]) {
    exponentiate<kBeside, kKeys / 2>(s, scale, rows.top[0], rows.top[1], sum);
    put(p);
    if (!are_small(sum)) return false;
    rows.sum[0] += sum.x, rows.sum[1] += sum.y;
    return true;
  }

  // Makes weights again that are not. What was summed before is to be multiplied by what this returns.
  __device__ __forceinline__ float2 weigh_again(const Sm90AttentionArgs &args, const Shared<Tile> &shared,
                                                uint32_t record, uint32_t q, uint32_t k, uint32_t at, int32_t chunk,
                                                int32_t whole, Rows &rows, uint32_t (&p)[Tile::kValues / 16][4]) {
    float2 shrink;
    if (are_finite(sum)) {
      shrink = lower<kKeys>(s, rows, sum);
    } else {
      multiply_keys_again<Tile>(s, q, k);
      finish(args, shared, record, at, chunk, whole);
      shrink = weigh<kKeys>(s, rows, scale);
    }
    put(p);
    return shrink;
  }

  __device__ __forceinline__ void put(uint32_t (&p)[Tile::kValues / 16][4]) const {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i / 4][i % 4] = pack_elements(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int i = kKeys / 4; i < Tile::kKeys / 4; ++i) p[i / 4][i % 4] = 0;
  }
};

// ---- halves ------------------------------------------------------------------------------------------------------

constexpr uint32_t kNanHalf2 = 0x7fff7fffu;  // NaN twice

// Makes weights of a chunk by products of this warp alone, with sums of floats: relative to the rows' largest score so
// far, which becomes their reference. What was summed before is to be multiplied by what this returns.
template <class Tile>
TREFOIL_DEVICE float2 weigh_in_floats(const Sm90AttentionArgs &args, uint32_t record, uint32_t q, uint32_t k,
                                      int32_t chunk, Rows &rows, uint32_t (&p)[Tile::kValues / 16][4]) {
  const uint32_t lane = thread_idx_x() % 32;
  int32_t seen[2];
  find_seen<Tile>(args, read_record(record), chunk, seen);
  // Scores of sixteen keys, times log2(e): two products of eight.
  auto multiply = [&](int i, float (&s)[2][4]) {
#pragma unroll
    for (float &score : s[0]) score = 0.0f;
#pragma unroll
    for (float &score : s[1]) score = 0.0f;
#pragma unroll 1
    for (int d = 0; d < Tile::kDims / 16; ++d) {
      uint32_t a[4], b[4];
      ldmatrix_x4(a, of_sixteen(q, kTileRows * kRowBytes, warp_row() + lane % 16, 2 * d + lane / 16));
      ldmatrix_x4(b, of_sixteen(k, Tile::kKeyBoxBytes, 16 * i + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
      Element::multiply(s[0], a, b[0], b[1]);
      Element::multiply(s[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const bool is_seen = 16 * i + j / 4 * 8 + j % 2 < seen[j / 2 % 2];
      s[j / 4][j % 4] = is_seen ? s[j / 4][j % 4] * args.scale_log2 : -INFINITY;
    }
  };
  float most[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int i = 0; i < Tile::kKeys / 16; ++i) {
    float s[2][4];
    multiply(i, s);
#pragma unroll
    for (int j = 0; j < 8; ++j) most[j / 2 % 2] = fmaxf(most[j / 2 % 2], s[j / 4][j % 4]);
  }
  float from[2], shrink[2], sum[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float top = half_reference(fmaxf(rows.top[r], row_max(most[r])));
    from[r] = top == -INFINITY ? 0.0f : top;  // of a row that sees no key all weights are 0
    shrink[r] = exp2_approximate(rows.top[r] - from[r]);
    rows.top[r] = top;
  }
#pragma unroll
  for (int i = 0; i < Tile::kKeys / 16; ++i) {
    float s[2][4];
    multiply(i, s);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      sum[j / 2 % 2] += s[j / 4][j % 4] = exp2_approximate(s[j / 4][j % 4] - from[j / 2 % 2]);
#pragma unroll
    for (int j = 0; j < 4; ++j) p[i][j] = pack_elements(s[j / 2][j % 2 * 2], s[j / 2][j % 2 * 2 + 1]);
  }
  rows.sum[0] = fmaf(rows.sum[0], shrink[0], sum[0]), rows.sum[1] = fmaf(rows.sum[1], shrink[1], sum[1]);
  return {shrink[0], shrink[1]};
}

// Scores of a chunk as halves. The calls are those of FloatScores, without those of a first chunk.
template <class Tile> struct HalfScores {
  static constexpr int kPairs = Tile::kKeys / 4;
  static constexpr bool kBesideValues = false;
  uint32_t s[Tile::kValues / 16][4];  // two neighbouring keys of one row, then the same two of the row eight below
  uint32_t less[2];                   // the rows' references, negative, twice; NaN, as weights then are, if too large

  // s = q k^T.
  __device__ __forceinline__ void multiply(uint32_t q, uint32_t k) {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < Tile::kDims; d += 16)
      WgmmaHalves<Tile::kKeys>::multiply(s, wgmma_operand(q) + d / 8, wgmma_operand(k) + d / 8, d > 0);
    wgmma_commit();
  }

  __device__ __forceinline__ void use() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) asm volatile("" : "+r"(s[i / 4][i % 4]) :: "memory");
  }

  // Hides keys that are not seen.
  __device__ __forceinline__ void finish(const Sm90AttentionArgs &args, const Shared<Tile> &, uint32_t record, uint32_t,
                                         int32_t chunk, int32_t whole) {
    if (chunk < whole) return;
    const Record tile = read_record(record);
    int32_t seen[2];
    find_seen<Tile>(args, tile, chunk, seen);
    if (sees_most<Tile>(args, tile, chunk, Tile::kKeys))
      hide_from<Tile::kKeys - kLastKeys>(seen);
    else
      hide_from<0>(seen);
  }
  template <int kFrom> __device__ __forceinline__ void hide_from(const int32_t (&seen)[2]) {
#pragma unroll
    for (int i = kFrom / 4; i < kPairs; ++i) {
      const uint32_t kept = low_bits(max(16 * seen[i % 2] - 128 * (i / 2), 0));
      uint32_t &pair = s[i / 4][i % 4];
      pair = (pair & kept) | (kLowestHalf2 & ~kept);
    }
  }

  __device__ __forceinline__ void refer(const Rows &rows) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      less[r] = fabsf(rows.top[r]) <= kMostHalfReference ? pack_half2(-rows.top[r], -rows.top[r]) : kNanHalf2;
  }

  __device__ __forceinline__ void weigh_some(const Sm90AttentionArgs &, const Rows &) {}

  // Makes weights of a later chunk. Returns whether all are right.
  __device__ __forceinline__ bool weigh_rest(const Sm90AttentionArgs &args, Rows &rows,
                                             uint32_t (&p)[Tile::kValues / 16][4]) {
    const __half2 scale = __float2half2_rn(args.scale_log2);
    __half2 sums[2][2];  // two of each row, so that additions wait for fewer
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const __half2 exponents = __hfma2(half2_of(s[i / 4][i % 4]), scale, half2_of(less[i % 2]));
      p[i / 4][i % 4] = exp2_approximate(exponents, args.pair_order);
      __half2 &sum = sums[i % 2][i / 2 % 2];
      sum = i < 4 ? half2_of(p[i / 4][i % 4]) : __hadd2(sum, half2_of(p[i / 4][i % 4]));
    }
    const float2 first = __half22float2(__hadd2(sums[0][0], sums[0][1]));
    const float2 second = __half22float2(__hadd2(sums[1][0], sums[1][1]));
    const float2 of_thread = {first.x + first.y, second.x + second.y};
    if (!are_finite(of_thread)) return false;
    rows.sum[0] += of_thread.x, rows.sum[1] += of_thread.y;
    return true;
  }

  __device__ __forceinline__ float2 weigh_again(const Sm90AttentionArgs &args, const Shared<Tile> &, uint32_t record,
                                                uint32_t q, uint32_t k, uint32_t, int32_t chunk, int32_t, Rows &rows,
                                                uint32_t (&p)[Tile::kValues / 16][4]) {
    const float2 shrink = weigh_in_floats<Tile>(args, record, q, k, chunk, rows, p);
    refer(rows);
    return shrink;
  }
};
