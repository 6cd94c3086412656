// Arithmetic of f16 and bf16, compiled by NVIDIA's compiler (`build.sh`). Each kernel runs one family of operations.
// Each operation writes its own part of the output, with one element per thread of the grid.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

using half_t = __half;
using bf16_t = __nv_bfloat16;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define INDEX \
    u32 i = blockIdx.x * blockDim.x + threadIdx.x; \
    [[maybe_unused]] u32 n = gridDim.x * blockDim.x

template <class T>
__device__ T from_bits(u16 bits) {
    return *reinterpret_cast<T*>(&bits);
}
template <class T>
__device__ u16 to_bits(T value) {
    return *reinterpret_cast<u16*>(&value);
}
__device__ __half2 both(half_t a, half_t b) { return __halves2half2(a, b); }
__device__ __nv_bfloat162 both(bf16_t a, bf16_t b) { return __halves2bfloat162(a, b); }
template <class P>
__device__ u32 pair_bits(P value) {
    return *reinterpret_cast<u32*>(&value);
}

// Unary operations on every bit pattern.
#define PUT(op, value) out[op * n + i] = to_bits(value)
template <class T>
__device__ void signs(u16* out) {
    INDEX;
    T a = from_bits<T>(i);
    PUT(0, __hneg(a));
    PUT(1, __habs(a));
    out[2 * n + i] = __hisnan(a);
    out[3 * n + i] = __hisinf(a);
}
template <class T>
__device__ void whole(u16* out) {
    INDEX;
    T a = from_bits<T>(i);
    PUT(0, hfloor(a));
    PUT(1, hceil(a));
    PUT(2, htrunc(a));
    PUT(3, hrint(a));
}
template <class T>
__device__ void roots(u16* out) {
    INDEX;
    T a = from_bits<T>(i);
    PUT(0, hsqrt(a));
    PUT(1, hrsqrt(a));
    PUT(2, hrcp(a));
}
template <class T>
__device__ void powers(u16* out) {
    INDEX;
    T a = from_bits<T>(i);
    PUT(0, hexp(a));
    PUT(1, hexp2(a));
    PUT(2, hexp10(a));
    PUT(3, hlog(a));
    PUT(4, hlog2(a));
    PUT(5, hlog10(a));
}
template <class T>
__device__ void circular(u16* out) {
    INDEX;
    T a = from_bits<T>(i);
    PUT(0, hsin(a));
    PUT(1, hcos(a));
    PUT(2, htanh(a));
    PUT(3, htanh_approx(a));
}

// Binary operations on every bit pattern with each number of a list. Pair kernels use the two numbers in both orders.
template <class T>
__device__ void sums(const u16* list, u16* out) {
    INDEX;
    T a = from_bits<T>(i), b = from_bits<T>(list[i >> 16]);
    PUT(0, __hadd(a, b));
    PUT(1, __hsub(a, b));
    PUT(2, __hmul(a, b));
    PUT(3, __hdiv(a, b));
}
template <class T>
__device__ void saturated(const u16* list, u16* out) {
    INDEX;
    T a = from_bits<T>(i), b = from_bits<T>(list[i >> 16]);
    PUT(0, __hadd_sat(a, b));
    PUT(1, __hsub_sat(a, b));
    PUT(2, __hmul_sat(a, b));
}
template <class T>
__device__ void extremes(const u16* list, u16* out) {
    INDEX;
    T a = from_bits<T>(i), b = from_bits<T>(list[i >> 16]);
    PUT(0, __hmin(a, b));
    PUT(1, __hmax(a, b));
    PUT(2, __hmin_nan(a, b));
    PUT(3, __hmax_nan(a, b));
}
// One bit per comparison.
template <class T>
__device__ void compared(const u16* list, u16* out) {
    INDEX;
    T a = from_bits<T>(i), b = from_bits<T>(list[i >> 16]);
    out[i] = __heq(a, b) | __hne(a, b) << 1 | __hlt(a, b) << 2 | __hle(a, b) << 3 | __hgt(a, b) << 4 | __hge(a, b) << 5 |
             __hequ(a, b) << 6 | __hneu(a, b) << 7 | __hltu(a, b) << 8 | __hleu(a, b) << 9 | __hgtu(a, b) << 10 |
             __hgeu(a, b) << 11;
}
template <class T>
__device__ void pairs(const u16* list, u32* out) {
    INDEX;
    T a = from_bits<T>(i), b = from_bits<T>(list[i >> 16]);
    auto x = both(a, b), y = both(b, a);
    out[i] = pair_bits(__hadd2(x, y));
    out[n + i] = pair_bits(__hsub2(x, y));
    out[2 * n + i] = pair_bits(__hmul2(x, y));
    out[3 * n + i] = pair_bits(__hmin2(x, y));
    out[4 * n + i] = pair_bits(__hmax2_nan(x, y));
    out[5 * n + i] = pair_bits(__hgt2(x, y));
    out[6 * n + i] = __hleu2_mask(x, y);
    out[7 * n + i] = __hbeq2(x, x) | __hbne2(x, y) << 1;
}
// Ternary operations on every bit pattern with two numbers from a list of pairs.
template <class T>
__device__ void fused(const u16* list, u16* out) {
    INDEX;
    T a = from_bits<T>(i), b = from_bits<T>(list[i >> 16 << 1]), c = from_bits<T>(list[(i >> 16 << 1) + 1]);
    PUT(0, __hfma(a, b, c));
    PUT(1, __hfma_sat(a, b, c));
    PUT(2, __hfma_relu(a, b, c));
    auto d = __hfma2(both(a, b), both(b, a), both(c, c));
    PUT(3, d.x);
    PUT(4, d.y);
}

#define UNARY(family)                                                             \
    extern "C" __global__ void half_##family(u16* out) { family<half_t>(out); } \
    extern "C" __global__ void bf16_##family(u16* out) { family<bf16_t>(out); }
#define BINARY(family, type)                                                                              \
    extern "C" __global__ void half_##family(const u16* list, type* out) { family<half_t>(list, out); } \
    extern "C" __global__ void bf16_##family(const u16* list, type* out) { family<bf16_t>(list, out); }
UNARY(signs)
UNARY(whole)
UNARY(roots)
UNARY(powers)
UNARY(circular)
BINARY(sums, u16)
BINARY(saturated, u16)
BINARY(extremes, u16)
BINARY(compared, u16)
BINARY(pairs, u32)
BINARY(fused, u16)

// Every bit pattern to an integer, in the four rounding directions.
#define TO_INTEGER(name, type, prefix, suffix)                              \
    extern "C" __global__ void prefix##_to_##name(type* out) {              \
        INDEX;                                                              \
        auto a = from_bits<prefix##_t>(i);                                  \
        out[i] = suffix##2##name##_rn(a);                                   \
        out[n + i] = suffix##2##name##_rz(a);                               \
        out[2 * n + i] = suffix##2##name##_rd(a);                           \
        out[3 * n + i] = suffix##2##name##_ru(a);                           \
    }
// Integers to floating point, in the four rounding directions.
#define OF_INTEGER(name, type, prefix, suffix)                              \
    extern "C" __global__ void prefix##_of_##name(const type* in, u16* out) { \
        INDEX;                                                              \
        type a = in[i];                                                     \
        PUT(0, __##name##2##suffix##_rn(a));                                \
        PUT(1, __##name##2##suffix##_rz(a));                                \
        PUT(2, __##name##2##suffix##_rd(a));                                \
        PUT(3, __##name##2##suffix##_ru(a));                                \
    }
#define INTEGER(name, type)                \
    TO_INTEGER(name, type, half, __half)     \
    TO_INTEGER(name, type, bf16, __bfloat16) \
    OF_INTEGER(name, type, half, half)       \
    OF_INTEGER(name, type, bf16, bfloat16)
INTEGER(short, short)
INTEGER(ushort, u16)
INTEGER(int, int)
INTEGER(uint, u32)
INTEGER(ll, s64)
INTEGER(ull, u64)

// Conversions to bytes, to f32, and to and from the two 8-bit formats.
template <class T, class RAW>
__device__ __nv_fp8_storage_t eight(T a, __nv_saturation_t saturation, __nv_fp8_interpretation_t form);
template <>
__device__ __nv_fp8_storage_t eight<half_t, __half_raw>(half_t a, __nv_saturation_t s, __nv_fp8_interpretation_t f) {
    return __nv_cvt_halfraw_to_fp8(a, s, f);
}
template <>
__device__ __nv_fp8_storage_t eight<bf16_t, __nv_bfloat16_raw>(bf16_t a, __nv_saturation_t s, __nv_fp8_interpretation_t f) {
    return __nv_cvt_bfloat16raw_to_fp8(a, s, f);
}
template <class T, class RAW>
__device__ void narrowed(u16* out) {
    INDEX;
    T a = from_bits<T>(i);
    out[i] = eight<T, RAW>(a, __NV_SATFINITE, __NV_E4M3);
    out[n + i] = eight<T, RAW>(a, __NV_SATFINITE, __NV_E5M2);
    out[2 * n + i] = eight<T, RAW>(a, __NV_NOSAT, __NV_E4M3);
    out[3 * n + i] = eight<T, RAW>(a, __NV_NOSAT, __NV_E5M2);
}
extern "C" __global__ void half_narrowed(u16* out) { narrowed<half_t, __half_raw>(out); }
extern "C" __global__ void bf16_narrowed(u16* out) { narrowed<bf16_t, __nv_bfloat16_raw>(out); }
extern "C" __global__ void half_widened(u16* out) {
    INDEX;
    out[i] = __half_raw(__nv_cvt_fp8_to_halfraw(i, __NV_E4M3)).x;
    out[n + i] = __half_raw(__nv_cvt_fp8_to_halfraw(i, __NV_E5M2)).x;
}
extern "C" __global__ void half_to_bytes(u16* out) {
    INDEX;
    out[i] = (unsigned char)__half2char_rz(from_bits<half_t>(i));
    out[n + i] = __half2uchar_rz(from_bits<half_t>(i));
}
extern "C" __global__ void bf16_to_bytes(u16* out) {
    INDEX;
    out[i] = (unsigned char)__bfloat162char_rz(from_bits<bf16_t>(i));
    out[n + i] = __bfloat162uchar_rz(from_bits<bf16_t>(i));
}
extern "C" __global__ void half_to_float(float* out) {
    INDEX;
    out[i] = __half2float(from_bits<half_t>(i));
}
extern "C" __global__ void bf16_to_float(float* out) {
    INDEX;
    out[i] = __bfloat162float(from_bits<bf16_t>(i));
}

// Conversions from f32 in the four rounding directions, and through pairs.
extern "C" __global__ void half_of_float(const float* in, u16* out) {
    INDEX;
    float a = in[i];
    PUT(0, __float2half_rn(a));
    PUT(1, __float2half_rz(a));
    PUT(2, __float2half_rd(a));
    PUT(3, __float2half_ru(a));
    PUT(4, __floats2half2_rn(0, a).y);
}
extern "C" __global__ void bf16_of_float(const float* in, u16* out) {
    INDEX;
    float a = in[i];
    PUT(0, __float2bfloat16_rn(a));
    PUT(1, __float2bfloat16_rz(a));
    PUT(2, __float2bfloat16_rd(a));
    PUT(3, __float2bfloat16_ru(a));
    PUT(4, __floats2bfloat162_rn(0, a).y);
}
extern "C" __global__ void half_of_double(const double* in, u16* out) {
    INDEX;
    PUT(0, __double2half(in[i]));
}
extern "C" __global__ void bf16_of_double(const double* in, u16* out) {
    INDEX;
    PUT(0, __double2bfloat16(in[i]));
}
