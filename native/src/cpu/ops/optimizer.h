// Sums over long arrays, and AdamW (Loshchilov & Hutter 2019):
//   p *= 1 - lr wd;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
//   p -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
#pragma once

#include "cpu/kernels.h"
#include "cpu/ops/vector.h"

namespace {

// float sums of 16 vectors' worth, then double: fast, and exact enough for any length.
inline double sum(const float* x, int64_t count) {
    double total = 0;
    int64_t i = 0;
    for (; i + 16 * kWidth <= count; i += 16 * kWidth) {
        Vector part = {};
        for (int j = 0; j < 16; ++j) part = part + load(x + i + j * kWidth);
        total += static_cast<double>(sum_lanes(part));
    }
    for (; i < count; ++i) total += static_cast<double>(x[i]);
    return total;
}

inline double sum_of_squares(const float* x, int64_t count) {
    double total = 0;
    int64_t i = 0;
    for (; i + 16 * kWidth <= count; i += 16 * kWidth) {
        Vector part = {};
        for (int j = 0; j < 16; ++j) {
            const Vector value = load(x + i + j * kWidth);
            part = value * value + part;
        }
        total += static_cast<double>(sum_lanes(part));
    }
    for (; i < count; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return total;
}

// sqrt of each lane, one instruction where the lanes are seen to be independent.
inline Vector square_root(Vector x) {
    float lanes[kWidth];
    store(lanes, x);
    for (int i = 0; i < kWidth; ++i) lanes[i] = sqrtf(lanes[i]);
    return load(lanes);
}

inline void adamw(float* parameters, float* gradients, float* m, float* v, int64_t count,
                  const mg::cpu::AdamWStep& step) {
    for_vectors(count, [&](int64_t i, int64_t n) {
        const Vector g = load_some(gradients + i, n) * step.gradient_scale;
        const Vector new_m = load_some(m + i, n) * step.beta1 + g * (1.0f - step.beta1);
        const Vector new_v = load_some(v + i, n) * step.beta2 + g * g * (1.0f - step.beta2);
        const Vector update = new_m * step.step_size / (square_root(new_v) * step.root_correction + step.epsilon);
        store_some(parameters + i, load_some(parameters + i, n) * step.keep - update, n);
        store_some(m + i, new_m, n);
        store_some(v + i, new_v, n);
        store_some(gradients + i, Vector{}, n);
    });
}

// out[columns] += each row, first to last.
inline void add_rows(float* out, const float* x, int64_t rows, int64_t row_stride, int64_t columns) {
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < columns; ++c) out[c] += x[row * row_stride + c];
}

}  // namespace
