// bfloat16 in memory, float32 in registers: loads widen, stores round to nearest even.  NaN stays NaN.
#pragma once

#include "cpu/element.h"
#include "cpu/ops/vector.h"

namespace {

using mg::cpu::Bf16;

typedef uint16_t HalfVector __attribute__((vector_size(2 * MG_VECTOR_WIDTH)));
typedef uint32_t WordVector __attribute__((vector_size(4 * MG_VECTOR_WIDTH)));

inline WordVector bits_of(Vector v) {
    WordVector bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

inline Vector of_bits(WordVector bits) {
    Vector v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

// The float's bits with the lower half still to be dropped.
inline WordVector rounded_bits(Vector v) {
    const WordVector bits = bits_of(v);
    const WordVector rounded = bits + 0x7FFF + (bits >> 16 & 1);
    return v == v ? rounded : bits | 0x00400000;
}

inline Vector round_to_bf16(Vector v) { return of_bits(rounded_bits(v) & 0xFFFF0000); }

inline Vector widen(HalfVector half) { return of_bits(__builtin_convertvector(half, WordVector) << 16); }

inline Vector load(const Bf16* p) {
    HalfVector half;
    memcpy(&half, p, sizeof half);
    return widen(half);
}

inline void store(Bf16* p, Vector v) {
    const HalfVector half = __builtin_convertvector(rounded_bits(v) >> 16, HalfVector);
    memcpy(p, &half, sizeof half);
}

inline Vector load_first(const Bf16* p, int64_t n) {
    HalfVector half = {};
    memcpy(&half, p, static_cast<size_t>(n) * sizeof(Bf16));
    return widen(half);
}

inline void store_first(Bf16* p, Vector v, int64_t n) {
    const HalfVector half = __builtin_convertvector(rounded_bits(v) >> 16, HalfVector);
    memcpy(p, &half, static_cast<size_t>(n) * sizeof(Bf16));
}

inline Vector load_some(const Bf16* p, int64_t n) { return n == kWidth ? load(p) : load_first(p, n); }

inline void store_some(Bf16* p, Vector v, int64_t n) {
    if (n == kWidth)
        store(p, v);
    else
        store_first(p, v, n);
}

// What storing v and loading it again gives; the pointer only names the precision.
inline Vector as_stored(const float*, Vector v) { return v; }
inline Vector as_stored(const Bf16*, Vector v) { return round_to_bf16(v); }

template <typename E>
void add_elements(float* sums, const E* x, int64_t count) {
    for_vectors(count,
                [&](int64_t i, int64_t n) { store_some(sums + i, load_some(sums + i, n) + load_some(x + i, n), n); });
}

template <typename E>
void convert(E* out, const float* x, int64_t count) {
    for_vectors(count, [&](int64_t i, int64_t n) { store_some(out + i, load_some(x + i, n), n); });
}

}  // namespace
