// C = A B with packed operands and an epilogue: the linear layers, their gradients, and the head.
// B is packed once for all threads (pack_columns).  A thread then takes rows of A, packs them, and meets them with B strip
// by strip: a strip of B over one block of the depth stays in the first-level cache while it passes by the rows of A, and
// the sums of a block of columns wait in the second level, so that C is touched once.
#pragma once

#include "cpu/kernels.h"
#include "cpu/ops/math.h"
#include "cpu/ops/tile.h"

namespace {

using mg::cpu::Epilogue;
using mg::cpu::Product;

constexpr int64_t kDepthGroups = kWidth == 16 ? 192 : 256;  // of a block
constexpr int64_t kRowBlock = kWidth == 16 ? 168 : 96;
constexpr int64_t kColumnBlock = 8 * kTileColumns;
constexpr int64_t kMostPackedA = kRowBlock * 4096;
constexpr int64_t kTile = kTileRows * kTileColumns;
static_assert(kRowBlock % kTileRows == 0, "a block of rows is whole tiles");

// Rows of A that are packed at once, over the whole depth.
inline int64_t rows_at_once(int64_t groups) {
    const int64_t fit = kMostPackedA / groups / kTileRows * kTileRows;
    return smaller(kRowBlock, larger(fit, kTileRows));
}

template <typename E>
size_t product_scratch_bytes(int64_t depth) {
    const int64_t groups = groups_of<Words<E>>(depth), rows = rows_at_once(groups);
    return static_cast<size_t>(rows * groups + rows * kColumnBlock) * sizeof(float);
}

// Words of one packed strip of B.
template <typename E>
int64_t strip_words(int64_t depth) {
    return groups_of<Words<E>>(depth) * kTileColumns;
}

// Columns [begin, end) of B(depth, column) into the strips of `packed`; begin is a multiple of kTileColumns.
template <typename E, typename Source>
void pack_columns(float* packed, const Source* b, int64_t b_depth, int64_t b_column, int64_t depth, int64_t begin,
                  int64_t end) {
    const int64_t strip = strip_words<E>(depth);
    pack_strips<Words<E>, kTileColumns>(packed + begin / kTileColumns * strip, strip, b + begin * b_column, b_column,
                                        b_depth, end - begin, depth);
}

// Turns n <= kWidth finished sums at `at` of C, in that column, into the outputs.
template <typename E>
inline void finish_vector(const Product<E>& p, Vector sum, int64_t at, int64_t column, int64_t n) {
    if (p.bias != nullptr) sum = sum + load_some(p.bias + column, n);
    switch (p.epilogue) {
        case Epilogue::store: store_some(p.out + at, sum, n); break;
        case Epilogue::gelu:
            store_some(p.second + at, sum, n);
            store_some(p.out + at, gelu(as_stored(p.second, sum)), n);
            break;
        case Epilogue::gelu_backward: {
            const Vector hidden = load_some(p.hidden + at, n);
            const Gate gate = gelu_gate(hidden);
            store_some(p.out + at, sum * gelu_derivative(hidden, gate), n);
            store_some(p.second + at, hidden * gate.open, n);
            break;
        }
        case Epilogue::store_sums: store_some(p.sums + at, sum, n); break;
        case Epilogue::add: store_some(p.sums + at, sum + load_some(p.other + at, n), n); break;
    }
}

template <typename E>
inline void finish_tile(const Product<E>& p, const float* sums, int64_t row, int64_t column, int64_t rows,
                        int64_t columns) {
    for (int64_t i = 0; i < rows; ++i, sums += kTileColumns) {
        const int64_t at = (row + i) * p.N + column;
        if (columns == kTileColumns) {
            finish_vector(p, load(sums), at, column, kWidth);
            finish_vector(p, load(sums + kWidth), at + kWidth, column + kWidth, kWidth);
        } else {
            for_vectors(columns,
                        [&](int64_t j, int64_t n) { finish_vector(p, load_some(sums + j, n), at + j, column + j, n); });
        }
    }
}

// out[rows] += the sums of packed rows over a block of the depth.
template <typename W>
inline void add_row_sums(float* out, const float* packed, int64_t strip, int64_t rows, int64_t groups) {
    for (int64_t row = 0; row < rows; row += kTileRows, packed += strip) {
        for (int64_t lane = 0; lane < kTileRows; lane += kWidth) {
            const int64_t lanes = smaller(kTileRows - lane, kWidth);
            const float* from = packed + lane;
            // Four sums, so that an addition doesn't wait for the one before.
            Vector sums[4] = {};
            int64_t g = 0;
            for (; g + 4 < groups; g += 4)
                for (int i = 0; i < 4; ++i)
                    sums[i] = W::multiply_add(load(from + (g + i) * kTileRows), W::ones(), sums[i]);
            for (; g < groups; ++g)
                sums[0] = W::multiply_add(load_some(from + g * kTileRows, lanes), W::ones(), sums[0]);
            const Vector sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            for (int64_t i = 0; i < lanes && row + lane + i < rows; ++i) out[row + lane + i] += sum[i];
        }
    }
}

// Rows [row_begin, row_end) and columns [column_begin, column_end) of C; column_begin is a multiple of kTileColumns.
template <typename E>
void product(const Product<E>& p, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end,
             void* scratch) {
    using W = Words<E>;
    const int64_t groups = groups_of<W>(p.K), strip = groups * kTileColumns, most_rows = rows_at_once(groups);
    float* packed_a = static_cast<float*>(scratch);
    float* tiles = packed_a + most_rows * groups;
    for (int64_t row = row_begin; row < row_end; row += most_rows) {
        const int64_t rows = smaller(row_end - row, most_rows), strips = (rows + kTileRows - 1) / kTileRows;
        for (int64_t g = 0; g < groups; g += kDepthGroups) {
            const int64_t steps = smaller(groups - g, kDepthGroups), depth = g * W::kDepth;
            float* block = packed_a + g * strips * kTileRows;
            pack_strips<W, kTileRows>(block, steps * kTileRows, p.a + row * p.a_row + depth * p.a_depth, p.a_row,
                                      p.a_depth, rows, smaller(p.K - depth, steps * W::kDepth));
            if (p.row_sums != nullptr && column_begin == 0)
                add_row_sums<W>(p.row_sums + row, block, steps * kTileRows, rows, steps);
        }
        for (int64_t block = column_begin; block < column_end; block += kColumnBlock) {
            const int64_t block_end = smaller(block + kColumnBlock, column_end);
            for (int64_t g = 0; g < groups; g += kDepthGroups) {
                const int64_t steps = smaller(groups - g, kDepthGroups);
                const float* a = packed_a + g * strips * kTileRows;
                const bool last = g + steps == groups;
                float* sums = tiles;
                for (int64_t column = block; column < block_end; column += kTileColumns) {
                    const float* b = p.packed_b + (column - p.packed_from) / kTileColumns * strip + g * kTileColumns;
                    for (int64_t i = 0; i < strips; ++i, sums += kTile) {
                        tile<W>(sums, kTileColumns, g > 0, a + i * steps * kTileRows, b, steps);
                        if (last)
                            finish_tile(p, sums, row + i * kTileRows, column, smaller(rows - i * kTileRows, kTileRows),
                                        smaller(column_end - column, kTileColumns));
                    }
                }
            }
        }
    }
}

}  // namespace
