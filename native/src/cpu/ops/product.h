// C = A B with packed operands and an epilogue: the linear layers, their gradients, and the head.
// Both are packed in blocks that stay in the caches; tiles are summed block by block over the depth, and the last block ends
// in the epilogue.
#pragma once

#include "cpu/kernels.h"
#include "cpu/ops/math.h"
#include "cpu/ops/tile.h"

namespace {

using mg::cpu::Epilogue;
using mg::cpu::Product;

// A panel of B, kDepthBlock x kTileColumns, stays in the first-level cache while it meets a block of A from the second.
constexpr int64_t kDepthBlock = 256;
constexpr int64_t kRowBlock = 16 * kTileRows;
constexpr int64_t kColumnBlock = 512;
constexpr int64_t kFewRows = 4;

constexpr int64_t kPackedRow = kDepthBlock + 8;
constexpr int64_t kPackedB = kDepthBlock * kColumnBlock;
constexpr int64_t kPackedA = kPackedRow * kRowBlock;
constexpr size_t kProductScratchBytes = (kPackedB + kPackedA + kTileRows * kTileColumns) * sizeof(float);

// Turns n <= kWidth finished sums into C (and the second output); `at` is their place in both.
inline void finish_vector(const Product& p, Vector sum, int64_t at, int64_t column, int64_t n) {
    if (p.epilogue == Epilogue::bias_gelu) {
        store_some(p.second + at, sum, n);
        sum = gelu(sum);
    } else if (p.epilogue == Epilogue::bias_residual) {
        if (p.bias != nullptr) sum = sum + load_some(p.bias + column, n);
    } else if (p.epilogue == Epilogue::gelu_backward) {
        const Vector hidden = load_some(p.other + at, n);
        const Gate gate = gelu_gate(hidden);
        sum = sum * gelu_derivative(hidden, gate);
        store_some(p.second + at, hidden * gate.open, n);
    }
    store_some(p.c + at, sum, n);
}

// The same for a tile at `at`, whose first column is `column`; the sums may lie in either output.
inline void finish_tile(const Product& p, const float* sums, int64_t sums_row, int64_t at, int64_t column, int64_t rows,
                        int64_t columns) {
    for (int64_t i = 0; i < rows; ++i, sums += sums_row, at += p.c_row) {
        if (columns == kTileColumns) {
            const Vector left = load(sums), right = load(sums + kWidth);
            finish_vector(p, left, at, column, kWidth);
            finish_vector(p, right, at + kWidth, column + kWidth, kWidth);
        } else {
            for_vectors(columns,
                        [&](int64_t j, int64_t n) { finish_vector(p, load_some(sums + j, n), at + j, column + j, n); });
        }
    }
}

inline void copy_tile(float* out, int64_t out_row, const float* x, int64_t x_row, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i, out += out_row, x += x_row)
        for_vectors(columns, [&](int64_t j, int64_t n) { store_some(out + j, load_some(x + j, n), n); });
}

// Rows of A with depth contiguous -> out[row][kPackedRow].  The tile reads a column of kTileRows numbers at a time: at the
// strides of a model's matrices they would lie in one bank of the cache and wait for each other.
inline void pack_rows(float* out, const float* a, int64_t a_row, int64_t depth, int64_t rows) {
    copy_tile(out, kPackedRow, a, a_row, rows, depth);
}

// Rows of A with the rows contiguous -> out[row tile][depth][kTileRows], tiles packed_tile(depth) apart.  Whole vectors are
// copied: what they hold too much lands where the next depth, or the gap between two tiles, will be.
inline int64_t packed_tile(int64_t depth) { return depth * kTileRows + kWidth; }

inline void pack_transposed_rows(float* out, const float* a, int64_t a_depth, int64_t depth, int64_t rows) {
    constexpr int64_t reach = round_up(kTileRows, kWidth);  // floats that a tile's vectors read
    for (int64_t k = 0; k < depth; ++k, a += a_depth) {
        float* to = out + k * kTileRows;
        int64_t row = 0;
        for (; row + reach <= rows; row += kTileRows, to += packed_tile(depth))
            for (int64_t i = 0; i < kTileRows; i += kWidth) store(to + i, load(a + row + i));
        for (; row < rows; row += kTileRows, to += packed_tile(depth))
            for (int64_t i = row; i < rows && i < row + kTileRows; ++i) to[i - row] = a[i];
    }
}

inline void product(const Product& p, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
                    void* scratch) {
    float* packed_b = static_cast<float*>(scratch);
    float* packed_a = packed_b + kPackedB;
    float* edge = packed_a + kPackedA;  // a tile that C has no room for
    const int64_t columns = column_end - column_begin;
    const bool transposed = p.a_depth != 1;
    const bool finishes = p.epilogue != Epilogue::store && p.epilogue != Epilogue::accumulate;
    // Sums of the depth so far wait in an output that is not an input at the same time.
    float* partial_sums = p.epilogue == Epilogue::gelu_backward ? p.second : p.c;
    for (int64_t k = 0; k < p.K; k += kDepthBlock) {
        const int64_t depth = p.K - k < kDepthBlock ? p.K - k : kDepthBlock;
        const bool last = k + depth == p.K;
        pack_panels(packed_b, p.b + k * p.b_depth + column_begin * p.b_column, p.b_depth, p.b_column, depth, columns);
        for (int64_t block = row_begin; block < row_end; block += kRowBlock) {
            const int64_t block_rows = row_end - block < kRowBlock ? row_end - block : kRowBlock;
            if (transposed)
                pack_transposed_rows(packed_a, p.a + block + k * p.a_depth, p.a_depth, depth, block_rows);
            else
                pack_rows(packed_a, p.a + block * p.a_row + k, p.a_row, depth, block_rows);
            for (int64_t column = 0; column < columns; column += kTileColumns) {
                const int64_t present = columns - column < kTileColumns ? columns - column : kTileColumns;
                const bool whole = present == kTileColumns;
                for (int64_t row = 0; row < block_rows; row += kTileRows) {
                    const int64_t rows = block_rows - row < kTileRows ? block_rows - row : kTileRows;
                    const int64_t at = (block + row) * p.c_row + column_begin + column;
                    Start start = {nullptr, p.c_row};
                    if (k > 0 || p.epilogue == Epilogue::accumulate)
                        start.numbers = partial_sums + at;
                    else if (p.epilogue == Epilogue::bias_residual)
                        start.numbers = p.other + at;
                    else if (p.bias != nullptr)
                        start = {p.bias + column_begin + column, 0};
                    float* sums = whole ? partial_sums + at : edge;
                    const int64_t sums_row = whole ? p.c_row : kTileColumns;
                    if (!whole && start.numbers != nullptr) {
                        copy_tile(edge, kTileColumns, start.numbers, start.stride, rows, present);
                        start = {edge, kTileColumns};
                    }
                    const float* a = packed_a + (transposed ? row / kTileRows * packed_tile(depth) : row * kPackedRow);
                    tile(rows, sums, sums_row, start, a, transposed ? 1 : kPackedRow, transposed ? kTileRows : 1,
                         packed_b + column * depth, depth);
                    if (last && finishes)
                        finish_tile(p, sums, sums_row, at, column_begin + column, rows, present);
                    else if (!whole)
                        copy_tile(partial_sums + at, p.c_row, sums, sums_row, rows, present);
                }
            }
        }
    }
}

// At most kFewRows rows, as in decoding: every weight is read once, straight from B's columns, and used for all rows.
inline void product_few_rows(const Product& p, int64_t column_begin, int64_t column_end) {
    for (int64_t column = column_begin; column < column_end; ++column) {
        const float* b = p.b + column * p.b_column;
        Vector sums[kFewRows][2] = {};
        int64_t k = 0;
        for (; k + 2 * kWidth <= p.K; k += 2 * kWidth) {
            const Vector b_left = load(b + k), b_right = load(b + k + kWidth);
            for (int64_t i = 0; i < p.M; ++i) {
                sums[i][0] = load(p.a + i * p.a_row + k) * b_left + sums[i][0];
                sums[i][1] = load(p.a + i * p.a_row + k + kWidth) * b_right + sums[i][1];
            }
        }
        float totals[kFewRows];
        for (int64_t i = 0; i < p.M; ++i) {
            totals[i] = sum_lanes(sums[i][0] + sums[i][1]);
            for (int64_t rest = k; rest < p.K; ++rest) totals[i] += p.a[i * p.a_row + rest] * b[rest];
            const int64_t at = i * p.c_row + column;
            if (p.epilogue == Epilogue::accumulate) totals[i] += p.c[at];
            if (p.epilogue == Epilogue::bias_residual)
                totals[i] += p.other[at];
            else if (p.bias != nullptr)
                totals[i] += p.bias[column];
            finish_tile(p, totals + i, 1, at, column, 1, 1);
        }
    }
}

}  // namespace
