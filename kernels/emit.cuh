// What turns a row of logits into probabilities or into its best channels, by all threads of a block.
#pragma once

#include "common.cuh"

constexpr uint32_t kAllLanes = 0xffffffffu;

// A row's logits in shared memory.
struct SharedLogits {
  const float *logits;
  __device__ __forceinline__ float operator[](uint32_t channel) const { return logits[channel]; }
};

// `combine` of every thread's `value`, in a fixed order, given to all threads. `shared` is free again afterwards.
template <typename T, int kWarps, class Combine>
TREFOIL_DEVICE T reduce_block(T value, T (&shared)[kWarps], Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, offset));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) value = combine(value, shared[warp]);
  __syncthreads();
  return value;
}

// What turns logits into probabilities: exp(x - max) / sum.
struct Softmax {
  float max, sum;

  template <class Logits, int kWarps>
  static __device__ __forceinline__ Softmax of(const Logits &logits, uint32_t channels, float (&shared)[kWarps]) {
    constexpr int kThreads = kWarps * 32;
    float largest = -INFINITY;
    for (uint32_t c = threadIdx.x; c < channels; c += kThreads) largest = fmaxf(largest, logits[c]);
    largest = reduce_block(largest, shared, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0.0f;
    for (uint32_t c = threadIdx.x; c < channels; c += kThreads) sum += expf(logits[c] - largest);
    sum = reduce_block(sum, shared, [](float a, float b) { return a + b; });
    return {largest, sum};
  }

  __device__ __forceinline__ float operator()(float logit) const { return expf(logit - max) / sum; }
};

// Orders (logit, index) as one number: larger logits first, then lower indices; NaN below everything. Never 0.
TREFOIL_DEVICE uint64_t rank_key(float logit, uint32_t index) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes +0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  const uint32_t rank = isnan(logit) ? 0 : ordered;
  return static_cast<uint64_t>(rank) << 32 | (0xffffffffu - index);
}

// The largest key below `limit` among this thread's channels, 0 if there is none.
template <int kThreads, class Logits>
TREFOIL_DEVICE uint64_t best_below(const Logits &logits, uint32_t channels, uint64_t limit) {
  uint64_t best = 0;
  for (uint32_t c = threadIdx.x; c < channels; c += kThreads) {
    const uint64_t key = rank_key(logits[c], c);
    if (key < limit && key > best) best = key;
  }
  return best;
}

struct Ranked {
  float probability;
  uint32_t index;
};

// Writes the `top_k` largest to `target`, best first. Each round takes the best of the threads' bests; only the thread
// that held it looks for its next one.
template <class Logits, int kWarps>
TREFOIL_DEVICE void emit_top_k(const Logits &logits, uint32_t channels, uint32_t top_k, const Softmax &softmax,
                               uint64_t (&shared)[kWarps], Ranked *target) {
  uint64_t mine = best_below<kWarps * 32>(logits, channels, ~0ull);
  for (uint32_t k = 0; k < top_k; ++k) {
    const uint64_t best = reduce_block(mine, shared, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    if (mine != best) continue;
    const uint32_t index = 0xffffffffu - static_cast<uint32_t>(best);
    target[k] = {softmax(logits[index]), index};
    mine = best_below<kWarps * 32>(logits, channels, best);
  }
}
