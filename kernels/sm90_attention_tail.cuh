// Attention on Hopper: the rows that a head has behind its tiles, eight at most, by one warp.
//
// A tile for them would take as long as any other. Transposed they are the eight columns of a warp's products: scores
// are keys x rows, sums values x rows.
#pragma once

#include "sm90_attention.cuh"

// What a lane has of a tail: its rows 2(lane % 4) and the next.
template <class Tile> struct Tail {
  float o[Tile::kDims / 16][4]; // sums: values lane / 4 and eight on of sixteen, each of both rows
  Rows rows;
};

// This lane's row of four 8x8 matrices, two of 8 rows below each other and the two beside them, from row `row` and the
// 16 bytes `chunk` on, of boxes of `box_bytes`.
TREFOIL_DEVICE uint32_t of_sixteen(uint32_t shared_src, uint32_t box_bytes, uint32_t row, uint32_t chunk) {
  return shared_src + chunk / 8 * box_bytes + row * kRowBytes + (chunk % 8 ^ row % 8) * 16;
}

// s[keys][rows] of a chunk.
template <class Tile, int kSteps>
TREFOIL_DEVICE void multiply_tail_keys(float (&s)[kSteps][4], uint32_t q, uint32_t k) {
  const uint32_t lane = thread_idx_x() % 32;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (float &score : s[i]) score = 0.0f;
  }
#pragma unroll
  for (int d = 0; d < Tile::kDims / 16; d += 2) {
    uint32_t b[4];  // eight values after another, of two steps
    ldmatrix_x4(b, of_sixteen(q, Tile::kTailQBytes, lane % 8, 2 * d + lane / 8));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        uint32_t a[4];
        ldmatrix_x4(a, of_sixteen(k, Tile::kKeyBoxBytes, 16 * i + lane % 16, 2 * (d + half) + lane / 16));
        Element::multiply(s[i], a, b[2 * half], b[2 * half + 1]);
      }
    }
  }
}

// o[values][rows] += v^T p of a chunk.
template <class Tile, int kSteps>
TREFOIL_DEVICE void multiply_tail_values(Tail<Tile> &tail, const uint32_t (&p)[kSteps][2], uint32_t v) {
  const uint32_t lane = thread_idx_x() % 32;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int d = 0; d < Tile::kDims / 16; ++d) {
      uint32_t a[4];
      const uint32_t key = 16 * i + lane / 16 * 8 + lane % 8;
      ldmatrix_x4_trans(a, of_sixteen(v, Tile::kValueBoxBytes, key, 2 * d + lane / 8 % 2));
      Element::multiply(tail.o[d], a, p[i][0], p[i][1]);
    }
  }
}

// Over the eight lanes that share two rows.
TREFOIL_DEVICE float tail_max(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lanes));
  return x;
}

TREFOIL_DEVICE float tail_sum(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(0xffffffff, x, lanes);
  return x;
}

// Makes weights of a chunk's keys, relative to the largest scores so far, as the right operand, and scales what was summed
// before to these scores. The chunk's first key is `first`. Keys that are not seen have zeros. A lane has two rows of the
// tail; the weights of its second row are zeros, and are not computed, if the tail has one row.
template <class Tile, int kSteps>
TREFOIL_DEVICE void weigh_tail(const Sm90AttentionArgs &args, const Record &record, int32_t first, Tail<Tile> &tail,
                               float (&s)[kSteps][4], uint32_t (&p)[kSteps][2]) {
  const int32_t lane = thread_idx_x() % 32, last = min(record.keys, first + Tile::kKeys);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (r == 1 && args.tail == 1) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) s[i][1] = s[i][3] = 0.0f;
      break;
    }
    const int32_t seen = min(last, record.row + lane % 4 * 2 + r + args.ahead + 1) - (first + lane / 4);
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      float &score = s[i / 2][i % 2 * 2 + r];
      score = 8 * i < seen ? score * args.scale_log2 : -INFINITY;
      most = fmaxf(most, score);
    }
    const float top = fmaxf(tail.rows.top[r], tail_max(most));
    const float from = top == -INFINITY ? 0.0f : top;  // of a row that sees no key all weights are 0
    const float shrink = exp2_approximate(tail.rows.top[r] - from);
    tail.rows.top[r] = top;
    tail.rows.sum[r] *= shrink;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      float &score = s[i / 2][i % 2 * 2 + r];
      tail.rows.sum[r] += score = exp2_approximate(score - from);
    }
#pragma unroll
    for (int d = 0; d < Tile::kDims / 16; ++d) tail.o[d][r] *= shrink, tail.o[d][2 + r] *= shrink;
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) p[i][j] = transpose_8x8(pack_elements(s[i][2 * j], s[i][2 * j + 1]));
  }
}

// The quotients as codes, into shared memory.
template <class Tile>
TREFOIL_DEVICE void put_tail_codes(const Tail<Tile> &tail, const float (&factor)[2], float to_codes,
                                   uint32_t shared_dst) {
  const uint32_t lane = thread_idx_x() % 32;
#pragma unroll
  for (int d = 0; d < Tile::kDims / 16; ++d) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float of_rows[2] = {tail.o[d][2 * half] * factor[0], tail.o[d][2 * half + 1] * factor[1]};
      const uint32_t codes = pack_e4m3(of_rows[0] * to_codes, of_rows[1] * to_codes);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        store_shared_u8(sixteen_codes(shared_dst, Tile::kTailOutBytes, lane % 4 * 2 + r, d) + 8 * half + lane / 4,
                        codes >> 8 * r);
    }
  }
}

// The quotients by way of shared memory.
template <class Tile>
TREFOIL_DEVICE void store_tail(const Sm90AttentionArgs &args, uint32_t shared_dst, const Tail<Tile> &tail,
                               const Record &record) {
  const uint32_t lane = thread_idx_x() % 32;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = tail_sum(tail.rows.sum[r]);
    factor[r] = sum == 0.0f ? 0.0f : __fdividef(1.0f, sum);
  }
  if (lane == 0) wait_stores_read<0>();  // of the tail before
  __syncwarp();
  if constexpr (Tile::kCodes) {
    put_tail_codes(tail, factor, args.to_codes, shared_dst);
  } else {
#pragma unroll
    for (int d = 0; d < Tile::kDims / 16; d += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        pairs[j] =
            pack_elements(tail.o[d + j / 2][j % 2 * 2] * factor[0], tail.o[d + j / 2][j % 2 * 2 + 1] * factor[1]);
      stmatrix_x4_trans(of_sixteen(shared_dst, Tile::kTailOutBytes, lane % 8, 2 * d + lane / 8), pairs);
    }
  }
  fence_shared_for_copies();
  __syncwarp();
  if (lane != 0) return;
  const int32_t batch = divide(record.head, args.by_heads), of_batch = record.head - batch * args.heads;
#pragma unroll
  for (int box = 0; box < Tile::kBoxes; ++box)
    store_result_box<Tile>(args, box, of_batch, record.row, batch, shared_dst + box * Tile::kTailOutBytes);
}

// Every second tail of this block's: one warp.
template <class Tile>
TREFOIL_DEVICE void attend_tails(const Sm90AttentionArgs &args, const Shared<Tile> &shared, uint32_t reader) {
#pragma unroll 1
  for (uint32_t use = 0;; ++use) {
    barrier_wait(shared.q_full(reader, use), use / Tile::kQs & 1);
    const uint32_t record = shared.record(reader, use);
    const uint32_t chunks = uniform(read_record(record).chunks), ring = uniform(read_record(record).ring);
    if (chunks == 0) break;
    Tail<Tile> tail = {{}, {{-INFINITY, -INFINITY}, {}}};
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      constexpr int kSteps = Tile::kValues / 16;
      const uint32_t at = ring + chunk;
      float s[kSteps][4];
      uint32_t p[kSteps][2];
      await_start(shared, at);
      barrier_wait(shared.k_full(at), shared.parity(at));
      multiply_tail_keys<Tile>(s, shared.tail_q(reader, use), shared.k(at));
      barrier_arrive_once(shared.k_empty(at));
      weigh_tail(args, read_record(record), chunk * Tile::kKeys, tail, s, p);
      barrier_wait(shared.v_full(at), shared.parity(at));
      multiply_tail_values(tail, p, shared.v(at));
      barrier_arrive_once(shared.v_empty(at));
    }
    store_tail(args, shared.tail_result(reader), tail, read_record(record));
    barrier_arrive(shared.q_empty(reader, use));
  }
  if (thread_idx_x() % 32 == 0) wait_stores_read<0>();
}
