// Decoding: one query of one head against `length` cached keys and values [length, head_dim].
#pragma once

#include "cpu/ops/bf16.h"
#include "cpu/ops/math.h"

namespace {

// out[n] = sum over j of weights[j] values[j * head_dim .. + n], scaled; n <= VECTORS vectors, held in registers.
template <int VECTORS, typename E>
inline void weighted_sum(E* out, const float* weights, const E* values, int64_t length, int64_t head_dim, int64_t n,
                         float scale) {
    Vector sums[VECTORS] = {};
    for (int64_t j = 0; j < length; ++j) {
        const E* row = values + j * head_dim;
        for (int i = 0; i < VECTORS; ++i) {
            const int64_t left = n - i * kWidth;
            sums[i] = load_some(row + i * kWidth, left < kWidth ? left : kWidth) * weights[j] + sums[i];
        }
    }
    for (int i = 0; i < VECTORS; ++i) {
        const int64_t left = n - i * kWidth;
        store_some(out + i * kWidth, sums[i] * scale, left < kWidth ? left : kWidth);
    }
}

constexpr int kKeysTogether = 4;

// scores[KEYS] = scale * query . each key.  The values at the same positions are fetched meanwhile: two streams are read
// faster than one.
template <int KEYS, typename E>
inline void dot_products_with_keys(float* scores, const E* keys, const E* values, const E* query, int64_t head_dim,
                                   float scale) {
    Vector sums[KEYS] = {};
    for_vectors(head_dim, [&](int64_t d, int64_t n) {
        const Vector q = load_some(query + d, n);
        for (int i = 0; i < KEYS; ++i) {
            __builtin_prefetch(values + i * head_dim + d);
            sums[i] = q * load_some(keys + i * head_dim + d, n) + sums[i];
        }
    });
    for (int i = 0; i < KEYS; ++i) scores[i] = sum_lanes(sums[i]) * scale;
}

template <typename E>
void cached_attention(E* out, const E* keys, const E* values, const E* query, int64_t length, int64_t head_dim,
                      float* scores) {
    const float scale = 1.0f / sqrtf(static_cast<float>(head_dim));
    int64_t key = 0;
    for (; key + kKeysTogether <= length; key += kKeysTogether)
        dot_products_with_keys<kKeysTogether>(scores + key, keys + key * head_dim, values + key * head_dim, query,
                                              head_dim, scale);
    for (; key < length; ++key)
        dot_products_with_keys<1>(scores + key, keys + key * head_dim, values + key * head_dim, query, head_dim, scale);
    const float most = maximum_of(scores, length);
    float total = 0.0f;
    for_vectors(length, [&](int64_t j, int64_t n) {
        const Vector e = exponential(load_some(scores + j, n) - most);
        store_some(scores + j, e, n);
        for (int64_t i = 0; i < n; ++i) total += e[i];
    });
    const float inverse = 1.0f / total;
    int64_t d = 0;
    for (; d + 4 * kWidth <= head_dim; d += 4 * kWidth)
        weighted_sum<4>(out + d, scores, values + d, length, head_dim, 4 * kWidth, inverse);
    for (; d < head_dim; d += kWidth) {
        const int64_t n = head_dim - d < kWidth ? head_dim - d : kWidth;
        weighted_sum<1>(out + d, scores, values + d, length, head_dim, n, inverse);
    }
}

}  // namespace
