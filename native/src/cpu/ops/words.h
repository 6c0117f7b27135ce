// What a product multiplies: words of 32 bits, each one float, or a pair of bfloat16 that are neighbours in depth.
// Pairs are for CPUs that multiply them natively (AVX-512 BF16); elsewhere bfloat16 numbers become floats as they are packed.
// Words travel through float registers and memory as bits.
#pragma once

#include "cpu/ops/bf16.h"
#if defined(MG_BF16_DOT)
#include <immintrin.h>
#endif

namespace {

// Precision E, one number a word.  A float that stands for a bfloat16 (a weight) is rounded when it is packed.
template <typename E>
struct SingleWords {
    static constexpr int64_t kDepth = 1;  // numbers of a word

    static Vector multiply_add(Vector a, Vector b, Vector sum) { return a * b + sum; }
    static Vector ones() { return broadcast(1.0f); }

    // kWidth words along the depth, from at most `numbers` numbers that are neighbours in memory; 0 beyond them.
    template <typename Source>
    static Vector along(const Source* p, int64_t numbers) {
        return number(numbers >= kWidth ? load(p) : load_first(p, numbers), p);
    }

    // The words of kWidth neighbours, n of them present, at one depth; `depth` numbers are left there.
    template <typename Source>
    static Vector across(const Source* p, int64_t /*depth_stride*/, int64_t n, int64_t /*depth*/) {
        return number(load_some(p, n), p);
    }

   private:
    static Vector number(Vector v, const Bf16*) { return v; }
    static Vector number(Vector v, const float*) {
        if constexpr (sizeof(E) == sizeof(float))
            return v;
        else
            return round_to_bf16(v);
    }
};

struct PairWords {
    static constexpr int64_t kDepth = 2;

    // sum + a.low * b.low + a.high * b.high, in float32
    static Vector multiply_add(Vector a, Vector b, Vector sum) {
#if defined(MG_BF16_DOT)
        __m512bh left, right;
        memcpy(&left, &a, sizeof left);
        memcpy(&right, &b, sizeof right);
        return _mm512_dpbf16_ps(sum, left, right);
#else
        const WordVector x = bits_of(a), y = bits_of(b);
        sum = of_bits(x & 0xFFFF0000) * of_bits(y & 0xFFFF0000) + sum;
        return of_bits(x << 16) * of_bits(y << 16) + sum;
#endif
    }
    static Vector ones() { return of_bits(WordVector{} + 0x3F803F80); }

    template <typename Source>
    static Vector along(const Source* p, int64_t numbers) {
        if (numbers >= 2 * kWidth) return whole(p);
        Bf16 both[2 * kWidth] = {};
        for_vectors(numbers, [&](int64_t i, int64_t n) { store_some(both + i, load_some(p + i, n), n); });
        return whole(both);
    }

    template <typename Source>
    static Vector across(const Source* p, int64_t depth_stride, int64_t n, int64_t depth) {
        return joined(load_some(p, n), depth > 1 ? load_some(p + depth_stride, n) : Vector{}, p);
    }

    static Vector pairs(Vector low, Vector high) {
        return of_bits((rounded_bits(high) & 0xFFFF0000) | rounded_bits(low) >> 16);
    }

   private:
    static Vector joined(Vector low, Vector high, const float*) { return pairs(low, high); }
    // What comes from bfloat16 needs no rounding.
    static Vector joined(Vector low, Vector high, const Bf16*) { return of_bits(bits_of(high) | bits_of(low) >> 16); }

    static Vector whole(const Bf16* p) {
        Vector words;
        memcpy(&words, p, sizeof words);
        return words;
    }
    static Vector whole(const float* p) {
        Bf16 both[2 * kWidth];
        store(both, load(p));
        store(both + kWidth, load(p + kWidth));
        return whole(both);
    }
};

template <typename E>
struct WordsOf {
    using type = SingleWords<E>;
};
#if defined(MG_BF16_PAIRS)
template <>
struct WordsOf<Bf16> {
    using type = PairWords;
};
#endif

template <typename E>
using Words = typename WordsOf<E>::type;

template <typename W>
constexpr int64_t groups_of(int64_t depth) {
    return (depth + W::kDepth - 1) / W::kDepth;
}

}  // namespace
