// Last step: logits or features to output rows.
#include "emit.cuh"

struct EmitArgs {
  const void *x;    // [rows][pixels][stored_channels]
  uint8_t *y;       // `rows` rows, `row_pitch_bytes` apart
  uint64_t row_pitch_bytes;
  uint32_t channels;         // of a pixel of y
  uint32_t stored_channels;  // of a pixel of x
  uint32_t pixels;           // of a row; 1 for logits
  uint32_t tiles;            // blocks of a row (values only)
  uint32_t top_k;            // pairs of a row (top k only)
  uint32_t reserved;
  FastDivide by_channels;
};
static_assert(sizeof(EmitArgs) == 56, "mirrored in emit.rs");
static_assert(offsetof(EmitArgs, channels) == 24 && offsetof(EmitArgs, by_channels) == 48, "mirrored in emit.rs");

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kElemsPerThread = 4;

// ---- values ----------------------------------------------------------------------------------------------------

TREFOIL_DEVICE float as_float(float x) { return x; }
TREFOIL_DEVICE float as_float(__half x) { return __half2float(x); }

template <typename In> TREFOIL_DEVICE void emit_values(const EmitArgs &args) {
  const uint32_t row = blockIdx.x / args.tiles;
  const uint32_t first = (blockIdx.x - row * args.tiles) * (kThreads * kElemsPerThread);
  const In *source = static_cast<const In *>(args.x) + static_cast<int64_t>(row) * args.pixels * args.stored_channels;
  float *target = reinterpret_cast<float *>(args.y + row * args.row_pitch_bytes);
#pragma unroll
  for (int i = 0; i < kElemsPerThread; ++i) {
    const uint32_t elem = first + i * kThreads + threadIdx.x;
    if (elem >= args.pixels * args.channels) return;
    const uint32_t pixel = divide(elem, args.by_channels);
    const uint32_t channel = elem - pixel * args.channels;
    target[elem] = as_float(__ldg(source + static_cast<int64_t>(pixel) * args.stored_channels + channel));
  }
}

// Purpose    row i of y = x[i] without the padded channels, as floats.
// Operands   x  read   floats [rows][pixels][stored_channels], without gaps, 4-byte aligned
//            y  write  floats: row i is [pixels][channels] at i * row_pitch_bytes, address and pitch multiples of 4,
//                      disjoint from x; the rest of a row is left alone
// Arithmetic exact.
// Launch     grid rows * tiles with tiles = ceil(pixels * channels / 1024), block 256, no dynamic shared memory.
//            compute capability 8.0 and up.
// Limits     channels <= stored_channels; grid and pixels * stored_channels below 2^31. Deterministic.
extern "C" __global__ void __launch_bounds__(kThreads) sm80_emit_values_f32(const __grid_constant__ EmitArgs args) {
  emit_values<float>(args);
}

// As sm80_emit_values_f32 with x in halves.
extern "C" __global__ void __launch_bounds__(kThreads) sm80_emit_values_f16(const __grid_constant__ EmitArgs args) {
  emit_values<__half>(args);
}

// ---- softmax ---------------------------------------------------------------------------------------------------

// A row's logits in global memory, which nobody writes during the launch.
template <typename In> struct GlobalLogits {
  const In *logits;
  __device__ __forceinline__ float operator[](uint32_t channel) const { return as_float(__ldg(logits + channel)); }
};

template <typename In> TREFOIL_DEVICE GlobalLogits<In> logits_of_row(const EmitArgs &args) {
  return {static_cast<const In *>(args.x) + static_cast<int64_t>(blockIdx.x) * args.stored_channels};
}

template <typename In> TREFOIL_DEVICE void emit_softmax(const EmitArgs &args, float (&shared)[kWarps]) {
  const GlobalLogits<In> logits = logits_of_row<In>(args);
  float *target = reinterpret_cast<float *>(args.y + blockIdx.x * args.row_pitch_bytes);
  const Softmax softmax = Softmax::of(logits, args.channels, shared);
  for (uint32_t c = threadIdx.x; c < args.channels; c += kThreads) target[c] = softmax(logits[c]);
}

// Purpose    y[i][c] = exp(x[i][c] - max) / sum over c of exp(x[i][c] - max).
// Operands   x  read   floats [rows][stored_channels], 4-byte aligned; pixels = 1
//            y  write  floats: row i is [channels] at i * row_pitch_bytes, address and pitch multiples of 4, disjoint
//                      from x
// Arithmetic in float; thread t adds channels t, t + 256, ..., then lanes and warps are added in a fixed order. A NaN
//            or +infinity in a row, or a row of -infinity only, makes the whole row NaN.
// Launch     grid rows, block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     1 <= channels <= stored_channels < 2^31 - 256. Deterministic.
extern "C" __global__ void __launch_bounds__(kThreads) sm80_emit_softmax(const __grid_constant__ EmitArgs args) {
  __shared__ float shared[kWarps];
  emit_softmax<float>(args, shared);
}

// As sm80_emit_softmax with x in halves, 2-byte aligned.
extern "C" __global__ void __launch_bounds__(kThreads) sm80_emit_softmax_f16(const __grid_constant__ EmitArgs args) {
  __shared__ float shared[kWarps];
  emit_softmax<__half>(args, shared);
}

// ---- top k -----------------------------------------------------------------------------------------------------

template <typename In>
TREFOIL_DEVICE void emit_top_k_of_row(const EmitArgs &args, float (&shared)[kWarps], uint64_t (&shared_keys)[kWarps]) {
  const GlobalLogits<In> logits = logits_of_row<In>(args);
  const Softmax softmax = Softmax::of(logits, args.channels, shared);
  Ranked *target = reinterpret_cast<Ranked *>(args.y + blockIdx.x * args.row_pitch_bytes);
  emit_top_k(logits, args.channels, args.top_k, softmax, shared_keys, target);
}

// Purpose    row i of y = the top_k channels with the largest logits x[i][c], best first, ties by the lower index, each
//            with its softmax probability.
// Operands   x  read   floats [rows][stored_channels], 4-byte aligned; pixels = 1
//            y  write  pairs (float probability, u32 index): row i is [top_k] at i * row_pitch_bytes, address and
//                      pitch multiples of 8, disjoint from x
// Arithmetic softmax as sm80_emit_softmax. A NaN ranks below every number, NaNs among themselves by index; its row's
//            probabilities are all NaN. Every index is below `channels` and occurs once, whatever the logits are.
// Launch     grid rows, block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     1 <= top_k <= min(64, channels), channels <= stored_channels < 2^31 - 256. Deterministic.
extern "C" __global__ void __launch_bounds__(kThreads) sm80_emit_top_k(const __grid_constant__ EmitArgs args) {
  __shared__ float shared[kWarps];
  __shared__ uint64_t shared_keys[kWarps];
  emit_top_k_of_row<float>(args, shared, shared_keys);
}

// As sm80_emit_top_k with x in halves, 2-byte aligned.
extern "C" __global__ void __launch_bounds__(kThreads) sm80_emit_top_k_f16(const __grid_constant__ EmitArgs args) {
  __shared__ float shared[kWarps];
  __shared__ uint64_t shared_keys[kWarps];
  emit_top_k_of_row<__half>(args, shared, shared_keys);
}
