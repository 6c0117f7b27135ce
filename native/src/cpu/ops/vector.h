// One vector type for every instruction set: kWidth floats in GCC's and Clang's vector notation, so that +, *, <, ?: mean what
// they say and the compiler picks the instructions.  a * b + c becomes one fused instruction where there is one
// (-ffp-contract=fast).  Included once per instruction set with MG_VECTOR_WIDTH set; everything is in an unnamed namespace,
// so that the linker can't mix up the copies.  No std:: here and in ops/: their templates would be shared between copies.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {

constexpr int kWidth = MG_VECTOR_WIDTH;

typedef float Vector __attribute__((vector_size(4 * MG_VECTOR_WIDTH)));
typedef int32_t IntVector __attribute__((vector_size(4 * MG_VECTOR_WIDTH)));

inline Vector load(const float* p) {
    Vector v;
    memcpy(&v, p, sizeof v);
    return v;
}

inline void store(float* p, Vector v) { memcpy(p, &v, sizeof v); }

inline Vector broadcast(float x) { return x - Vector{}; }

// The first n < kWidth floats; the others are 0.
inline Vector load_first(const float* p, int64_t n) {
    Vector v = {};
    memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
    return v;
}

inline void store_first(float* p, Vector v, int64_t n) { memcpy(p, &v, static_cast<size_t>(n) * sizeof(float)); }

inline Vector maximum(Vector a, Vector b) { return a > b ? a : b; }

// Sums and maxima of the lanes by halves: a fixed order.
inline float sum_lanes(Vector v) {
    float lanes[kWidth];
    store(lanes, v);
    for (int half = kWidth / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

inline float max_lanes(Vector v) {
    float lanes[kWidth];
    store(lanes, v);
    float best = lanes[0];
    for (int i = 1; i < kWidth; ++i) best = lanes[i] > best ? lanes[i] : best;
    return best;
}

// The largest of x[n], n at least 1; NaNs may be passed over.
inline float maximum_of(const float* x, int64_t n) {
    float best = x[0];
    int64_t i = 0;
    if (n >= kWidth) {
        Vector most = load(x);
        for (i = kWidth; i + kWidth <= n; i += kWidth) most = maximum(load(x + i), most);
        best = max_lanes(most);
    }
    for (; i < n; ++i) best = x[i] > best ? x[i] : best;
    return best;
}

// Calls body(offset, count) for each vector of n floats: count is kWidth but for the last, shorter one.
template <typename Body>
inline void for_vectors(int64_t n, const Body& body) {
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) body(i, static_cast<int64_t>(kWidth));
    if (i < n) body(i, n - i);
}

inline Vector load_some(const float* p, int64_t n) { return n == kWidth ? load(p) : load_first(p, n); }

inline void store_some(float* p, Vector v, int64_t n) {
    if (n == kWidth)
        store(p, v);
    else
        store_first(p, v, n);
}

// Interleaves the lower (upper) halves of a and b: a0 b0 a1 b1 ...
#if defined(__clang__)
#define MG_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MG_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, IntVector{__VA_ARGS__})
#endif
#if MG_VECTOR_WIDTH == 4
inline Vector interleave_low(Vector a, Vector b) { return MG_SHUFFLE(a, b, 0, 4, 1, 5); }
inline Vector interleave_high(Vector a, Vector b) { return MG_SHUFFLE(a, b, 2, 6, 3, 7); }
#elif MG_VECTOR_WIDTH == 8
inline Vector interleave_low(Vector a, Vector b) { return MG_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
inline Vector interleave_high(Vector a, Vector b) { return MG_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#elif MG_VECTOR_WIDTH == 16
inline Vector interleave_low(Vector a, Vector b) {
    return MG_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Vector interleave_high(Vector a, Vector b) {
    return MG_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#endif
#undef MG_SHUFFLE

// rows[i][j] <-> rows[j][i]: interleaving row i with row i + kWidth/2 is a perfect shuffle; log2(kWidth) of them transpose.
inline void transpose(Vector rows[kWidth]) {
    for (int round = 1; round < kWidth; round *= 2) {
        Vector shuffled[kWidth];
        for (int i = 0; i < kWidth / 2; ++i) {
            shuffled[2 * i] = interleave_low(rows[i], rows[i + kWidth / 2]);
            shuffled[2 * i + 1] = interleave_high(rows[i], rows[i + kWidth / 2]);
        }
        for (int i = 0; i < kWidth; ++i) rows[i] = shuffled[i];
    }
}

}  // namespace
