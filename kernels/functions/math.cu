// Functions that written-out loops call, one for each type: src/loops/ptx pastes those that a module needs.
//
// trefoil_NAME_f32, trefoil_NAME_f64: CUDA's functions, no fast ones, subnormal numbers kept.
// trefoil_pow_s64, trefoil_pow_u64: wrap around; a negative exponent gives 1 / a^-b, truncated.

#define UNARY(name)                                                            \
    extern "C" __device__ float trefoil_##name##_f32(float x) { return name##f(x); } \
    extern "C" __device__ double trefoil_##name##_f64(double x) { return name(x); }

#define BINARY(name, of)                                                                   \
    extern "C" __device__ float trefoil_##name##_f32(float a, float b) { return of##f(a, b); } \
    extern "C" __device__ double trefoil_##name##_f64(double a, double b) { return of(a, b); }

UNARY(exp)
UNARY(log)
UNARY(sin)
UNARY(cos)
UNARY(tan)
UNARY(asin)
UNARY(acos)
UNARY(atan)
UNARY(sinh)
UNARY(cosh)
UNARY(tanh)
UNARY(asinh)
UNARY(acosh)
UNARY(atanh)
UNARY(erf)
BINARY(pow, pow)
BINARY(rem, fmod)

extern "C" __device__ unsigned long long trefoil_pow_u64(unsigned long long a, unsigned long long b) {
    unsigned long long result = 1;
    for (; b != 0; b >>= 1, a *= a) {
        if (b & 1) result *= a;
    }
    return result;
}

extern "C" __device__ long long trefoil_pow_s64(long long a, long long b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? ((b & 1) ? -1 : 1) : 0;
    return static_cast<long long>(trefoil_pow_u64(a, b));
}
