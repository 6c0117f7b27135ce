// Device functions of arithmetic that C++ lacks.  Quick approximations (__expf) are the exact functions here.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

template <typename To, typename From>
inline To mgsim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "the bits of one number");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline unsigned __float_as_uint(float x) { return mgsim_bits<unsigned>(x); }
inline int __float_as_int(float x) { return mgsim_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return mgsim_bits<float>(x); }
inline float __int_as_float(int x) { return mgsim_bits<float>(x); }
inline long long __double_as_longlong(double x) { return mgsim_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return mgsim_bits<double>(x); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 1.0f ? 1.0f : (x > 0.0f ? x : 0.0f); }
// Never fused: the barrier keeps the compiler from contracting what a caller adds to the product.
inline float __fmul_rn(float x, float y) {
    float product = x * y;
    __asm__("" : "+m"(product));
    return product;
}
inline float __fadd_rn(float x, float y) {
    float sum = x + y;
    __asm__("" : "+m"(sum));
    return sum;
}
inline float __fsub_rn(float x, float y) { return __fadd_rn(x, -y); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>((static_cast<uint64_t>(x) * y) >> 32); }

template <typename A, typename B>
inline std::common_type_t<A, B> min(A a, B b) {
    using Both = std::common_type_t<A, B>;
    return static_cast<Both>(a) < static_cast<Both>(b) ? static_cast<Both>(a) : static_cast<Both>(b);
}
template <typename A, typename B>
inline std::common_type_t<A, B> max(A a, B b) {
    using Both = std::common_type_t<A, B>;
    return static_cast<Both>(a) < static_cast<Both>(b) ? static_cast<Both>(b) : static_cast<Both>(a);
}

// Loads and stores with a cache hint are loads and stores.
template <typename T>
inline T __ldg(const T* p) {
    return *p;
}
template <typename T>
inline T __ldcs(const T* p) {
    return *p;
}
template <typename T>
inline T __ldcg(const T* p) {
    return *p;
}
template <typename T>
inline void __stcs(T* p, T value) {
    *p = value;
}
template <typename T>
inline void __stcg(T* p, T value) {
    *p = value;
}
