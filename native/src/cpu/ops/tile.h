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
    // Blocks of the depth are summed apart, which keeps long sums accurate.
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) {
        float* row = c + i * c_row;
        store(row, add ? load(row) + left[i] : left[i]);
        store(row + kWidth, add ? load(row + kWidth) + right[i] : right[i]);
    }
}

// With a packed too.
template <typename W>
inline void tile(float* c, int64_t c_row, bool add, const float* a, const float* b, int64_t groups) {
    tile_at<W>(c, c_row, add, a, 1, kTileRows, b, groups);
}

// ---- packing: a strip holds LANES rows of A (kTileRows) or columns of B (kTileColumns).  Its last vector may be longer than
// its lanes; then it reaches into the next group's first lanes, which are written after it, and only the last group is cut.

template <int LANES>
constexpr int kVectorsOf = (LANES + kWidth - 1) / kWidth;

template <int LANES>
inline void store_lanes(float* out, int v, Vector words, bool last_group) {
    constexpr int kLast = LANES - (kVectorsOf<LANES> - 1) * kWidth;
    if (kLast < kWidth && v == kVectorsOf<LANES> - 1 && last_group)
        store_first(out + v * kWidth, words, kLast);
    else
        store(out + v * kWidth, words);
}

// Numbers of a lane are neighbours in memory: blocks of kWidth lanes x kWidth groups are transposed.
template <typename W, int LANES, typename Source>
inline void pack_strip_along(float* out, const Source* x, int64_t lane_stride, int64_t present, int64_t depth) {
    const int64_t groups = groups_of<W>(depth);
    for (int64_t g = 0; g < groups; g += kWidth) {
        const Source* from = x + g * W::kDepth;
        const int64_t numbers = depth - g * W::kDepth;
        // The next strip's rows lie too far apart for the hardware to guess.
        for (int j = 0; j < LANES; ++j) __builtin_prefetch(from + (LANES + j) * lane_stride);
        for (int v = kVectorsOf<LANES> - 1; v >= 0; --v) {
            Vector block[kWidth];
            for (int j = 0; j < kWidth; ++j) {
                const int lane = v * kWidth + j;
                block[j] = lane < LANES && lane < present ? W::along(from + lane * lane_stride, numbers) : Vector{};
            }
            transpose(block);
            float* to = out + g * LANES;
            if (g + kWidth < groups) {
                for (int i = 0; i < kWidth; ++i) store_lanes<LANES>(to + i * LANES, v, block[i], false);
            } else {
                for (int64_t i = 0; g + i < groups; ++i)
                    store_lanes<LANES>(to + i * LANES, v, block[i], g + i + 1 == groups);
            }
        }
    }
}

// Lanes are neighbours in memory: whole vectors where `lanes` are enough, even if the last ones belong to the next strip.
template <typename W, int LANES, typename Source>
inline void pack_strip_across(float* out, const Source* x, int64_t depth_stride, int64_t lanes, int64_t depth) {
    const int64_t groups = groups_of<W>(depth);
    for (int64_t g = 0; g < groups; ++g, out += LANES, x += W::kDepth * depth_stride) {
        __builtin_prefetch(x + 16 * depth_stride);
        for (int v = 0; v < kVectorsOf<LANES>; ++v) {
            const int64_t n = larger(0, smaller(lanes - v * kWidth, kWidth));
            store_lanes<LANES>(out, v, W::across(x + v * kWidth, depth_stride, n, depth - g * W::kDepth),
                               g + 1 == groups);
        }
    }
}

// Packs `lanes` lanes into strips that lie strip_stride words apart; what is missing in the last strip and group is 0.
// x(lane, depth) = x[lane * lane_stride + depth * depth_stride], and one of the strides is 1.
template <typename W, int LANES, typename Source>
inline void pack_strips(float* out, int64_t strip_stride, const Source* x, int64_t lane_stride, int64_t depth_stride,
                        int64_t lanes, int64_t depth) {
    for (int64_t lane = 0; lane < lanes; lane += LANES, out += strip_stride, x += LANES * lane_stride) {
        if (depth_stride == 1)
            pack_strip_along<W, LANES>(out, x, lane_stride, smaller(lanes - lane, LANES), depth);
        else
            pack_strip_across<W, LANES>(out, x, depth_stride, lanes - lane, depth);
    }
}

}  // namespace
