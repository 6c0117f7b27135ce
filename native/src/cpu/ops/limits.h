// What the machine can do at most, to measure everything else against.
#pragma once

#include "cpu/ops/tile.h"

namespace {

// Multiply-adds of a tile whose operands never leave the registers: the peak of the precision's products.
template <typename E>
double peak_products(int64_t rounds) {
    using W = Words<E>;
    constexpr int kSums = kWidth == 16 ? 28 : 12;  // more than latency times instructions a cycle
    Vector sums[kSums];
    for (int i = 0; i < kSums; ++i) sums[i] = W::ones() * static_cast<float>(i);
    const Vector a = W::ones(), b = of_bits(bits_of(W::ones()) - 0x00100010);
    for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 28
        for (int i = 0; i < kSums; ++i) sums[i] = W::multiply_add(a, b, sums[i]);
    Vector total = {};
    for (int i = 0; i < kSums; ++i) total = total + sums[i];
    // The result decides nothing, but the compiler doesn't know.
    const double unused = static_cast<double>(sum_lanes(total)) == -1.0 ? 1.0 : 0.0;
    return static_cast<double>(rounds) * kSums * kWidth * 2 * W::kDepth + unused;
}

// Reads all of x in four streams, which memory serves faster than one; the sum only keeps the reads alive.
inline float read(const float* x, int64_t count) {
    constexpr int64_t kLine = 64 / sizeof(float);
    const int64_t quarter = count / 4 / kLine * kLine;
    Vector sums[4] = {};
    for (int64_t i = 0; i < quarter; i += kLine)
        for (int64_t part = 0; part < kLine; part += kWidth)
            for (int j = 0; j < 4; ++j) sums[j] = sums[j] + load(x + j * quarter + i + part);
    float total = sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (int64_t i = 4 * quarter; i < count; ++i) total += x[i];
    return total;
}

}  // namespace
