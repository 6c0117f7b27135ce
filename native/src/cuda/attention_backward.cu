// The gradient of causal attention on the tensor cores, in two kernels that compute the probabilities again from L:
//   p_ij = exp(s_ij - L_i);  D_i = dout_i . out_i;  ds_ij = p_ij (dout_i . v_j - D_i) / sqrt(head_dim)
//   dq_i = sum_j ds_ij k_j          a block for some queries, over the keys that they see; leaves D for the other kernel
//   dv_j = sum_i p_ij dout_i;  dk_j = sum_i ds_ij q_i      a block for some keys, over the queries that see them
// Scores are computed twice, so that each sum has one owner and one order: no atomics, the same bits every time.
#include "cuda/attention_general.h"
#include "cuda/attention_tiles.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

// A warp's rows: 32, so that what it reads from shared memory serves twice, where the sums leave room for that.
template <int kDim>
constexpr int kBlocks = kDim <= 64 ? 2 : 1;
template <int kDim>
constexpr int kOwnRows = 16 * kBlocks<kDim>;
template <int kDim>
constexpr int kBlockRows = kOwnRows<kDim> * kTileWarps;
constexpr int kWalked = 64;    // rows of the tiles that a block walks over
constexpr int kTogether = 32;  // of them, whose scores a warp holds at once

// Beside the tiles, the kernel for keys keeps L and D of two tiles of queries.
template <int kDim>
constexpr size_t kBackwardBytes =
    sizeof(Bf16) * kDim * (2 * kBlockRows<kDim> + 4 * kWalked) + sizeof(float) * 4 * kWalked;

// --- dq

// D of the rows of a warp, from operands of dout and the tile of out: lane 4 g + t gets that of rows 8 h + g of its blocks m.
template <int kDim>
__device__ __forceinline__ void row_dots(float (&dots)[kBlocks<kDim>][2], const HeldRows<kDim, kBlocks<kDim>>& dout,
                                         const Bf16* out, unsigned row) {
    const auto low = [](unsigned pair) { return __uint_as_float(pair << 16); };
    const auto high = [](unsigned pair) { return __uint_as_float(pair & 0xffff0000u); };
#pragma unroll
    for (int m = 0; m < kBlocks<kDim>; ++m) {
        dots[m][0] = dots[m][1] = 0.0f;
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step) {
            unsigned other[4];
            ldmatrix_x4(other, out + rows_first<kDim>(row + 16 * m, 2 * step));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned own = dout.operands[step][m][i];
                dots[m][i % 2] = fmaf(low(own), low(other[i]), fmaf(high(own), high(other[i]), dots[m][i % 2]));
            }
        }
        dots[m][0] = row_sum(dots[m][0]);
        dots[m][1] = row_sum(dots[m][1]);
    }
}

template <int kDim>
__global__ void __launch_bounds__(kTileThreads, 2)
    query_kernel(AttentionShape shape, Bf16* __restrict__ dqkv, float* __restrict__ deltas,
                 const Bf16* __restrict__ dout, const Bf16* __restrict__ qkv, const Bf16* __restrict__ out,
                 const float* __restrict__ log_sums) {
    constexpr int kM = kBlocks<kDim>, kRows = kBlockRows<kDim>;
    static_assert(kRows <= 2 * kWalked, "the tile of out fits in a stage");
    MG_DYN_SHARED(Bf16, room);
    Bf16* const query_tile = room;
    Bf16* const dout_tile = room + kRows * kDim;
    Bf16* const stages = room + 2 * kRows * kDim;  // twice: keys, values
    constexpr int kStage = 2 * kWalked * kDim;
    const int tiles = static_cast<int>(ceil_div(shape.T, kRows));
    const TileOfHead place = tile_of_block(shape, tiles);
    const HeadOffsets offsets = offsets_of(shape, place.head);
    const int first = (tiles - 1 - place.rank) * kRows;
    const int stride = 3 * shape.C, left = shape.T - first;
    const Bf16* const q = qkv + offsets.qkv + static_cast<int64_t>(first) * stride;
    const int64_t at = offsets.out + static_cast<int64_t>(first) * shape.C;
    const int seen = first + kRows < shape.T ? first + kRows : shape.T;
    const int key_tiles = static_cast<int>(ceil_div(seen, kWalked));
    const auto load_keys = [&](int tile) {
        Bf16* const stage = stages + tile % 2 * kStage;
        const Bf16* const from = qkv + offsets.qkv + shape.C + static_cast<int64_t>(tile) * kWalked * stride;
        const int rows = shape.T - tile * kWalked;
        load_tile<kDim, kWalked>(stage, from, stride, rows, shape.head_dim, shape.whole_pieces);
        load_tile<kDim, kWalked>(stage + kWalked * kDim, from + shape.C, stride, rows, shape.head_dim,
                                 shape.whole_pieces);
        cp_async_commit();
    };
    load_tile<kDim, kRows>(query_tile, q, stride, left, shape.head_dim, shape.whole_pieces);
    load_tile<kDim, kRows>(dout_tile, dout + at, shape.C, left, shape.head_dim, shape.whole_pieces);
    load_tile<kDim, kRows>(stages + kStage, out + at, shape.C, left, shape.head_dim, shape.whole_pieces);
    load_keys(0);

    const int lane = static_cast<int>(lane_of_thread());
    const int own = static_cast<int>(threadIdx.x) / kWarp * kOwnRows<kDim>, row = first + own;
    const float factor = shape.scale * kLog2E;
    float log2_sums[kM][2], D[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int r = row + 16 * m + 8 * h + lane / 4;
            log2_sums[m][h] = r < shape.T ? log_sums[offsets.row + r] * kLog2E : 0.0f;
        }
    HeldRows<kDim, kM> queries, douts;
    cp_async_wait<0>();
    __syncthreads();
    queries.load(query_tile, own);
    douts.load(dout_tile, own);
    row_dots<kDim>(D, douts, stages + kStage, own);
    if (lane % 4 == 0) {
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int r = row + 16 * m + 8 * h + lane / 4;
                if (r < shape.T) deltas[offsets.row + r] = D[m][h];
            }
    }
    Sums<kM, kDim> sums;
    clear<kM, kDim>(sums);
    for (int tile = 0; tile < key_tiles; ++tile) {
        cp_async_wait<0>();
        __syncthreads();  // this tile is here, and no warp still reads what was where the next one goes
        if (tile + 1 < key_tiles) load_keys(tile + 1);
        const Bf16* const keys = stages + tile % 2 * kStage;
#pragma unroll 1
        for (int from = 0; from < kWalked; from += kTogether) {
            const int key = tile * kWalked + from;
            if (key >= row + kOwnRows<kDim> || row >= shape.T) break;  // the rest is ahead of this warp's queries
            Sums<kM, kTogether> scores, gradients;
            dot_rows<kDim, kM, kTogether>(scores, queries, keys + from * kDim);
            dot_rows<kDim, kM, kTogether>(gradients, douts, keys + (kWalked + from) * kDim);
            const bool masked = key + kTogether - 1 > row;
            const int ahead = key + lane % 4 * 2 - row - lane / 4;
#pragma unroll
            for (int m = 0; m < kM; ++m)
#pragma unroll
                for (int n = 0; n < kTogether / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int h = i / 2;
                        float p = exp2_approx(fmaf(scores[m][n][i], factor, -log2_sums[m][h]));
                        if (masked && ahead + 8 * n + i % 2 > 16 * m + 8 * h) p = 0.0f;
                        gradients[m][n][i] = p * (gradients[m][n][i] - D[m][h]);
                    }
            unsigned weights[kM][kTogether / 16][4];
            pack_weights<kM, kTogether>(weights, gradients);
            add_rows<kDim, kM, kTogether>(sums, weights, keys + from * kDim);
        }
    }
    if (row >= shape.T) return;
    float factors[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) factors[m][0] = factors[m][1] = shape.scale;
    store_rows<kDim, kM>(dqkv + offsets.qkv + static_cast<int64_t>(row) * stride, stride, query_tile, own, sums,
                         factors, shape.T - row, shape.head_dim, shape.whole_pieces);
}

// --- dk and dv

// Where both sums take all registers, keys and values are read from their tiles again for each product.
template <int kDim>
using Own = std::conditional_t<(kDim <= 32), HeldRows<kDim, kBlocks<kDim>>, SharedRows<kDim, kBlocks<kDim>>>;

// Scores are computed as keys x queries: as left operands of the sums over the queries they are needed so.
template <int kDim>
__global__ void __launch_bounds__(kTileThreads, 2)
    key_kernel(AttentionShape shape, Bf16* __restrict__ dqkv, const float* __restrict__ deltas,
               const Bf16* __restrict__ dout, const Bf16* __restrict__ qkv, const float* __restrict__ log_sums) {
    constexpr int kM = kBlocks<kDim>, kRows = kBlockRows<kDim>;
    static_assert(kRows % kWalked == 0, "the first queries that see a block's keys start a tile");
    MG_DYN_SHARED(Bf16, room);
    Bf16* const key_tile = room;
    Bf16* const value_tile = room + kRows * kDim;
    Bf16* const stages = room + 2 * kRows * kDim;  // twice: queries, dout
    constexpr int kStage = 2 * kWalked * kDim;
    float* const row_stages = reinterpret_cast<float*>(stages + 2 * kStage);  // twice: L / log(2), D
    const TileOfHead place = tile_of_block(shape, static_cast<int>(ceil_div(shape.T, kRows)));
    const HeadOffsets offsets = offsets_of(shape, place.head);
    const int first = place.rank * kRows;  // the first keys are seen by the most queries
    const int stride = 3 * shape.C, left = shape.T - first;
    const Bf16* const k = qkv + offsets.qkv + shape.C + static_cast<int64_t>(first) * stride;
    const int first_tile = first / kWalked, end_tile = static_cast<int>(ceil_div(shape.T, kWalked));
    const auto load_queries = [&](int tile) {
        Bf16* const stage = stages + tile % 2 * kStage;
        const int64_t query = static_cast<int64_t>(tile) * kWalked;
        const int rows = shape.T - tile * kWalked;
        load_tile<kDim, kWalked>(stage, qkv + offsets.qkv + query * stride, stride, rows, shape.head_dim,
                                 shape.whole_pieces);
        load_tile<kDim, kWalked>(stage + kWalked * kDim, dout + offsets.out + query * shape.C, shape.C, rows,
                                 shape.head_dim, shape.whole_pieces);
        cp_async_commit();
    };
    // L and D of a tile's queries pass through a register of each thread: there is no asynchronous copy for odd addresses.
    const int thread = static_cast<int>(threadIdx.x);
    const float* const row_numbers = (thread < kWalked ? log_sums : deltas) + offsets.row + thread % kWalked;
    const auto read_row = [&](int tile) {
        if (tile * kWalked + thread % kWalked >= shape.T) return 0.0f;
        return row_numbers[tile * kWalked] * (thread < kWalked ? kLog2E : 1.0f);
    };
    static_assert(2 * kWalked == kTileThreads, "one number a thread");
    load_tile<kDim, kRows>(key_tile, k, stride, left, shape.head_dim, shape.whole_pieces);
    load_tile<kDim, kRows>(value_tile, k + shape.C, stride, left, shape.head_dim, shape.whole_pieces);
    load_queries(first_tile);
    row_stages[first_tile % 2 * kTileThreads + thread] = read_row(first_tile);

    const int lane = static_cast<int>(lane_of_thread());
    const int own = thread / kWarp * kOwnRows<kDim>, row = first + own;
    const float factor = shape.scale * kLog2E;
    cp_async_wait<0>();
    __syncthreads();
    Own<kDim> keys, values;
    keys.load(key_tile, own);
    values.load(value_tile, own);
    Sums<kM, kDim> dk, dv;
    clear<kM, kDim>(dk);
    clear<kM, kDim>(dv);
    for (int tile = first_tile; tile < end_tile; ++tile) {
        cp_async_wait<0>();
        __syncthreads();  // this tile is here, and no warp still reads the one before it
        const bool more = tile + 1 < end_tile;
        if (more) load_queries(tile + 1);
        const float next_row = more ? read_row(tile + 1) : 0.0f;
        const Bf16* const queries = stages + tile % 2 * kStage;
        const float* const rows = row_stages + tile % 2 * kTileThreads;
#pragma unroll 1
        for (int from = 0; from < kWalked && row < shape.T; from += kTogether) {
            const int query = tile * kWalked + from;
            if (query + kTogether <= row) continue;  // they come before all keys of this warp
            Sums<kM, kTogether> scores, gradients;
            unsigned weights[kM][kTogether / 16][4];
            dot_rows<kDim, kM, kTogether>(scores, keys, queries + from * kDim);
            const bool masked = query < row + kOwnRows<kDim> - 1;
            const int behind = query + lane % 4 * 2 - row - lane / 4;
#pragma unroll
            for (int n = 0; n < kTogether / 8; ++n) {
                const float* const at = rows + from + 8 * n + lane % 4 * 2;
                const Piece<float, 2> log2_sums = *reinterpret_cast<const Piece<float, 2>*>(at);
#pragma unroll
                for (int m = 0; m < kM; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float p = exp2_approx(fmaf(scores[m][n][i], factor, -log2_sums.values[i % 2]));
                        if (masked && behind + 8 * n + i % 2 < 16 * m + 8 * (i / 2)) p = 0.0f;
                        scores[m][n][i] = p;
                    }
            }
            pack_weights<kM, kTogether>(weights, scores);
            add_rows<kDim, kM, kTogether>(dv, weights, queries + (kWalked + from) * kDim);
            dot_rows<kDim, kM, kTogether>(gradients, values, queries + (kWalked + from) * kDim);
#pragma unroll
            for (int n = 0; n < kTogether / 8; ++n) {
                const float* const at = rows + kWalked + from + 8 * n + lane % 4 * 2;
                const Piece<float, 2> D = *reinterpret_cast<const Piece<float, 2>*>(at);
#pragma unroll
                for (int m = 0; m < kM; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        gradients[m][n][i] = scores[m][n][i] * (gradients[m][n][i] - D.values[i % 2]);
            }
            pack_weights<kM, kTogether>(weights, gradients);
            add_rows<kDim, kM, kTogether>(dk, weights, queries + from * kDim);
        }
        row_stages[(tile + 1) % 2 * kTileThreads + thread] = next_row;
    }
    if (row >= shape.T) return;
    float factors[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) factors[m][0] = factors[m][1] = 1.0f;
    Bf16* const to = dqkv + offsets.qkv + shape.C + static_cast<int64_t>(row) * stride;
    store_rows<kDim, kM>(to + shape.C, stride, value_tile, own, dv, factors, shape.T - row, shape.head_dim,
                         shape.whole_pieces);
#pragma unroll
    for (int m = 0; m < kM; ++m) factors[m][0] = factors[m][1] = shape.scale;
    store_rows<kDim, kM>(to, stride, key_tile, own, dk, factors, shape.T - row, shape.head_dim, shape.whole_pieces);
}

template <int kDim>
void backward(Stream stream, const AttentionShape& shape, Bf16* dqkv, float* deltas, const Bf16* dout, const Bf16* qkv,
              const Bf16* out, const float* log_sums) {
    const int64_t tiles = ceil_div(shape.T, kBlockRows<kDim>);
    launch_over_tiles(stream, query_kernel<kDim>, tiles, kTileThreads, kBackwardBytes<kDim>, shape, dqkv, deltas, dout,
                      qkv, out, log_sums);
    launch_over_tiles(stream, key_kernel<kDim>, tiles, kTileThreads, kBackwardBytes<kDim>, shape, dqkv, deltas, dout,
                      qkv, log_sums);
}

}  // namespace

size_t attention_backward_scratch_bytes(int64_t B, int64_t T, int64_t NH) {
    return sizeof(float) * static_cast<size_t>(B * NH * T);
}

template <>
void attention_backward<float>(Stream stream, float* dqkv, const float* dout, const float* qkv, const float* out,
                               const float* log_sums, void* scratch, int64_t B, int64_t T, int64_t C, int64_t NH) {
    general_attention_backward(stream, dqkv, static_cast<float*>(scratch), dout, qkv, out, log_sums, B, T, C, NH);
}

template <>
void attention_backward<Bf16>(Stream stream, Bf16* dqkv, const Bf16* dout, const Bf16* qkv, const Bf16* out,
                              const float* log_sums, void* scratch, int64_t B, int64_t T, int64_t C, int64_t NH) {
    float* const deltas = static_cast<float*>(scratch);
    const uintptr_t pointers = address_bits(dqkv) | address_bits(dout) | address_bits(qkv) | address_bits(out);
    const AttentionShape shape = attention_shape(B, T, C, NH, sizeof(Bf16), kPiece, pointers);
    if (shape.head_dim <= 16)
        backward<16>(stream, shape, dqkv, deltas, dout, qkv, out, log_sums);
    else if (shape.head_dim <= 32)
        backward<32>(stream, shape, dqkv, deltas, dout, qkv, out, log_sums);
    else if (shape.head_dim <= 64)
        backward<64>(stream, shape, dqkv, deltas, dout, qkv, out, log_sums);
    else if (shape.head_dim <= 96)
        backward<96>(stream, shape, dqkv, deltas, dout, qkv, out, log_sums);
    else if (shape.head_dim <= 128)
        backward<128>(stream, shape, dqkv, deltas, dout, qkv, out, log_sums);
    else
        general_attention_backward(stream, dqkv, deltas, dout, qkv, out, log_sums, B, T, C, NH);
}

}  // namespace mg::cuda
