// The heart of every product: a tile of kTileRows x kTileColumns sums held in registers.
#pragma once

#include "cpu/ops/vector.h"

namespace {

// Two vectors of columns; as many rows as leave registers for one row's operands (16 or 32 registers).
constexpr int kTileRows = kWidth == 16 ? 14 : 6;
constexpr int kTileColumns = 2 * kWidth;

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// What a tile's sums start from: numbers[row * stride + column], or 0 where numbers is null; stride 0 is one row for all.
struct Start {
    const float* numbers;
    int64_t stride;
};

// c[ROWS, kTileColumns] = start + a b.  a(row, depth) = a[row * a_row + depth * a_depth]; b is a packed panel [depth][kTileColumns].
// The order of the sum over depth is the same for every tile shape, so a row's result doesn't depend on its neighbours.
template <int ROWS>
inline void tile_rows(float* c, int64_t c_row, Start start, const float* a, int64_t a_row, int64_t a_depth,
                      const float* b, int64_t depth) {
    Vector left[ROWS], right[ROWS];
    for (int i = 0; i < ROWS; ++i) {
        left[i] = start.numbers != nullptr ? load(start.numbers + i * start.stride) : Vector{};
        right[i] = start.numbers != nullptr ? load(start.numbers + i * start.stride + kWidth) : Vector{};
    }
    for (int64_t k = 0; k < depth; ++k) {
        const Vector b_left = load(b), b_right = load(b + kWidth);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i) {
            const Vector x = broadcast(a[i * a_row]);
            left[i] = x * b_left + left[i];
            right[i] = x * b_right + right[i];
        }
        a += a_depth;
        b += kTileColumns;
    }
    for (int i = 0; i < ROWS; ++i) {
        store(c + i * c_row, left[i]);
        store(c + i * c_row + kWidth, right[i]);
    }
}

template <int ROWS>
inline void tile_rows_or_fewer(int64_t rows, float* c, int64_t c_row, Start start, const float* a, int64_t a_row,
                               int64_t a_depth, const float* b, int64_t depth) {
    if (rows >= ROWS)
        tile_rows<ROWS>(c, c_row, start, a, a_row, a_depth, b, depth);
    else if constexpr (ROWS > 1)
        tile_rows_or_fewer<ROWS - 1>(rows, c, c_row, start, a, a_row, a_depth, b, depth);
}

// rows <= kTileRows.  The two layouts of a get code of their own, because a stride of 1 is an address for free.
inline void tile(int64_t rows, float* c, int64_t c_row, Start start, const float* a, int64_t a_row, int64_t a_depth,
                 const float* b, int64_t depth) {
    if (a_depth == 1)
        tile_rows_or_fewer<kTileRows>(rows, c, c_row, start, a, a_row, 1, b, depth);
    else
        tile_rows_or_fewer<kTileRows>(rows, c, c_row, start, a, 1, a_depth, b, depth);
}

// Packs columns [0, columns) of b(depth, column) into panels of kTileColumns: out[panel][depth][kTileColumns], missing columns 0.
inline void pack_panels(float* out, const float* b, int64_t b_depth, int64_t b_column, int64_t depth, int64_t columns) {
    for (int64_t column = 0; column < columns; column += kTileColumns, out += depth * kTileColumns) {
        const int64_t present = columns - column < kTileColumns ? columns - column : kTileColumns;
        const float* source = b + column * b_column;
        if (b_column == 1) {
            for (int64_t k = 0; k < depth; ++k) {
                float* row = out + k * kTileColumns;
                if (present == kTileColumns) {
                    store(row, load(source + k * b_depth));
                    store(row + kWidth, load(source + k * b_depth + kWidth));
                } else {
                    for (int64_t j = 0; j < kTileColumns; ++j) row[j] = j < present ? source[k * b_depth + j] : 0.0f;
                }
            }
            continue;
        }
        int64_t k = 0;
        if (b_depth == 1 && present == kTileColumns) {
            for (; k + kWidth <= depth; k += kWidth) {
                for (int half = 0; half < 2; ++half) {
                    Vector block[kWidth];
                    for (int j = 0; j < kWidth; ++j) block[j] = load(source + (half * kWidth + j) * b_column + k);
                    transpose(block);
                    for (int i = 0; i < kWidth; ++i) store(out + (k + i) * kTileColumns + half * kWidth, block[i]);
                }
            }
        }
        for (; k < depth; ++k)
            for (int64_t j = 0; j < kTileColumns; ++j)
                out[k * kTileColumns + j] = j < present ? source[k * b_depth + j * b_column] : 0.0f;
    }
}

// c[rows, columns] (+)= a b with b packed in panels that lie panel_stride floats apart; c has room for whole panels.
inline void multiply_panels(float* c, int64_t c_row, const float* a, int64_t a_row, int64_t a_depth,
                            const float* b_panels, int64_t panel_stride, int64_t rows, int64_t columns, int64_t depth,
                            bool accumulate) {
    for (int64_t column = 0; column < columns; column += kTileColumns, b_panels += panel_stride)
        for (int64_t row = 0; row < rows; row += kTileRows) {
            float* to = c + row * c_row + column;
            tile(rows - row < kTileRows ? rows - row : kTileRows, to, c_row, {accumulate ? to : nullptr, c_row},
                 a + row * a_row, a_row, a_depth, b_panels, depth);
        }
}

}  // namespace
