// Softmax of rows whose scores lie in registers as a warpgroup's products leave them: of each four, a thread has two
// neighbouring keys of one row and the same two of the row eight below. Chunk after chunk, with one reference a row.
#pragma once

#include "element.cuh"

constexpr float kLog2E = 1.4426950408889634f;
// Sums of weights below this have no weight that f16 does not hold; bf16 holds more, and does not need it.
constexpr float kMostWeight = 32768.0f;
// Sums below this are right, and so is a row's of four threads.
constexpr float kMostSum = 0x1p120f;

// Over the four lanes that share a row.
TREFOIL_DEVICE float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

TREFOIL_DEVICE float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// What a thread knows of its two rows, eight apart.
struct Rows {
  float top[2];  // the reference of the weights: exponents of two; -infinity before there is one
  float sum[2];  // of this thread's weights
};

// Lowers the scores of keys from `kFrom` on that a row does not see; `seen` of this chunk's, from this thread's first on.
template <int kKeys, int kFrom = 0> TREFOIL_DEVICE void hide(float (&s)[kKeys / 2], const int32_t (&seen)[2]) {
  static_assert(kFrom % 8 == 0, "a thread has keys of each eight");
#pragma unroll
  for (int i = kFrom / 2; i < kKeys / 2; ++i) {
    const int key = i / 4 * 8 + i % 2;
    if (key >= seen[i / 2 % 2]) s[i] = -INFINITY;
  }
}

// Makes weights of the scores from `kFirst` to `kEnd`: 2^(score * scale - top). Adds them up, each thread its part of
// two rows.
template <int kFirst, int kEnd, int kCount>
TREFOIL_DEVICE void exponentiate(float (&s)[kCount], float scale_log2, float top0, float top1, float2 &sum) {
  float of_odd[2] = {};
#pragma unroll
  for (int i = kFirst; i < kEnd; ++i) {
    s[i] = exp2_approximate(fmaf(s[i], scale_log2, i / 2 % 2 == 0 ? -top0 : -top1));
    (i % 2 == 1 ? of_odd[i / 2 % 2] : i / 2 % 2 == 0 ? sum.x : sum.y) += s[i];
  }
  sum.x += of_odd[0], sum.y += of_odd[1];
}

// The largest scores of two rows.
template <int kKeys> TREFOIL_DEVICE float2 largest(const float (&s)[kKeys / 2]) {
  float most[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
  for (int i = 4; i < kKeys / 2; ++i) most[i % 4] = fmaxf(most[i % 4], s[i]);
  return {row_max(fmaxf(most[0], most[1])), row_max(fmaxf(most[2], most[3]))};
}

// References beyond this, of either sign, are of scores whose halves have too few bits.
constexpr float kMostHalfReference = 128.0f;

// A reference that halves have too, where they have enough bits of its scores.
TREFOIL_DEVICE float half_reference(float top) { return fabsf(top) <= kMostHalfReference ? round_to_half(top) : top; }

// Makes weights of a chunk relative to the rows' largest score so far, which becomes their reference, rounded to a half by
// `kRound`. What was summed before is to be multiplied by what this returns.
template <int kKeys, bool kRound = false> TREFOIL_DEVICE float2 weigh(float (&s)[kKeys / 2], Rows &rows, float scale_log2) {
  const float2 most = largest<kKeys>(s);
  float top[2] = {fmaxf(rows.top[0], most.x * scale_log2), fmaxf(rows.top[1], most.y * scale_log2)};
  if (kRound) top[0] = half_reference(top[0]), top[1] = half_reference(top[1]);
  float shrink[2], from[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    from[r] = top[r] == -INFINITY ? 0.0f : top[r];  // of a row that sees no key all weights are 0
    shrink[r] = exp2_approximate(rows.top[r] - from[r]);
    rows.top[r] = top[r];
  }
  float2 sum = {};
  exponentiate<0, kKeys / 2>(s, scale_log2, from[0], from[1], sum);
  rows.sum[0] = fmaf(rows.sum[0], shrink[0], sum.x), rows.sum[1] = fmaf(rows.sum[1], shrink[1], sum.y);
  return {shrink[0], shrink[1]};
}

// Whether all weights of a chunk are such that an element holds them: by their sums. NaN is not.
TREFOIL_DEVICE bool are_small(float2 sum) { return __all_sync(0xffffffff, sum.x < kMostWeight && sum.y < kMostWeight); }
TREFOIL_DEVICE bool are_finite(float2 sum) { return __all_sync(0xffffffff, sum.x < kMostSum && sum.y < kMostSum); }

// Divides weights whose sums are large by a power of two, which the reference takes up. What was summed before is to be
// multiplied by what this returns.
template <int kKeys> TREFOIL_DEVICE float2 lower(float (&s)[kKeys / 2], Rows &rows, float2 sum) {
  const float of_thread[2] = {sum.x, sum.y};
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float total = row_sum(of_thread[r]);
    const int32_t exponent = total < kMostWeight ? 0 : (__float_as_int(total) >> 23) - 127;
    factor[r] = exp2_approximate(-static_cast<float>(exponent));  // exact
    rows.top[r] += static_cast<float>(exponent);
    rows.sum[r] = (rows.sum[r] + of_thread[r]) * factor[r];
  }
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) s[i] *= factor[i / 2 % 2];
  return {factor[0], factor[1]};
}
