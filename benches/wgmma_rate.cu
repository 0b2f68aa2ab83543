// How many products a second the tensor cores of an H200 or H100 do under the power limit: f16, e4m3 and bytes (u8 by s8),
// in warpgroup products of 64 by 128, 192 and 256, both operands in shared memory, on data as a network has it.
//
// usage: wgmma_rate [SECONDS [ROUNDS]]
//
// Each line is one turn: kind, columns, data, TOP/s, and when it began and ended in milliseconds since 1970, for the lines
// of nvidia-smi that were written beside. The data: `random`, all bit patterns alike (f16, e4m3: uniform from -1 to 1), or
// `relu`, activations of which half are zeros, and bell-shaped weights.
// build: nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -I../kernels wgmma_rate.cu -o wgmma_rate
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_fp8.h>
#include <random>
#include <vector>

#include "sm90_ptx_s8.cuh"

enum Kind { kF16, kE4m3, kBytes };
constexpr const char *kKinds[] = {"f16", "e4m3", "u8s8"};
constexpr int kRowBytes = 128, kStages = 4, kGroups = 2, kSteps = 4;  // of a row of 128 bytes

#define F8(i) TREFOIL_EIGHT(i)
#define F32(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)
#define R32(i) TREFOIL_32_SUMS(i)
#define SUMS_128 TREFOIL_SUMS_7
#define SUMS_192 TREFOIL_SUMS_11
#define SUMS_256 TREFOIL_SUMS_15
#define F_128 F32(0), F32(32)
#define F_192 F_128, F32(64)
#define F_256 F_192, F32(96)
#define R_128 R32(0), R32(32)
#define R_192 R_128, R32(64)
#define R_256 R_192, R32(96)

template <Kind kKind, int kN> struct Product;
#define PRODUCT(kind, n, type, shape, scales, refs, a_at, b_at)                                                 \
  template <> struct Product<kind, n> {                                                                         \
    using Sum = type;                                                                                           \
    static __device__ __forceinline__ void multiply(type (&d)[n / 2], uint64_t a, uint64_t b) {                 \
      asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #n shape " {"    \
                   SUMS_##n "}, %" a_at ", %" b_at ", p" scales ";\n}" : refs : "l"(a), "l"(b));                \
    }                                                                                                           \
  };
#define PRODUCTS(n, a_at, b_at)                                                                                 \
  PRODUCT(kF16, n, float, "k16.f32.f16.f16", ", 1, 1, 0, 0", F_##n, a_at, b_at)                                 \
  PRODUCT(kE4m3, n, float, "k32.f32.e4m3.e4m3", ", 1, 1", F_##n, a_at, b_at)                                    \
  PRODUCT(kBytes, n, int32_t, "k32.s32.u8.s8", "", R_##n, a_at, b_at)
PRODUCTS(128, "64", "65")
PRODUCTS(192, "96", "97")
PRODUCTS(256, "128", "129")

// Each block multiplies what it finds in `data` over and over; a sum of the sums goes to `result`, so that they are made.
template <Kind kKind, int kN> __global__ void __launch_bounds__(128 * kGroups, 1)
rate(const uint4 *data, int32_t turns, float *result) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  constexpr int kStageBytes = (kGroups * 64 + kN) * kRowBytes;
  for (int i = threadIdx.x; i < kStages * kStageBytes / 16; i += blockDim.x)
    reinterpret_cast<uint4 *>(shared_bytes)[i] = data[i];
  fence_shared_for_copies();
  __syncthreads();
  const uint32_t smem = shared_address(shared_bytes), group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  typename Product<kKind, kN>::Sum d[kN / 2] = {};
  for (int32_t turn = 0; turn < turns; ++turn) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      const uint32_t at = smem + stage * kStageBytes;
      const uint64_t a = wgmma_operand(at + group * 64 * kRowBytes), b = wgmma_operand(at + kGroups * 64 * kRowBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) Product<kKind, kN>::multiply(d, a + 2 * k, b + 2 * k);
      wgmma_commit();
      wgmma_wait<1>();
    }
  }
  wgmma_wait<0>();
  wgmma_use(d);
  float sum = 0;
  for (auto value : d) sum += static_cast<float>(value);
  result[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

static void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(status));
  exit(1);
}

// A block's stages: of each the activations of all groups, then the weights.
static std::vector<uint8_t> operands(Kind kind, int n, bool relu) {
  std::mt19937 bits(7);
  std::normal_distribution<float> bell(0, 1);
  std::uniform_real_distribution<float> even(-1, 1);
  std::vector<uint8_t> bytes(kStages * (kGroups * 64 + n) * kRowBytes);
  const size_t stage = (kGroups * 64 + n) * kRowBytes, pixels = kGroups * 64 * kRowBytes;
  for (size_t i = 0; i < bytes.size(); i += kind == kF16 ? 2 : 1) {
    const bool is_weight = i % stage >= pixels;
    float value = relu ? bell(bits) : even(bits);
    if (relu && !is_weight) value = std::max(value, 0.0f);
    if (kind == kF16) {
      const __half half = __float2half(is_weight && relu ? value / 16 : value);
      memcpy(&bytes[i], &half, 2);
    } else if (kind == kE4m3) {
      bytes[i] = __nv_fp8_e4m3(relu ? value * 32 : value * 448).__x;
    } else if (relu) {
      bytes[i] = is_weight ? static_cast<uint8_t>(static_cast<int8_t>(std::clamp(value * 32, -127.f, 127.f)))
                           : static_cast<uint8_t>(std::min(value * 64, 255.f));
    } else {
      bytes[i] = static_cast<uint8_t>(bits());
    }
  }
  return bytes;
}

static double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <Kind kKind, int kN> static void turn(bool relu, double seconds, int blocks) {
  const std::vector<uint8_t> bytes = operands(kKind, kN, relu);
  void *data;
  float *result;
  check(cudaMalloc(&data, bytes.size()));
  check(cudaMalloc(&result, blocks * 128 * kGroups * sizeof(float)));
  check(cudaMemcpy(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  check(cudaFuncSetAttribute(rate<kKind, kN>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes.size()));
  const int32_t turns = 2000;
  const double products = 2.0 * blocks * kGroups * 64 * kN * kRowBytes / (kKind == kF16 ? 2 : 1) * kStages * turns;
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
  const double from = now_ms();
  // The second half of the time counts: by then clock and power have settled.
  float first = 0, ms = 0;
  int launches = 0;
  for (int half = 0; half < 2; ++half) {
    launches = 0;
    const double start = now_ms();
    check(cudaEventRecord(begin));
    do {
      for (int i = 0; i < 4; ++i, ++launches)
        rate<kKind, kN><<<blocks, 128 * kGroups, bytes.size()>>>(static_cast<uint4 *>(data), turns, result);
      check(cudaDeviceSynchronize());
    } while (now_ms() - start < seconds * 500);
    check(cudaEventRecord(end)), check(cudaEventSynchronize(end)), check(cudaEventElapsedTime(&ms, begin, end));
    if (half == 0) first = products * launches / ms * 1e-9;
  }
  printf("%s n%d %s %.0f TOP/s (first half %.0f) %.0f %.0f\n", kKinds[kKind], kN, relu ? "relu" : "random",
         products * launches / ms * 1e-9, first, from + seconds * 500, now_ms());
  fflush(stdout);
  check(cudaFree(data)), check(cudaFree(result));
}

template <int kN> static void turns_of(bool relu, double seconds, int blocks) {
  turn<kF16, kN>(relu, seconds, blocks), turn<kE4m3, kN>(relu, seconds, blocks), turn<kBytes, kN>(relu, seconds, blocks);
}

int main(int argc, char **argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 2;
  const int rounds = argc > 2 ? atoi(argv[2]) : 2;
  int blocks;
  check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
  for (int round = 0; round < rounds; ++round) {
    turns_of<128>(true, seconds, blocks), turns_of<192>(true, seconds, blocks), turns_of<256>(true, seconds, blocks);
    turns_of<128>(false, seconds, blocks), turns_of<256>(false, seconds, blocks);
  }
}
