// Causal attention in float arithmetic, heads of any width: online softmax over tiles of 64 queries x 64 keys.
//   s_ij = q_i k_j / sqrt(head_dim), j <= i;  L_i = log(sum_j exp(s_ij));  out_i = sum_j exp(s_ij - L_i) v_j
// Heads are cut in parts of 64 numbers.  A block keeps the sums of kParts of them; wider heads take several rounds, in each of which
// the scores are computed again.
#include "cuda/attention_general.h"

#include "cuda/attention_general_tiles.h"

namespace mg::cuda {

namespace {

constexpr size_t kGeneralForwardBytes = sizeof(float) * 4 * kGeneralTile;

// One tile's scores become exp(score - largest so far), and the sums of earlier tiles shrink accordingly.  The product with the
// scale is rounded before the subtraction, there as in the gradient: the largest score's exponential is then exactly 1.
template <int kParts>
__device__ __forceinline__ void softmax_step(OwnSums& scores, OwnSums (&sums)[kParts], float (&most)[kOwn],
                                             float (&total)[kOwn], float scale, int query, int key) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        float largest = most[i];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            scores[i][j] = key + kHalfWarp * j > query + i ? -INFINITY : __fmul_rn(scores[i][j], scale);
            largest = fmaxf(largest, scores[i][j]);
        }
        largest = warp_max<kHalfWarp>(largest);
        const float shrink = expf(most[i] - largest);
        most[i] = largest;
        total[i] *= shrink;
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            scores[i][j] = expf(scores[i][j] - largest);
            total[i] += scores[i][j];
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part)
#pragma unroll
            for (int j = 0; j < kOwn; ++j) sums[part][i][j] *= shrink;
    }
}

template <typename E, int kParts>
__global__ void __launch_bounds__(kGeneralThreads, kParts <= 2 ? 2 : 1)
    general_forward_kernel(AttentionShape shape, E* __restrict__ out, float* __restrict__ log_sums,
                           const E* __restrict__ qkv) {
    MG_DYN_SHARED(float, room);
    float *const query_tile = room, *const key_tile = room + kGeneralTile, *const value_tile = room + 2 * kGeneralTile,
                 *const weights = room + 3 * kGeneralTile;
    const int tiles = static_cast<int>(ceil_div(shape.T, kGeneralRows));
    const TileOfHead place = tile_of_block(shape, tiles);
    const HeadOffsets offsets = offsets_of(shape, place.head);
    const int last = tiles - 1 - place.rank, first = last * kGeneralRows;  // the last queries see the most keys
    const int64_t stride = 3 * static_cast<int64_t>(shape.C);
    const E* const q = qkv + offsets.qkv + first * stride;
    const int all_parts = static_cast<int>(ceil_div(shape.head_dim, kGeneralWidth));
    const int query = first + thread_row();
    for (int round = 0; round < all_parts; round += kParts) {
        float most[kOwn], total[kOwn];
        OwnSums sums[kParts];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            most[i] = -INFINITY;
            total[i] = 0.0f;
        }
#pragma unroll
        for (int part = 0; part < kParts; ++part) clear(sums[part]);
        for (int tile = 0; tile <= last; ++tile) {
            const int key = tile * kGeneralRows, keys = shape.T - key;
            const E* const k = qkv + offsets.qkv + shape.C + key * stride;
            OwnSums scores;
            clear(scores);
            for (int part = 0; part < all_parts; ++part) {
                __syncthreads();  // nobody reads the tiles any more
                if (all_parts > 1 || tile == 0)
                    load_numbers(query_tile, q, stride, shape.T - first, part * kGeneralWidth, shape.head_dim,
                                 shape.whole_pieces);
                load_numbers(key_tile, k, stride, keys, part * kGeneralWidth, shape.head_dim, shape.whole_pieces);
                if (part == 0)
                    load_numbers(value_tile, k + shape.C, stride, keys, round * kGeneralWidth, shape.head_dim,
                                 shape.whole_pieces);
                __syncthreads();
                dot_numbers(scores, query_tile, key_tile, width_of_part(shape.head_dim, part));
            }
            softmax_step<kParts>(scores, sums, most, total, shape.scale, query, key + thread_column());
            keep_weights(weights, scores);
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                if (round + part >= all_parts) break;
                if (part > 0) {
                    __syncthreads();
                    load_numbers(value_tile, k + shape.C, stride, keys, (round + part) * kGeneralWidth, shape.head_dim,
                                 shape.whole_pieces);
                    __syncthreads();
                }
                add_numbers(sums[part], weights, value_tile, keys < kGeneralRows ? keys : kGeneralRows);
            }
        }
        float factors[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const float row_total = warp_sum<kHalfWarp>(total[i]);
            factors[i] = 1.0f / row_total;
            if (round == 0 && thread_column() == 0 && query + i < shape.T)
                log_sums[offsets.row + query + i] = most[i] + logf(row_total);
        }
        E* const to = out + offsets.out + static_cast<int64_t>(first) * shape.C;
#pragma unroll
        for (int part = 0; part < kParts; ++part)
            store_numbers(to, shape.C, sums[part], factors, shape.T - first, (round + part) * kGeneralWidth,
                          shape.head_dim, shape.whole_pieces);
    }
}

template <typename E, int kParts>
void forward(Stream stream, const AttentionShape& shape, E* out, float* log_sums, const E* qkv) {
    launch_over_tiles(stream, general_forward_kernel<E, kParts>, ceil_div(shape.T, kGeneralRows), kGeneralThreads,
                      kGeneralForwardBytes, shape, out, log_sums, qkv);
}

}  // namespace

template <typename E>
void general_attention_forward(Stream stream, E* out, float* log_sums, const E* qkv, int64_t B, int64_t T, int64_t C,
                               int64_t NH) {
    const AttentionShape shape = general_shape(B, T, C, NH, sizeof(E), address_bits(out) | address_bits(qkv));
    if constexpr (sizeof(E) == sizeof(float)) {
        if (shape.head_dim <= kGeneralWidth) return forward<E, 1>(stream, shape, out, log_sums, qkv);
        if (shape.head_dim <= 2 * kGeneralWidth) return forward<E, 2>(stream, shape, out, log_sums, qkv);
    }
    forward<E, 4>(stream, shape, out, log_sums, qkv);
}

template void general_attention_forward(Stream, float*, float*, const float*, int64_t, int64_t, int64_t, int64_t);
template void general_attention_forward(Stream, Bf16*, float*, const Bf16*, int64_t, int64_t, int64_t, int64_t);

}  // namespace mg::cuda
