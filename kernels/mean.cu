// Mean of several programs' output rows.
#include "common.cuh"

constexpr int kMaxSources = 8;

struct MeanArgs {
  const float4 *x[kMaxSources];  // each `quads` long
  float4 *y;
  uint32_t quads;
  uint32_t sources;
};
static_assert(sizeof(MeanArgs) == 80 && offsetof(MeanArgs, y) == 64, "mirrored in mean.rs");

constexpr int kThreads = 256;

// Purpose    y[i] = (x[0][i] + ... + x[sources - 1][i]) / sources.
// Operands   x  read   floats [4 * quads] each, 16-byte aligned; they may be the same
//            y  write  floats [4 * quads], 16-byte aligned, disjoint from all x
// Arithmetic float; added in order, then one division. NaN stays NaN.
// Launch     grid ceil(quads / 256), block 256, no dynamic shared memory. compute capability 8.0 and up.
// Limits     1 <= sources <= 8, 1 <= quads < 2^31. Deterministic.
extern "C" __global__ void __launch_bounds__(kThreads) sm80_mean(const __grid_constant__ MeanArgs args) {
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= args.quads) return;
  float4 sum = __ldg(args.x[0] + index);
#pragma unroll
  for (int source = 1; source < kMaxSources; ++source) {
    if (source >= args.sources) break;
    const float4 x = __ldg(args.x[source] + index);
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
  }
  const float sources = static_cast<float>(args.sources);
  args.y[index] = {sum.x / sources, sum.y / sources, sum.z / sources, sum.w / sources};
}
