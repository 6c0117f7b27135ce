// Causal attention (Dao 2023, "FlashAttention-2"): scores exist only as registers of the warps that use them.
//   s_ij = q_i k_j / sqrt(head_dim), j <= i;  L_i = log(sum_j exp(s_ij));  out_i = sum_j exp(s_ij - L_i) v_j
// A block holds 128 queries, 32 a warp, and walks over the keys that they see, 64 at a time.  While one tile of keys and values
// is used, the next is on its way.  32 queries a warp, not 16: each operand that a warp reads from shared memory then serves two
// products of the tensor cores, and reading stays below multiplying.
#include "cuda/attention_general.h"
#include "cuda/attention_tiles.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kBlocks = 2;  // of 16 queries, for a warp
constexpr int kQueries = 16 * kBlocks * kTileWarps;
constexpr int kKeys = 64;

// The queries stay in registers where the sums leave room for them.
template <int kDim>
using Queries = std::conditional_t<(kDim <= 64), HeldRows<kDim, kBlocks>, SharedRows<kDim, kBlocks>>;

// Keys whose scores a warp holds at once.
template <int kDim>
constexpr int kTogether = kDim <= 64 ? kKeys : kKeys / 2;

template <int kDim>
constexpr size_t kForwardBytes = sizeof(Bf16) * kDim * (kQueries + 4 * kKeys);

// A warp's running softmax: the largest score so far and this lane's part of the sum, for rows 8 h + g of its blocks m.
struct Softmax {
    float most[kBlocks][2], total[kBlocks][2];
};

// Scores become exp(score - largest so far); sums of earlier keys shrink to the new largest.  `factor` is scale * log2(e): the
// exponentials are powers of two.  key - query of this lane's first score is `ahead`; keys ahead of a query are masked.
template <int kDim, bool kMasked>
__device__ __forceinline__ void softmax_step(Sums<kBlocks, kTogether<kDim>>& scores, Sums<kBlocks, kDim>& sums,
                                             Softmax& state, float factor, int ahead) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = state.most[m][h];
#pragma unroll
            for (int n = 0; n < kTogether<kDim> / 8; ++n)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float& score = scores[m][n][2 * h + j];
                    if (kMasked && ahead + 8 * n + j > 16 * m + 8 * h) score = -INFINITY;
                    most = fmaxf(most, score);
                }
            most = row_max(most);
            const float shrink = exp2_approx((state.most[m][h] - most) * factor), shift = most * factor;
            state.most[m][h] = most;
            float total = state.total[m][h] * shrink;
#pragma unroll
            for (int n = 0; n < kTogether<kDim> / 8; ++n)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float& score = scores[m][n][2 * h + j];
                    score = exp2_approx(fmaf(score, factor, -shift));
                    total += score;
                }
            state.total[m][h] = total;
#pragma unroll
            for (int n = 0; n < kDim / 8; ++n) {
                sums[m][n][2 * h] *= shrink;
                sums[m][n][2 * h + 1] *= shrink;
            }
        }
}

template <int kDim>
__global__ void __launch_bounds__(kTileThreads, 2)
    forward_kernel(AttentionShape shape, Bf16* __restrict__ out, float* __restrict__ log_sums,
                   const Bf16* __restrict__ qkv) {
    MG_DYN_SHARED(Bf16, room);
    Bf16* const query_tile = room;
    Bf16* const stages = room + kQueries * kDim;  // twice: keys, values
    const int tiles = static_cast<int>(ceil_div(shape.T, kQueries));
    const TileOfHead place = tile_of_block(shape, tiles);
    const HeadOffsets offsets = offsets_of(shape, place.head);
    const int first = (tiles - 1 - place.rank) * kQueries;  // the last queries see the most keys
    const int stride = 3 * shape.C;
    const Bf16* const q = qkv + offsets.qkv + static_cast<int64_t>(first) * stride;
    const Bf16* const k = qkv + offsets.qkv + shape.C;
    const int seen = first + kQueries < shape.T ? first + kQueries : shape.T;
    const int key_tiles = static_cast<int>(ceil_div(seen, kKeys));
    const auto load_keys = [&](int tile) {
        Bf16* const stage = stages + tile % 2 * (2 * kKeys * kDim);
        const Bf16* const from = k + static_cast<int64_t>(tile) * kKeys * stride;
        const int left = shape.T - tile * kKeys;
        load_tile<kDim, kKeys>(stage, from, stride, left, shape.head_dim, shape.whole_pieces);
        load_tile<kDim, kKeys>(stage + kKeys * kDim, from + shape.C, stride, left, shape.head_dim, shape.whole_pieces);
        cp_async_commit();
    };
    load_tile<kDim, kQueries>(query_tile, q, stride, shape.T - first, shape.head_dim, shape.whole_pieces);
    load_keys(0);

    const int lane = static_cast<int>(lane_of_thread());
    const int own = static_cast<int>(threadIdx.x) / kWarp * 16 * kBlocks;  // the warp's first row of the tile
    const int row = first + own;
    const float factor = shape.scale * kLog2E;
    cp_async_wait<0>();
    __syncthreads();
    Queries<kDim> queries;
    queries.load(query_tile, own);
    Sums<kBlocks, kDim> sums;
    clear<kBlocks, kDim>(sums);
    Softmax state;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            state.most[m][h] = -INFINITY;
            state.total[m][h] = 0.0f;
        }
    for (int tile = 0; tile < key_tiles; ++tile) {
        cp_async_wait<0>();
        __syncthreads();  // this tile is here, and no warp still reads the one before it
        if (tile + 1 < key_tiles) load_keys(tile + 1);
        const Bf16* const keys = stages + tile % 2 * (2 * kKeys * kDim);
#pragma unroll 1
        for (int from = 0; from < kKeys; from += kTogether<kDim>) {
            const int key = tile * kKeys + from;
            if (key >= row + 16 * kBlocks || row >= shape.T) break;  // the rest is ahead of this warp's queries
            Sums<kBlocks, kTogether<kDim>> scores;
            dot_rows<kDim, kBlocks, kTogether<kDim>>(scores, queries, keys + from * kDim);
            const int ahead = key + lane % 4 * 2 - row - lane / 4;
            if (key + kTogether<kDim> - 1 > row)
                softmax_step<kDim, true>(scores, sums, state, factor, ahead);
            else
                softmax_step<kDim, false>(scores, sums, state, factor, ahead);
            unsigned weights[kBlocks][kTogether<kDim> / 16][4];
            pack_weights<kBlocks, kTogether<kDim>>(weights, scores);
            add_rows<kDim, kBlocks, kTogether<kDim>>(sums, weights, keys + (kKeys + from) * kDim);
        }
    }
    if (row >= shape.T) return;
    float factors[kBlocks][2];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float total = row_sum(state.total[m][h]);
            const int r = row + 16 * m + 8 * h + lane / 4;
            factors[m][h] = 1.0f / total;
            if (lane % 4 == 0 && r < shape.T) log_sums[offsets.row + r] = state.most[m][h] * shape.scale + logf(total);
        }
    store_rows<kDim, kBlocks>(out + offsets.out + static_cast<int64_t>(row) * shape.C, shape.C, query_tile, own, sums,
                              factors, shape.T - row, shape.head_dim, shape.whole_pieces);
}

template <int kDim>
void forward(Stream stream, const AttentionShape& shape, Bf16* out, float* log_sums, const Bf16* qkv) {
    launch_over_tiles(stream, forward_kernel<kDim>, ceil_div(shape.T, kQueries), kTileThreads, kForwardBytes<kDim>,
                      shape, out, log_sums, qkv);
}

}  // namespace

template <>
void attention_forward<float>(Stream stream, float* out, float* log_sums, const float* qkv, int64_t B, int64_t T,
                              int64_t C, int64_t NH) {
    general_attention_forward(stream, out, log_sums, qkv, B, T, C, NH);
}

template <>
void attention_forward<Bf16>(Stream stream, Bf16* out, float* log_sums, const Bf16* qkv, int64_t B, int64_t T,
                             int64_t C, int64_t NH) {
    const AttentionShape shape =
        attention_shape(B, T, C, NH, sizeof(Bf16), kPiece, address_bits(out) | address_bits(qkv));
    if (shape.head_dim <= 16)
        forward<16>(stream, shape, out, log_sums, qkv);
    else if (shape.head_dim <= 32)
        forward<32>(stream, shape, out, log_sums, qkv);
    else if (shape.head_dim <= 64)
        forward<64>(stream, shape, out, log_sums, qkv);
    else if (shape.head_dim <= 96)
        forward<96>(stream, shape, out, log_sums, qkv);
    else if (shape.head_dim <= 128)
        forward<128>(stream, shape, out, log_sums, qkv);
    else
        general_attention_forward(stream, out, log_sums, qkv, B, T, C, NH);
}

}  // namespace mg::cuda
