// Functions of the CUDA math library as kernels: y[i] = f(x[i]), thread i of one block. `math.ptx` is what the pinned
// compiler makes of it with the flags of `kernels/flags.txt`.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define MAP(T, name, function)                                                       \
    static __device__ __noinline__ T call_##name(T x, T z) { return function; }      \
    extern "C" __global__ void name(const T *x, const T *z, T *y) {                  \
        y[threadIdx.x] = call_##name(x[threadIdx.x], z[threadIdx.x]);                \
    }

MAP(float, f32_exp, expf(x))
MAP(float, f32_log, logf(x))
MAP(float, f32_erf, erff(x))
MAP(float, f32_tanh, tanhf(x))
MAP(float, f32_sin, sinf(x))
MAP(float, f32_cos, cosf(x))
MAP(float, f32_pow, powf(x, z))
MAP(float, f32_mod, fmodf(x, z))
MAP(double, f64_exp, exp(x))
MAP(double, f64_log, log(x))
MAP(double, f64_sin, sin(x))
MAP(double, f64_pow, pow(x, z))
MAP(double, f64_tanh, tanh(x))

// The sum of as many numbers as the block has threads, through halves and back.
extern "C" __global__ void sum(const float *x, const float *, float *y) {
    __shared__ float parts[32];
    float part = __half2float(__float2half(x[threadIdx.x])) + __bfloat162float(__float2bfloat16(0.0f));
    for (int step = 16; step; step /= 2) part += __shfl_xor_sync(~0u, part, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.0f;
        for (int i = 0; i < blockDim.x / 32; ++i) all += parts[i];
        atomicAdd(y, all);
    }
}
