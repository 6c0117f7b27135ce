#include "runtime/product.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "cuda_bf16.h"
#include "engine/wide.h"

namespace mgsim {

namespace {

float load(const ProductMatrix& m, int64_t row, int64_t column) {
    const int64_t at = column * m.stride + row;
    if (!m.bf16) return static_cast<const float*>(m.at)[at];
    return __bfloat162float({static_cast<const uint16_t*>(m.at)[at]});
}

void store(const ProductMatrix& m, int64_t row, int64_t column, float value) {
    const int64_t at = column * m.stride + row;
    if (m.bf16)
        static_cast<uint16_t*>(m.at)[at] = __float2bfloat16_rn(value).bits;
    else
        static_cast<float*>(m.at)[at] = value;
}

constexpr int64_t kRows = 16, kColumns = 6, kDepth = 256;

// sums (kColumns columns of kRows) += a (kRows of each depth) b (kColumns of each depth)
MGSIM_FOR_THIS_MACHINE
void add_products(float* sums, const float* a, const float* b, int64_t depth) {
    Eight s[kColumns][2];
    memcpy(s, sums, sizeof s);
    for (int64_t k = 0; k < depth; ++k) {
        Eight low, high;
        memcpy(&low, a + k * kRows, sizeof low);
        memcpy(&high, a + k * kRows + 8, sizeof high);
#pragma GCC unroll 6
        for (int j = 0; j < kColumns; ++j) {
            const float factor = b[k * kColumns + j];
            s[j][0] += low * factor;
            s[j][1] += high * factor;
        }
    }
    memcpy(sums, s, sizeof s);
}

// Lines [first, first + count) of op(m) over some of the depth, as floats, `width` of them side by side; zeros beyond the end.
// A line is a row of op(a), or a column of op(b).
void pack(float* packed, const ProductMatrix& m, bool lines_are_columns, int64_t lines, int64_t width,
          int64_t depth_begin, int64_t depth_end) {
    const int64_t depth = depth_end - depth_begin;
    for (int64_t first = 0; first < lines; first += width) {
        const int64_t count = std::min(width, lines - first);
        std::fill(packed, packed + depth * width, 0.0f);
        if (lines_are_columns) {
            for (int64_t i = 0; i < count; ++i)
                for (int64_t k = 0; k < depth; ++k) packed[k * width + i] = load(m, depth_begin + k, first + i);
        } else {
            for (int64_t k = 0; k < depth; ++k)
                for (int64_t i = 0; i < count; ++i) packed[k * width + i] = load(m, first + i, depth_begin + k);
        }
        packed += depth * width;
    }
}

// op(a) op(b), column-major.
std::vector<float> multiply_plain(const Product& p, int64_t rows, int64_t columns, int64_t depth) {
    const int64_t row_panels = (rows + kRows - 1) / kRows, column_panels = (columns + kColumns - 1) / kColumns;
    const int64_t block = std::min(depth, kDepth);
    std::vector<float> result(static_cast<size_t>(rows * columns)), a(static_cast<size_t>(row_panels * kRows * block)),
        b(static_cast<size_t>(column_panels * kColumns * block));
    for (int64_t begin = 0; begin < depth; begin += kDepth) {
        const int64_t end = std::min(depth, begin + kDepth);
        pack(a.data(), p.a, p.a_transposed, rows, kRows, begin, end);
        pack(b.data(), p.b, !p.b_transposed, columns, kColumns, begin, end);
        for (int64_t cp = 0; cp < column_panels; ++cp) {
            for (int64_t rp = 0; rp < row_panels; ++rp) {
                float sums[kColumns * kRows] = {};
                add_products(sums, a.data() + rp * kRows * (end - begin), b.data() + cp * kColumns * (end - begin),
                             end - begin);
                const int64_t rows_here = std::min(kRows, rows - rp * kRows),
                              columns_here = std::min(kColumns, columns - cp * kColumns);
                for (int64_t j = 0; j < columns_here; ++j)
                    for (int64_t i = 0; i < rows_here; ++i)
                        result[static_cast<size_t>((cp * kColumns + j) * rows + rp * kRows + i)] += sums[j * kRows + i];
            }
        }
    }
    return result;
}

// GELU by its tanh form, as the library computes it.
constexpr float kRoot = 0.7978845608f, kCubic = 0.044715f;
float gelu(float x) { return 0.5f * x * (1.0f + tanhf(kRoot * (x + kCubic * x * x * x))); }
float gelu_slope(float x) {
    const float t = tanhf(kRoot * (x + kCubic * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * kRoot * (1.0f + 3.0f * kCubic * x * x);
}

// Sums of the lines of a factor over the depth.
void sum_lines(const ProductMatrix& bias, const ProductMatrix& m, bool lines_are_columns, int64_t lines,
               int64_t depth) {
    for (int64_t i = 0; i < lines; ++i) {
        float sum = 0.0f;
        for (int64_t k = 0; k < depth; ++k) sum += lines_are_columns ? load(m, k, i) : load(m, i, k);
        store(bias, i, 0, sum);
    }
}

}  // namespace

void multiply(const Product& p) {
    const int64_t rows = p.d.rows, columns = p.d.columns, depth = p.a_transposed ? p.a.rows : p.a.columns;
    const std::vector<float> sums = multiply_plain(p, rows, columns, depth);
    const ProductMatrix bias{p.bias, p.d.bf16, std::max(rows, columns), 1, 0};
    if (p.gradient == BiasGradient::kOfA) sum_lines(bias, p.a, p.a_transposed, rows, depth);
    if (p.gradient == BiasGradient::kOfB) sum_lines(bias, p.b, !p.b_transposed, columns, depth);
    std::vector<float> row_sums(static_cast<size_t>(rows));
    const bool adds_bias = p.bias != nullptr && p.gradient == BiasGradient::kNone;
    for (int64_t column = 0; column < columns; ++column) {
        for (int64_t row = 0; row < rows; ++row) {
            float x = p.alpha * sums[static_cast<size_t>(column * rows + row)];
            if (p.beta != 0.0f) x += p.beta * load(p.c, row, column);
            if (adds_bias) x += load(bias, row, 0);
            if (p.step == ResultStep::kGelu) {
                store(p.hidden, row, column, x);
                x = gelu(x);
            } else if (p.step == ResultStep::kGeluBackward) {
                x *= gelu_slope(load(p.hidden, row, column));
            }
            row_sums[static_cast<size_t>(row)] += x;
            store(p.d, row, column, x);
        }
    }
    if (p.gradient == BiasGradient::kOfResult)
        for (int64_t row = 0; row < rows; ++row) store(bias, row, 0, row_sums[static_cast<size_t>(row)]);
}

}  // namespace mgsim
