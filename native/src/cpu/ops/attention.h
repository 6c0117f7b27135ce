// Causal attention of one head of one sequence, in tiles (Dao et al. 2022): the T x T scores exist only as blocks, in
// cache.  qkv[T, 3C] holds the heads' q, k, v; s_ij = q_i k_j / sqrt(head_dim), j <= i.
//   p_ij = exp(s_ij - L_i), L_i = log(sum_j exp(s_ij)); out_i = sum_j p_ij v_j; saves L
// A block of scores is computed as keys x queries: a vector holds one key's score with kWidth queries, so that maxima and
// sums over the keys need nothing from neighbouring lanes, and the block is an operand of the next product as it is.
// Tiles beyond the diagonal are left out.
#pragma once

#include "cpu/ops/math.h"
#include "cpu/ops/tile.h"

namespace {

constexpr int64_t kQueryBlock = 64;
constexpr int64_t kKeyBlock = kWidth == 16 ? 56 : 48;
static_assert(kQueryBlock % kTileColumns == 0 && kKeyBlock % kTileRows == 0 && kKeyBlock % 2 == 0, "whole tiles");

// Where the parts of a head lie in qkv.
template <typename E>
struct Head {
    int64_t head_dim, stride;  // stride of a row of qkv
    int64_t padded_dim;        // whole strips
    float scale;
    const E *q, *k, *v;
};

template <typename E>
inline Head<E> head_of(const E* qkv, int64_t T, int64_t C, int64_t NH, int64_t sequence, int64_t head) {
    Head<E> h;
    h.head_dim = C / NH;
    h.stride = 3 * C;
    h.padded_dim = round_up(h.head_dim, kTileColumns);
    h.scale = 1.0f / sqrtf(static_cast<float>(h.head_dim));
    h.q = qkv + sequence * T * h.stride + head * h.head_dim;
    h.k = h.q + C;
    h.v = h.k + C;
    return h;
}

// Words of x[T, head_dim] packed over the positions (LANES of them a strip), or over the head's width.
template <typename W, int LANES>
int64_t words_over_positions(int64_t T, int64_t head_dim) {
    return round_up(T, LANES) * groups_of<W>(head_dim);
}

template <typename W>
int64_t words_over_width(int64_t T, int64_t head_dim) {
    return groups_of<W>(T) * round_up(head_dim, kTileColumns);
}

template <typename W, int LANES, typename E>
void pack_positions(float* out, const E* x, int64_t stride, int64_t T, int64_t head_dim) {
    pack_strips<W, LANES>(out, groups_of<W>(head_dim) * LANES, x, stride, 1, T, head_dim);
}

template <typename W, typename E>
void pack_width(float* out, const E* x, int64_t stride, int64_t T, int64_t head_dim) {
    pack_strips<W, kTileColumns>(out, groups_of<W>(T) * kTileColumns, x, 1, stride, head_dim, T);
}

// All ones in the lanes i whose query first + i may see that key.
inline IntVector sees(int64_t key, int64_t first) {
    IntVector query;
    for (int i = 0; i < kWidth; ++i) query[i] = i;
    return query >= static_cast<int32_t>(larger(smaller(key - first, kWidth), 0));
}

// One vector of queries meets the keys [0, keys) of a block: scores become probabilities relative to the largest score so
// far, as words of the next product.  Returns what earlier sums shrink by.
template <typename W>
inline Vector softmax_step(float* scores, Vector& most, Vector& total, float scale, int64_t block, int64_t first,
                           int64_t keys) {
    const int64_t unmasked = larger(0, smaller(keys, first + 1 - block));  // keys that every lane sees
    Vector block_most = broadcast(-INFINITY);
    for (int64_t j = 0; j < unmasked; ++j) block_most = maximum(load(scores + j * kQueryBlock), block_most);
    for (int64_t j = unmasked; j < keys; ++j)
        block_most = sees(block + j, first) ? maximum(load(scores + j * kQueryBlock), block_most) : block_most;
    const Vector new_most = maximum(block_most * scale, most);
    const Vector shrink = exponential(most - new_most);
    const auto probability = [&](int64_t j) {
        const Vector p = exponential(load(scores + j * kQueryBlock) * scale - new_most);
        return j < unmasked ? p : sees(block + j, first) ? p : Vector{};
    };
    Vector sum = {};
    for (int64_t j = 0; j < keys; j += W::kDepth) {
        Vector p = probability(j);
        sum = sum + p;
        if constexpr (W::kDepth == 2) {
            const Vector next = probability(j + 1);
            sum = sum + next;
            p = W::pairs(p, next);
        }
        store(scores + j / W::kDepth * kQueryBlock, p);
    }
    most = new_most;
    total = total * shrink + sum;
    return shrink;
}

// What a forward pass over one head needs, laid out in scratch memory.
struct ForwardScratch {
    float *keys, *queries, *values, *sums, *scores, *end;
};

template <typename W>
ForwardScratch forward_scratch(float* memory, int64_t T, int64_t head_dim) {
    ForwardScratch s;
    s.keys = memory;
    s.queries = s.keys + words_over_positions<W, kTileRows>(T, head_dim);
    s.values = s.queries + words_over_positions<W, kTileColumns>(T, head_dim);
    s.sums = s.values + words_over_width<W>(T, head_dim);
    s.scores = s.sums + round_up(kQueryBlock, kTileRows) * round_up(head_dim, kTileColumns);
    s.end = s.scores + kKeyBlock * kQueryBlock + kWidth;  // the last tile's rows reach past the last queries
    return s;
}

template <typename E>
void attention_forward(E* out, float* log_sums, const E* qkv, int64_t T, int64_t C, int64_t NH, int64_t sequence,
                       int64_t head, void* scratch) {
    using W = Words<E>;
    const Head<E> h = head_of(qkv, T, C, NH, sequence, head);
    const ForwardScratch s = forward_scratch<W>(static_cast<float*>(scratch), T, h.head_dim);
    const int64_t groups = groups_of<W>(h.head_dim), value_strip = groups_of<W>(T) * kTileColumns;
    pack_positions<W, kTileRows>(s.keys, h.k, h.stride, T, h.head_dim);
    pack_positions<W, kTileColumns>(s.queries, h.q, h.stride, T, h.head_dim);
    pack_width<W>(s.values, h.v, h.stride, T, h.head_dim);
    for (int64_t first = 0; first < T; first += kQueryBlock) {
        const int64_t queries = smaller(T - first, kQueryBlock);
        Vector most[kQueryBlock / kWidth], total[kQueryBlock / kWidth];
        for (int64_t v = 0; v < kQueryBlock / kWidth; ++v) {
            most[v] = broadcast(-INFINITY);
            total[v] = Vector{};
        }
        for (int64_t block = 0; block < first + queries; block += kKeyBlock) {
            // Keys of this block that the `count` queries from i on see, and no more than a tile's rows beyond.
            const auto keys_of = [&](int64_t i, int64_t count) {
                return larger(0, smaller(smaller(kKeyBlock, round_up(T - block, W::kDepth)),
                                         first + i + count + kTileRows - block));
            };
            for (int64_t i = 0; i < queries; i += kTileColumns)
                for (int64_t j = 0; j < keys_of(i, kTileColumns); j += kTileRows)
                    tile<W>(s.scores + j * kQueryBlock + i, kQueryBlock, false, s.keys + (block + j) * groups,
                            s.queries + (first + i) * groups, groups);
            for (int64_t i = 0; i < queries; i += kWidth) {
                Vector& lane_most = most[i / kWidth];
                const Vector shrink = softmax_step<W>(s.scores + i, lane_most, total[i / kWidth], h.scale, block,
                                                      first + i, keys_of(i, kWidth));
                for (int64_t lane = 0; block > 0 && lane < kWidth; ++lane) {
                    if (shrink[lane] == 1.0f) continue;
                    float* sum = s.sums + (i + lane) * h.padded_dim;
                    for (int64_t d = 0; d < h.padded_dim; d += kWidth) store(sum + d, load(sum + d) * shrink[lane]);
                }
            }
            for (int64_t i = 0; i < queries; i += kTileRows) {
                const int64_t keys = keys_of(i, 0);
                if (keys == 0) continue;
                for (int64_t d = 0; d < h.padded_dim; d += kTileColumns)
                    tile_at<W>(s.sums + i * h.padded_dim + d, h.padded_dim, block > 0, s.scores + i, 1, kQueryBlock,
                               s.values + d / kTileColumns * value_strip + block / W::kDepth * kTileColumns,
                               groups_of<W>(keys));
            }
        }
        for (int64_t i = 0; i < queries; ++i) {
            const float row_total = total[i / kWidth][i % kWidth];
            E* to = out + (sequence * T + first + i) * C + head * h.head_dim;
            const float inverse = 1.0f / row_total;
            for_vectors(h.head_dim, [&](int64_t d, int64_t n) {
                store_some(to + d, load_some(s.sums + i * h.padded_dim + d, n) * inverse, n);
            });
            log_sums[(sequence * NH + head) * T + first + i] = most[i / kWidth][i % kWidth] + logf(row_total);
        }
    }
}

}  // namespace
