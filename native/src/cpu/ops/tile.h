// The heart of every product: a tile of kTileRows x kTileColumns sums held in registers, and the packing of its operands
// into strips: strip[group][kTileRows or kTileColumns] words, a group being one step of the depth (one number, or a pair).
#pragma once

#include "cpu/ops/words.h"

namespace {

// Two vectors of columns; as many rows as leave registers for one row's operands (16 or 32 registers).
constexpr int kTileRows = kWidth == 16 ? 14 : 6;
constexpr int kTileColumns = 2 * kWidth;

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// c[kTileRows, kTileColumns] (+)= a b.  A row's word at group g is a[row * a_row + g * a_group]; b is a strip.
template <typename W>
inline void tile_at(float* c, int64_t c_row, bool add, const float* a, int64_t a_row, int64_t a_group, const float* b,
                    int64_t groups) {
    Vector left[kTileRows] = {}, right[kTileRows] = {};
    if (add) {
        for (int i = 0; i < kTileRows; ++i) {
            left[i] = load(c + i * c_row);
            right[i] = load(c + i * c_row + kWidth);
        }
    }
    for (int64_t g = 0; g < groups; ++g) {
        const Vector b_left = load(b), b_right = load(b + kWidth);
#pragma GCC unroll 16
        for (int i = 0; i < kTileRows; ++i) {
            const Vector x = broadcast(a[i * a_row]);
            left[i] = W::multiply_add(x, b_left, left[i]);
            right[i] = W::multiply_add(x, b_right, right[i]);
        }
        a += a_group;
        b += kTileColumns;
    }
    for (int i = 0; i < kTileRows; ++i) {
        store(c + i * c_row, left[i]);
        store(c + i * c_row + kWidth, right[i]);
    }
}

// With a packed too.
template <typename W>
inline void tile(float* c, int64_t c_row, bool add, const float* a, const float* b, int64_t groups) {
    tile_at<W>(c, c_row, add, a, 1, kTileRows, b, groups);
}

// Packs `lanes` rows of A (LANES = kTileRows) or columns of B (LANES = kTileColumns) into strips, strip_stride words
// apart; what is missing in the last strip and group is 0.  x(lane, depth) = x[lane * lane_stride + depth * depth_stride],
// and one of the strides is 1.
template <typename W, int LANES, typename Source>
inline void pack_strips(float* out, int64_t strip_stride, const Source* x, int64_t lane_stride, int64_t depth_stride,
                        int64_t lanes, int64_t depth) {
    constexpr int kVectors = (LANES + kWidth - 1) / kWidth;
    constexpr int kLast = LANES - (kVectors - 1) * kWidth;  // lanes of a strip's last vector
    // A last vector that is longer reaches into the next group's first lanes, which are written after it; only the last
    // group is cut.
    const int64_t groups = groups_of<W>(depth);
    for (int64_t lane = 0; lane < lanes; lane += LANES, out += strip_stride, x += LANES * lane_stride) {
        const int64_t present = smaller(lanes - lane, LANES);
        if (depth_stride == 1) {
            for (int64_t g = 0; g < groups; g += kWidth) {
                const int64_t numbers = depth - g * W::kDepth;
                const int64_t steps = smaller(groups - g, kWidth);
                for (int v = kVectors - 1; v >= 0; --v) {
                    Vector block[kWidth];
                    for (int j = 0; j < kWidth; ++j) {
                        const int64_t from = v * kWidth + j;
                        block[j] =
                            from < present ? W::along(x + from * lane_stride + g * W::kDepth, numbers) : Vector{};
                    }
                    transpose(block);
                    float* to = out + g * LANES + v * kWidth;
                    for (int64_t i = 0; i < steps; ++i) {
                        if (v == kVectors - 1 && kLast < kWidth && g + i + 1 == groups)
                            store_first(to + i * LANES, block[i], kLast);
                        else
                            store(to + i * LANES, block[i]);
                    }
                }
            }
            continue;
        }
        for (int64_t g = 0; g < groups; ++g) {
            const Source* from = x + g * W::kDepth * depth_stride;
            for (int v = 0; v < kVectors; ++v) {
                // Whole vectors where there are lanes enough, even if the last ones belong to the next strip.
                const int64_t n = larger(0, smaller(lanes - lane - v * kWidth, kWidth));
                const Vector words = W::across(from + v * kWidth, depth_stride, n, depth - g * W::kDepth);
                float* to = out + g * LANES + v * kWidth;
                if (v == kVectors - 1 && kLast < kWidth && g + 1 == groups)
                    store_first(to, words, kLast);
                else
                    store(to, words);
            }
        }
    }
}

}  // namespace
