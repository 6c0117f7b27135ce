// The gradient of causal attention in float arithmetic, heads of any width, in two kernels:
//   p_ij = exp(s_ij - L_i);  D_i = dout_i . out_i;  ds_ij = p_ij (dout_i . v_j - D_i) / sqrt(head_dim)
//   dq_i = sum_j ds_ij k_j          a block for 64 queries, over the keys that they see; leaves D for the other kernel
//   dv_j = sum_i p_ij dout_i;  dk_j = sum_i ds_ij q_i      a block for 64 keys, over the queries that see them
// As in the forward pass, heads are cut in parts of 64 numbers, and those of more than kParts take several rounds.
#include "cuda/attention_general.h"

#include "cuda/attention_general_tiles.h"

namespace mg::cuda {

namespace {

constexpr size_t kGeneralBackwardBytes = sizeof(float) * 5 * kGeneralTile;

template <typename E, int kParts>
__global__ void __launch_bounds__(kGeneralThreads, kParts <= 2 ? 2 : 1)
    general_query_kernel(AttentionShape shape, E* __restrict__ dqkv, float* __restrict__ deltas,
                         const E* __restrict__ dout, const E* __restrict__ qkv, const E* __restrict__ out,
                         const float* __restrict__ log_sums) {
    MG_DYN_SHARED(float, room);
    float *const query_tile = room, *const dout_tile = room + kGeneralTile, *const key_tile = room + 2 * kGeneralTile,
                 *const value_tile = room + 3 * kGeneralTile, *const weights = room + 4 * kGeneralTile;
    const int tiles = static_cast<int>(ceil_div(shape.T, kGeneralRows));
    const TileOfHead place = tile_of_block(shape, tiles);
    const HeadOffsets offsets = offsets_of(shape, place.head);
    const int last = tiles - 1 - place.rank, first = last * kGeneralRows, queries = shape.T - first;
    const int64_t stride = 3 * static_cast<int64_t>(shape.C), at = offsets.out + static_cast<int64_t>(first) * shape.C;
    const int all_parts = static_cast<int>(ceil_div(shape.head_dim, kGeneralWidth));
    const auto fill = [&](float* tile, const E* from, int64_t row_stride, int rows, int part) {
        load_numbers(tile, from, row_stride, rows, part * kGeneralWidth, shape.head_dim, shape.whole_pieces);
    };
    float L[kOwn], D[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const int row = thread_row() + i;
        L[i] = D[i] = 0.0f;
        if (row < queries) {
            L[i] = log_sums[offsets.row + first + row];
            const int64_t number = at + static_cast<int64_t>(row) * shape.C;
            for (int d = thread_column(); d < shape.head_dim; d += kHalfWarp)
                D[i] = fmaf(to_float(dout[number + d]), to_float(out[number + d]), D[i]);
        }
        D[i] = warp_sum<kHalfWarp>(D[i]);
        if (row < queries && thread_column() == 0) deltas[offsets.row + first + row] = D[i];
    }
    float factors[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) factors[i] = shape.scale;
    for (int round = 0; round < all_parts; round += kParts) {
        OwnSums sums[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) clear(sums[part]);
        for (int tile = 0; tile <= last; ++tile) {
            const int key = tile * kGeneralRows, keys = shape.T - key;
            const E* const k = qkv + offsets.qkv + shape.C + key * stride;
            OwnSums scores, gradients;
            clear(scores);
            clear(gradients);
            for (int part = 0; part < all_parts; ++part) {
                __syncthreads();  // nobody reads the tiles any more
                if (all_parts > 1 || tile == 0) {
                    fill(query_tile, qkv + offsets.qkv + first * stride, stride, queries, part);
                    fill(dout_tile, dout + at, shape.C, queries, part);
                }
                fill(key_tile, k, stride, keys, part);
                fill(value_tile, k + shape.C, stride, keys, part);
                __syncthreads();
                const int width = width_of_part(shape.head_dim, part);
                dot_numbers(scores, query_tile, key_tile, width);
                dot_numbers(gradients, dout_tile, value_tile, width);
            }
#pragma unroll
            for (int i = 0; i < kOwn; ++i)
#pragma unroll
                for (int j = 0; j < kOwn; ++j) {
                    const bool seen = key + thread_column() + kHalfWarp * j <= first + thread_row() + i;
                    const float p = seen ? expf(__fmul_rn(scores[i][j], shape.scale) - L[i]) : 0.0f;
                    gradients[i][j] = p * (gradients[i][j] - D[i]);
                }
            keep_weights(weights, gradients);
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                if (round + part >= all_parts) break;
                if (all_parts > 1) {
                    __syncthreads();
                    fill(key_tile, k, stride, keys, round + part);
                    __syncthreads();
                }
                add_numbers(sums[part], weights, key_tile, keys < kGeneralRows ? keys : kGeneralRows);
            }
        }
        E* const to = dqkv + offsets.qkv + first * stride;
#pragma unroll
        for (int part = 0; part < kParts; ++part)
            store_numbers(to, stride, sums[part], factors, queries, (round + part) * kGeneralWidth, shape.head_dim,
                          shape.whole_pieces);
    }
}

// Scores as keys x queries: the sums over the queries want a row of them for each key.
template <typename E, int kParts>
__global__ void __launch_bounds__(kGeneralThreads, kParts == 1 ? 2 : 1)
    general_key_kernel(AttentionShape shape, E* __restrict__ dqkv, const float* __restrict__ deltas,
                       const E* __restrict__ dout, const E* __restrict__ qkv, const float* __restrict__ log_sums) {
    MG_DYN_SHARED(float, room);
    float *const query_tile = room, *const dout_tile = room + kGeneralTile, *const key_tile = room + 2 * kGeneralTile,
                 *const value_tile = room + 3 * kGeneralTile, *const weights = room + 4 * kGeneralTile;
    const int tiles = static_cast<int>(ceil_div(shape.T, kGeneralRows));
    const TileOfHead place = tile_of_block(shape, tiles);
    const HeadOffsets offsets = offsets_of(shape, place.head);
    const int first = place.rank * kGeneralRows, keys = shape.T - first;
    const int64_t stride = 3 * static_cast<int64_t>(shape.C);
    const E* const k = qkv + offsets.qkv + shape.C + first * stride;
    const int all_parts = static_cast<int>(ceil_div(shape.head_dim, kGeneralWidth));
    const auto fill = [&](float* tile, const E* from, int64_t row_stride, int rows, int part) {
        load_numbers(tile, from, row_stride, rows, part * kGeneralWidth, shape.head_dim, shape.whole_pieces);
    };
    for (int round = 0; round < all_parts; round += kParts) {
        OwnSums dk[kParts], dv[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            clear(dk[part]);
            clear(dv[part]);
        }
        for (int tile = place.rank; tile < tiles; ++tile) {
            const int query = tile * kGeneralRows, queries = shape.T - query;
            const int count = queries < kGeneralRows ? queries : kGeneralRows;
            const E* const q = qkv + offsets.qkv + query * stride;
            const E* const dout_rows = dout + offsets.out + static_cast<int64_t>(query) * shape.C;
            OwnSums scores, gradients;
            clear(scores);
            clear(gradients);
            for (int part = 0; part < all_parts; ++part) {
                __syncthreads();  // nobody reads the tiles any more
                if (all_parts > 1 || tile == place.rank) {
                    fill(key_tile, k, stride, keys, part);
                    fill(value_tile, k + shape.C, stride, keys, part);
                }
                fill(query_tile, q, stride, queries, part);
                fill(dout_tile, dout_rows, shape.C, queries, part);
                __syncthreads();
                const int width = width_of_part(shape.head_dim, part);
                dot_numbers(scores, key_tile, query_tile, width);
                dot_numbers(gradients, value_tile, dout_tile, width);
            }
#pragma unroll
            for (int j = 0; j < kOwn; ++j) {
                const int column = thread_column() + kHalfWarp * j;
                const bool exists = column < queries;
                const float L = exists ? log_sums[offsets.row + query + column] : 0.0f;
                const float D = exists ? deltas[offsets.row + query + column] : 0.0f;
#pragma unroll
                for (int i = 0; i < kOwn; ++i) {
                    const bool seen = exists && first + thread_row() + i <= query + column;
                    const float p = seen ? expf(__fmul_rn(scores[i][j], shape.scale) - L) : 0.0f;
                    scores[i][j] = p;
                    gradients[i][j] = p * (gradients[i][j] - D);
                }
            }
            const auto add_parts = [&](OwnSums(&sums)[kParts], float* rows_tile, const E* from, int64_t row_stride) {
#pragma unroll
                for (int part = 0; part < kParts; ++part) {
                    if (round + part >= all_parts) break;
                    if (all_parts > 1) {
                        __syncthreads();
                        fill(rows_tile, from, row_stride, queries, round + part);
                        __syncthreads();
                    }
                    add_numbers(sums[part], weights, rows_tile, count);
                }
            };
            keep_weights(weights, scores);
            add_parts(dv, dout_tile, dout_rows, shape.C);
            keep_weights(weights, gradients);
            add_parts(dk, query_tile, q, stride);
        }
        E* const to = dqkv + offsets.qkv + shape.C + first * stride;
        float scales[kOwn], ones[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            scales[i] = shape.scale;
            ones[i] = 1.0f;
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const int number = (round + part) * kGeneralWidth;
            store_numbers(to, stride, dk[part], scales, keys, number, shape.head_dim, shape.whole_pieces);
            store_numbers(to + shape.C, stride, dv[part], ones, keys, number, shape.head_dim, shape.whole_pieces);
        }
    }
}

template <typename E, int kParts>
void backward(Stream stream, const AttentionShape& shape, E* dqkv, float* deltas, const E* dout, const E* qkv,
              const E* out, const float* log_sums) {
    const int64_t tiles = ceil_div(shape.T, kGeneralRows);
    launch_over_tiles(stream, general_query_kernel<E, kParts>, tiles, kGeneralThreads, kGeneralBackwardBytes, shape,
                      dqkv, deltas, dout, qkv, out, log_sums);
    constexpr int kKeyParts = kParts < 2 ? kParts : 2;  // two sums for each part: no registers for more
    launch_over_tiles(stream, general_key_kernel<E, kKeyParts>, tiles, kGeneralThreads, kGeneralBackwardBytes, shape,
                      dqkv, deltas, dout, qkv, log_sums);
}

}  // namespace

template <typename E>
void general_attention_backward(Stream stream, E* dqkv, float* deltas, const E* dout, const E* qkv, const E* out,
                                const float* log_sums, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const uintptr_t pointers = address_bits(dqkv) | address_bits(dout) | address_bits(qkv) | address_bits(out);
    const AttentionShape shape = general_shape(B, T, C, NH, sizeof(E), pointers);
    if constexpr (sizeof(E) == sizeof(float)) {
        if (shape.head_dim <= kGeneralWidth)
            return backward<E, 1>(stream, shape, dqkv, deltas, dout, qkv, out, log_sums);
        if (shape.head_dim <= 2 * kGeneralWidth)
            return backward<E, 2>(stream, shape, dqkv, deltas, dout, qkv, out, log_sums);
    }
    backward<E, 4>(stream, shape, dqkv, deltas, dout, qkv, out, log_sums);
}

template void general_attention_backward(Stream, float*, float*, const float*, const float*, const float*, const float*,
                                         int64_t, int64_t, int64_t, int64_t);
template void general_attention_backward(Stream, Bf16*, float*, const Bf16*, const Bf16*, const Bf16*, const float*,
                                         int64_t, int64_t, int64_t, int64_t);

}  // namespace mg::cuda
