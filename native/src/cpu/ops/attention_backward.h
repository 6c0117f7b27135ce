// Causal attention backward, of one head of one sequence, in blocks of queries x keys:
//   D_i = dout_i . out_i;  p_ij = exp(s_ij - L_i);  dv_j = sum_i p_ij dout_i
//   ds_ij = p_ij (dout_i . v_j - D_i) / sqrt(head_dim);  dq_i = sum_j ds_ij k_j;  dk_j = sum_i ds_ij q_i
// Here a vector holds kWidth keys of one query: dv and dk, two of the three products that follow, want it so.
#pragma once

#include "cpu/ops/attention.h"

namespace {

constexpr int64_t kBackwardQueries = kWidth == 16 ? 56 : 48;
constexpr int64_t kBackwardKeys = kWidth == 16 ? 96 : 48;
static_assert(kBackwardQueries % kTileRows == 0 && kBackwardKeys % kTileColumns == 0, "whole tiles");

struct BackwardScratch {
    float *queries, *keys, *dout, *values;        // over the positions: right and left sides of s and dp
    float *wide_queries, *wide_keys, *wide_dout;  // over the width: right sides of dk, dq, dv
    float *dq, *dk, *dv, *D, *p, *ds, *ds_by_query, *end;
};

template <typename W>
BackwardScratch backward_scratch(float* memory, int64_t T, int64_t head_dim) {
    const int64_t rows = words_over_positions<W, kTileRows>(T, head_dim),
                  columns = words_over_positions<W, kTileColumns>(T, head_dim);
    const int64_t wide = words_over_width<W>(T, head_dim), padded = round_up(head_dim, kTileColumns);
    const int64_t block = round_up(kBackwardKeys, kTileRows) * padded,
                  score = kBackwardQueries * kBackwardKeys + kWidth;
    BackwardScratch s;
    s.queries = memory;
    s.keys = s.queries + rows;
    s.dout = s.keys + columns;
    s.values = s.dout + rows;
    s.wide_queries = s.values + columns;
    s.wide_keys = s.wide_queries + wide;
    s.wide_dout = s.wide_keys + wide;
    s.dq = s.wide_dout + wide;
    s.dk = s.dq + round_up(T, kTileRows) * padded;
    s.dv = s.dk + block;
    s.D = s.dv + block;
    s.p = s.D + round_up(T, kWidth);
    s.ds = s.p + score;
    s.ds_by_query = s.ds + score;
    s.end = s.ds_by_query + (W::kDepth == 2 ? score : 0);
    return s;
}

template <typename E>
size_t attention_scratch_bytes(int64_t T, int64_t head_dim) {
    float* const anywhere = reinterpret_cast<float*>(64);  // only distances count
    const int64_t forward = forward_scratch<Words<E>>(anywhere, T, head_dim).end - anywhere;
    const int64_t backward = backward_scratch<Words<E>>(anywhere, T, head_dim).end - anywhere;
    return static_cast<size_t>(larger(forward, backward)) * sizeof(float);
}

// Scores of a query with a block of keys and dout . v become p and ds, for the allowed keys; 0 for the others.
inline void probabilities_and_gradients(float* p, float* ds, float scale, float log_sum, float D, int64_t allowed) {
    int64_t j = 0;
    for (; j + kWidth <= allowed; j += kWidth) {
        const Vector probability = exponential(load(p + j) * scale - log_sum);
        store(p + j, probability);
        store(ds + j, probability * (load(ds + j) - D) * scale);
    }
    if (j < allowed) {
        const IntVector seen = ~sees(allowed, j);  // the lanes before the first key that isn't allowed
        const Vector probability = seen ? exponential(load(p + j) * scale - log_sum) : Vector{};
        store(p + j, probability);
        store(ds + j, seen ? probability * (load(ds + j) - D) * scale : Vector{});
        j += kWidth;
    }
    for (; j < kBackwardKeys; j += kWidth) {
        store(p + j, Vector{});
        store(ds + j, Vector{});
    }
}

// Rows of float scores as words: pairs of queries for dv and dk, pairs of keys for dq.
template <typename W>
inline void scores_to_pairs(const BackwardScratch& s, int64_t rows) {
    for (int64_t i = 0; i < rows; i += 2) {
        for (int64_t j = 0; j < kBackwardKeys; j += kWidth) {
            float* p = s.p + i * kBackwardKeys + j;
            float* ds = s.ds + i * kBackwardKeys + j;
            const Vector upper = load(ds), lower = load(ds + kBackwardKeys);
            Bf16* by_query = reinterpret_cast<Bf16*>(s.ds_by_query) + i * kBackwardKeys + j;
            store(by_query, upper);
            store(by_query + kBackwardKeys, lower);
            store(s.p + i / 2 * kBackwardKeys + j, W::pairs(load(p), load(p + kBackwardKeys)));
            store(s.ds + i / 2 * kBackwardKeys + j, W::pairs(upper, lower));
        }
    }
}

template <typename E>
inline void write_rows(E* x, int64_t stride, const float* sums, const Head<E>& h, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i)
        for_vectors(h.head_dim, [&](int64_t d, int64_t n) {
            store_some(x + i * stride + d, load_some(sums + i * h.padded_dim + d, n), n);
        });
}

template <typename E>
void attention_backward(E* dqkv, const E* dout, const E* qkv, const E* out, const float* log_sums, int64_t T, int64_t C,
                        int64_t NH, int64_t sequence, int64_t head, void* scratch) {
    using W = Words<E>;
    const Head<E> h = head_of(qkv, T, C, NH, sequence, head);
    const BackwardScratch s = backward_scratch<W>(static_cast<float*>(scratch), T, h.head_dim);
    const int64_t groups = groups_of<W>(h.head_dim), wide = groups_of<W>(T) * kTileColumns;
    const int64_t at = sequence * T * C + head * h.head_dim;
    const E* d = dout + at;
    pack_positions<W, kTileRows>(s.queries, h.q, h.stride, T, h.head_dim);
    pack_positions<W, kTileColumns>(s.keys, h.k, h.stride, T, h.head_dim);
    pack_positions<W, kTileRows>(s.dout, d, C, T, h.head_dim);
    pack_positions<W, kTileColumns>(s.values, h.v, h.stride, T, h.head_dim);
    pack_width<W>(s.wide_queries, h.q, h.stride, T, h.head_dim);
    pack_width<W>(s.wide_keys, h.k, h.stride, T, h.head_dim);
    pack_width<W>(s.wide_dout, d, C, T, h.head_dim);
    for (int64_t i = 0; i < T; ++i) {
        Vector sum = {};
        for_vectors(h.head_dim, [&](int64_t c, int64_t n) {
            sum = load_some(d + i * C + c, n) * load_some(out + at + i * C + c, n) + sum;
        });
        s.D[i] = sum_lanes(sum);
    }

    const float* L = log_sums + (sequence * NH + head) * T;
    E* to = dqkv + sequence * T * h.stride + head * h.head_dim;
    for (int64_t block = 0; block < T; block += kBackwardKeys) {
        const int64_t keys = smaller(T - block, kBackwardKeys);
        const int64_t first_block =
            block / kBackwardQueries * kBackwardQueries;  // earlier queries see none of these keys
        for (int64_t first = first_block; first < T; first += kBackwardQueries) {
            const int64_t queries = smaller(T - first, kBackwardQueries), rows = round_up(queries, kTileRows);
            for (int64_t j = 0; j < keys; j += kTileColumns) {
                for (int64_t i = 0; i < rows; i += kTileRows) {
                    if (block + j >= first + i + kTileRows) continue;
                    const int64_t place = i * kBackwardKeys + j;
                    tile<W>(s.p + place, kBackwardKeys, false, s.queries + (first + i) * groups,
                            s.keys + (block + j) * groups, groups);
                    tile<W>(s.ds + place, kBackwardKeys, false, s.dout + (first + i) * groups,
                            s.values + (block + j) * groups, groups);
                }
            }
            for (int64_t i = 0; i < rows; ++i) {
                const int64_t allowed = i < queries ? larger(0, smaller(keys, first + i + 1 - block)) : 0;
                const int64_t query = smaller(first + i, T - 1);
                probabilities_and_gradients(s.p + i * kBackwardKeys, s.ds + i * kBackwardKeys, h.scale, L[query],
                                            s.D[query], allowed);
            }
            const float* ds_by_query = s.ds;
            if constexpr (W::kDepth == 2) {
                scores_to_pairs<W>(s, rows);
                ds_by_query = s.ds_by_query;
            }
            for (int64_t c = 0; c < h.padded_dim; c += kTileColumns) {
                const int64_t strip = c / kTileColumns * wide;
                for (int64_t j = 0; j < keys; j += kTileRows) {
                    // Queries before key j see neither it nor those after it.
                    const int64_t skipped = smaller(larger(0, block + j - first), queries) / W::kDepth;
                    const int64_t steps = groups_of<W>(queries) - skipped;
                    const int64_t word = skipped * kBackwardKeys + j,
                                  row = strip + (first / W::kDepth + skipped) * kTileColumns;
                    const bool begun = first > first_block;
                    tile_at<W>(s.dv + j * h.padded_dim + c, h.padded_dim, begun, s.p + word, 1, kBackwardKeys,
                               s.wide_dout + row, steps);
                    tile_at<W>(s.dk + j * h.padded_dim + c, h.padded_dim, begun, s.ds + word, 1, kBackwardKeys,
                               s.wide_queries + row, steps);
                }
                for (int64_t i = 0; i < rows; i += kTileRows) {
                    const int64_t seen = smaller(keys, first + i + kTileRows - block);
                    if (seen <= 0) continue;
                    tile_at<W>(s.dq + (first + i) * h.padded_dim + c, h.padded_dim, block > 0,
                               ds_by_query + i * (kBackwardKeys / W::kDepth), kBackwardKeys / W::kDepth, 1,
                               s.wide_keys + strip + block / W::kDepth * kTileColumns, groups_of<W>(seen));
                }
            }
        }
        write_rows(to + C + block * h.stride, h.stride, s.dk, h, keys);
        write_rows(to + 2 * C + block * h.stride, h.stride, s.dv, h, keys);
    }
    write_rows(to, h.stride, s.dq, h, T);
}

}  // namespace
