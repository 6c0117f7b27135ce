// Causal attention of one head of one sequence, in tiles (Dao et al. 2022): the T x T scores exist only as blocks of
// kQueryBlock x kKeyBlock, in cache.  qkv[T, 3C] holds the heads' q, k, v; s_ij = q_i k_j / sqrt(head_dim), j <= i.
//   forward   p_ij = exp(s_ij - L_i), L_i = log(sum_j exp(s_ij)); out_i = sum_j p_ij v_j; saves L
//   backward  D_i = dout_i . out_i;  dv_j = sum_i p_ij dout_i;  ds_ij = p_ij (dout_i . v_j - D_i) / sqrt(head_dim);
//             dq_i = sum_j ds_ij k_j;  dk_j = sum_i ds_ij q_i
// Every product runs on the register tile of tile.h; head_dim is padded with zeros to whole panels.
#pragma once

#include "cpu/ops/math.h"
#include "cpu/ops/tile.h"

namespace {

constexpr int64_t kQueryBlock = kWidth == 16 ? 56 : 48;
constexpr int64_t kKeyBlock = 64;
constexpr int64_t kScoreTile = kQueryBlock * kKeyBlock;

// Where the parts of a head lie, and the padded sizes.
struct Head {
    int64_t T, head_dim, stride;  // stride of a row of qkv
    int64_t padded_T;             // whole key blocks
    int64_t padded_dim;           // whole panels
    float scale;
    const float *q, *k, *v;
};

inline Head head_of(const float* qkv, int64_t T, int64_t C, int64_t NH, int64_t sequence, int64_t head) {
    Head h;
    h.T = T;
    h.head_dim = C / NH;
    h.stride = 3 * C;
    h.padded_T = round_up(T, kKeyBlock);
    h.padded_dim = round_up(h.head_dim, kTileColumns);
    h.scale = 1.0f / sqrtf(static_cast<float>(h.head_dim));
    h.q = qkv + sequence * T * h.stride + head * h.head_dim;
    h.k = h.q + C;
    h.v = h.k + C;
    return h;
}

// Panels over the positions, [padded_T / kTileColumns][head_dim][kTileColumns]: the right side of q k^T and dout v^T.
inline void pack_positions(float* out, const Head& h, const float* x, int64_t stride) {
    pack_panels(out, x, 1, stride, h.head_dim, h.T);
    const int64_t packed = round_up(h.T, kTileColumns) * h.head_dim;
    memset(out + packed, 0, static_cast<size_t>(h.padded_T * h.head_dim - packed) * sizeof(float));
}

// Panels over the head's width, [padded_dim / kTileColumns][padded_T][kTileColumns]: the right side of p v, ds k, ...
inline void pack_width(float* out, const Head& h, const float* x, int64_t stride) {
    for (int64_t column = 0; column < h.padded_dim; column += kTileColumns, out += h.padded_T * kTileColumns) {
        const int64_t columns = h.head_dim - column < kTileColumns ? h.head_dim - column : kTileColumns;
        pack_panels(out, x + column, stride, 1, h.T, columns);
        memset(out + h.T * kTileColumns, 0, static_cast<size_t>((h.padded_T - h.T) * kTileColumns) * sizeof(float));
    }
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline size_t attention_scratch_bytes(int64_t T, int64_t head_dim) {
    const int64_t panels = round_up(T, kKeyBlock) * round_up(head_dim, kTileColumns);
    // backward, the larger: k and v over positions; k, q, dout over the width; dq; dk and dv of a block; two score tiles; D
    return static_cast<size_t>(6 * panels + 2 * kKeyBlock * round_up(head_dim, kTileColumns) + 2 * kScoreTile +
                               round_up(T, kKeyBlock)) *
           sizeof(float);
}

// One row of a block of scores -> exp(scale * s - limit) for the allowed keys, 0 after them.
inline void row_of_probabilities(float* row, float scale, float limit, int64_t allowed) {
    for (int64_t j = 0; j < kKeyBlock; j += kWidth) {
        if (j >= allowed) {
            store(row + j, Vector{});
            continue;
        }
        store(row + j, exponential(load(row + j) * scale - limit));
        for (int64_t i = allowed - j; i < kWidth; ++i) row[j + i] = 0.0f;
    }
}

inline void attention_forward(float* out, float* log_sums, const float* qkv, int64_t T, int64_t C, int64_t NH,
                              int64_t sequence, int64_t head, void* scratch) {
    const Head h = head_of(qkv, T, C, NH, sequence, head);
    float* keys = static_cast<float*>(scratch);
    float* values = keys + h.padded_T * h.padded_dim;
    float* sums = values + h.padded_T * h.padded_dim;
    float* scores = sums + kQueryBlock * h.padded_dim;
    float most[kQueryBlock], total[kQueryBlock];
    pack_positions(keys, h, h.k, h.stride);
    pack_width(values, h, h.v, h.stride);
    for (int64_t first = 0; first < T; first += kQueryBlock) {
        const int64_t queries = smaller(T - first, kQueryBlock);
        for (int64_t block = 0; block < first + queries; block += kKeyBlock) {
            multiply_panels(scores, kKeyBlock, h.q + first * h.stride, h.stride, 1, keys + block * h.head_dim,
                            h.head_dim * kTileColumns, queries, kKeyBlock, h.head_dim, false);
            for (int64_t i = 0; i < queries; ++i) {
                float* row = scores + i * kKeyBlock;
                const int64_t allowed = smaller(first + i + 1 - block, kKeyBlock);  // keys of this block that i may see
                if (allowed <= 0) {
                    memset(row, 0, kKeyBlock * sizeof(float));
                    continue;
                }
                const float block_most = maximum_of(row, allowed) * h.scale;
                // Sums so far are relative to the maximum so far; a larger one rescales them.
                if (block == 0) {
                    most[i] = block_most;
                    total[i] = 0.0f;
                } else if (block_most > most[i]) {
                    const float shrink = expf(most[i] - block_most);
                    most[i] = block_most;
                    total[i] *= shrink;
                    float* sum = sums + i * h.padded_dim;
                    for (int64_t d = 0; d < h.padded_dim; d += kWidth) store(sum + d, load(sum + d) * shrink);
                }
                row_of_probabilities(row, h.scale, most[i], allowed);
                Vector row_total = {};
                for (int64_t j = 0; j < kKeyBlock; j += kWidth) row_total = row_total + load(row + j);
                total[i] += sum_lanes(row_total);
            }
            multiply_panels(sums, h.padded_dim, scores, kKeyBlock, 1, values + block * kTileColumns,
                            h.padded_T * kTileColumns, queries, h.padded_dim, kKeyBlock, block > 0);
        }
        for (int64_t i = 0; i < queries; ++i) {
            float* to = out + (sequence * T + first + i) * C + head * h.head_dim;
            const Vector inverse = broadcast(1.0f / total[i]);
            for_vectors(h.head_dim, [&](int64_t d, int64_t n) {
                store_some(to + d, load(sums + i * h.padded_dim + d) * inverse, n);
            });
            log_sums[(sequence * NH + head) * T + first + i] = most[i] + logf(total[i]);
        }
    }
}

// x[rows, head_dim] = padded sums
inline void write_rows(float* x, int64_t stride, const float* sums, const Head& h, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i)
        memcpy(x + i * stride, sums + i * h.padded_dim, static_cast<size_t>(h.head_dim) * sizeof(float));
}

inline void attention_backward(float* dqkv, const float* dout, const float* qkv, const float* out,
                               const float* log_sums, int64_t T, int64_t C, int64_t NH, int64_t sequence, int64_t head,
                               void* scratch) {
    const Head h = head_of(qkv, T, C, NH, sequence, head);
    const int64_t panels = h.padded_T * h.padded_dim;
    float* keys = static_cast<float*>(scratch);
    float* values = keys + panels;
    float* wide_keys = values + panels;
    float* wide_queries = wide_keys + panels;
    float* wide_dout = wide_queries + panels;
    float* dq = wide_dout + panels;
    float* dk = dq + panels;
    float* dv = dk + kKeyBlock * h.padded_dim;
    float* p = dv + kKeyBlock * h.padded_dim;
    float* ds = p + kScoreTile;
    float* D = ds + kScoreTile;

    const int64_t at = sequence * T * C + head * h.head_dim;
    const float* d = dout + at;
    pack_positions(keys, h, h.k, h.stride);
    pack_positions(values, h, h.v, h.stride);
    pack_width(wide_keys, h, h.k, h.stride);
    pack_width(wide_queries, h, h.q, h.stride);
    pack_width(wide_dout, h, d, C);
    memset(dq, 0, static_cast<size_t>(panels) * sizeof(float));
    for (int64_t i = 0; i < T; ++i) {
        Vector sum = {};
        for_vectors(h.head_dim, [&](int64_t c, int64_t n) {
            sum = load_some(d + i * C + c, n) * load_some(out + at + i * C + c, n) + sum;
        });
        D[i] = sum_lanes(sum);
    }

    const float* L = log_sums + (sequence * NH + head) * T;
    float* to = dqkv + sequence * T * h.stride + head * h.head_dim;
    const int64_t wide = h.padded_T * kTileColumns;  // from one panel over the width to the next
    for (int64_t block = 0; block < T; block += kKeyBlock) {
        const int64_t first_block = block / kQueryBlock * kQueryBlock;  // earlier queries see none of these keys
        for (int64_t first = first_block; first < T; first += kQueryBlock) {
            const int64_t queries = smaller(T - first, kQueryBlock);
            const bool begun = first > first_block;
            multiply_panels(p, kKeyBlock, h.q + first * h.stride, h.stride, 1, keys + block * h.head_dim,
                            h.head_dim * kTileColumns, queries, kKeyBlock, h.head_dim, false);
            multiply_panels(ds, kKeyBlock, d + first * C, C, 1, values + block * h.head_dim, h.head_dim * kTileColumns,
                            queries, kKeyBlock, h.head_dim, false);
            for (int64_t i = 0; i < queries; ++i) {
                float* row = p + i * kKeyBlock;
                row_of_probabilities(row, h.scale, L[first + i], smaller(first + i + 1 - block, kKeyBlock));
                float* ds_row = ds + i * kKeyBlock;
                for (int64_t j = 0; j < kKeyBlock; j += kWidth)
                    store(ds_row + j, load(row + j) * (load(ds_row + j) - D[first + i]) * h.scale);
            }
            multiply_panels(dv, h.padded_dim, p, 1, kKeyBlock, wide_dout + first * kTileColumns, wide, kKeyBlock,
                            h.padded_dim, queries, begun);
            multiply_panels(dk, h.padded_dim, ds, 1, kKeyBlock, wide_queries + first * kTileColumns, wide, kKeyBlock,
                            h.padded_dim, queries, begun);
            multiply_panels(dq + first * h.padded_dim, h.padded_dim, ds, kKeyBlock, 1, wide_keys + block * kTileColumns,
                            wide, queries, h.padded_dim, kKeyBlock, true);
        }
        const int64_t rows = smaller(T - block, kKeyBlock);
        write_rows(to + C + block * h.stride, h.stride, dk, h, rows);
        write_rows(to + 2 * C + block * h.stride, h.stride, dv, h, rows);
    }
    write_rows(to, h.stride, dq, h, T);
}

// Decoding: one query against `length` cached keys and values [length, head_dim].
inline void cached_attention(float* out, const float* keys, const float* values, const float* query, int64_t length,
                             int64_t head_dim, float* scores) {
    const float scale = 1.0f / sqrtf(static_cast<float>(head_dim));
    float most = -INFINITY;
    for (int64_t j = 0; j < length; ++j) {
        Vector sum = {};
        for_vectors(head_dim, [&](int64_t d, int64_t n) {
            sum = load_some(query + d, n) * load_some(keys + j * head_dim + d, n) + sum;
        });
        scores[j] = sum_lanes(sum) * scale;
        most = scores[j] > most ? scores[j] : most;
    }
    float total = 0.0f;
    for_vectors(length, [&](int64_t j, int64_t n) {
        const Vector e = exponential(load_some(scores + j, n) - most);
        store_some(scores + j, e, n);
        for (int64_t i = 0; i < n; ++i) total += e[i];
    });
    const float inverse = 1.0f / total;
    memset(out, 0, static_cast<size_t>(head_dim) * sizeof(float));
    for (int64_t j = 0; j < length; ++j) {
        const Vector weight = broadcast(scores[j] * inverse);
        for_vectors(head_dim, [&](int64_t d, int64_t n) {
            store_some(out + d, weight * load_some(values + j * head_dim + d, n) + load_some(out + d, n), n);
        });
    }
}

}  // namespace
