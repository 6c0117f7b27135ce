// Token and position embedding.  Bound by memory: forward moves 12 bytes a number (two rows of the tables, one out); backward
// reads the gradients twice, once by token and once by position (4 bytes each), and both tables' rows twice.
//   forward   out[row] = wte[tokens[row]] + wpe[position of row]
//   backward  dwte[tokens[row]] += dout[row]; dwpe[row % T] += dout[row]
// A sum has one owner, so it has one order and takes no atomics: a row of dwpe belongs to the threads of its columns, a row of
// dwte to the block that finds a row of dout to be the first with its token.
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kForwardWarps = 8, kPositionThreads = 256;
constexpr int kTokenWarps = 8, kTokenThreads = kTokenWarps * kWarp;
constexpr int kAtOnce = 8;      // tokens that a thread looks at together
constexpr int kNearRounds = 8;  // of a warp, so 2048 rows
constexpr int64_t kMostBlocks = 132 * 16;

template <int kWidth>
__device__ __forceinline__ void add_to(float (&sums)[kWidth], const float (&values)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += values[i];
}

// A warp a row.
template <int kWidth>
__global__ void embedding_forward_kernel(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                                         const float* wpe, int64_t N, int64_t T, int64_t C) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int64_t warps = static_cast<int64_t>(gridDim.x) * kForwardWarps;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * kForwardWarps + warp; row < N; row += warps) {
        const float* token = wte + tokens[row] * C;
        const float* position = wpe + (positions != nullptr ? positions[row] : row % T) * C;
#pragma unroll 4
        for (int64_t c = lane * kWidth; c < C; c += kWarp * kWidth) {
            float sum[kWidth], other[kWidth];
            load(sum, token + c);
            load(other, position + c);
            add_to(sum, other);
            store(out + row * C + c, sum);
        }
    }
}

// The columns of one piece of a gradient's row that belong to a lane; 0 past the last column.
template <int kWidth, int kPieces>
__device__ __forceinline__ void load_row(float (&values)[kPieces][kWidth], const float* row, int64_t column,
                                         int64_t C) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
        const int64_t c = column + p * kWarp * kWidth;
        if (c < C) {
            load(values[p], row + c);
        } else {
#pragma unroll
            for (int i = 0; i < kWidth; ++i) values[p][i] = 0.0f;
        }
    }
}

// Whether `token` is among kAtOnce rows that begin at `begin`, in steps, and lie before `end`.
__device__ __forceinline__ bool is_among(int32_t token, const int32_t* tokens, int64_t begin, int64_t end,
                                         int64_t step) {
    bool seen = false;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
        const int64_t row = begin + i * step;
        if (row >= 0 && row < end) seen = seen || tokens[row] == token;
    }
    return seen;
}

// dwte[token] += the rows from `first` on that have the token.  Each warp adds up, in ascending order, what it finds in its
// share of the rows; then the warps' sums are added in their order.
template <int kWidth, int kPieces>
__device__ __forceinline__ void add_rows_of(int32_t token, float* room, float* dwte, const float* dout,
                                            const int32_t* tokens, int64_t first, int64_t N, int64_t C) {
    constexpr int kPieceColumns = kWarp * kWidth;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    const int64_t share = ceil_div(N - first, kTokenThreads) * kWarp;  // whole warps of rows
    const int64_t begin = first + warp * share, end = begin + share < N ? begin + share : N;
    for (int64_t column = 0; column < C; column += kPieces * kPieceColumns) {
        const int64_t own = column + lane * kWidth;
        float sums[kPieces][kWidth] = {};
        for (int64_t base = begin; base < end; base += kWarp * kAtOnce) {
            // Most tokens are others: a quick look, and where one is found a second that is exact.
            if (!__any_sync(kAllLanes, is_among(token, tokens, base + lane, end, kWarp))) continue;
#pragma unroll 1
            for (int64_t at = base; at < end && at < base + kAtOnce * kWarp; at += kWarp) {
                unsigned rows = __ballot_sync(kAllLanes, at + lane < end && tokens[at + lane] == token);
                const float* from = dout + at * C;
#pragma unroll 1
                while (rows != 0) {  // two at a time: their loads are under way together
                    float one[kPieces][kWidth], two[kPieces][kWidth];
                    load_row(one, from + (__ffs(static_cast<int>(rows)) - 1) * C, own, C);
                    rows &= rows - 1;
                    const bool has_two = rows != 0;
                    if (has_two) load_row(two, from + (__ffs(static_cast<int>(rows)) - 1) * C, own, C);
                    rows &= rows - 1;
#pragma unroll
                    for (int p = 0; p < kPieces; ++p) {
                        add_to(sums[p], one[p]);
                        if (has_two) add_to(sums[p], two[p]);
                    }
                }
            }
        }
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int64_t piece = column + p * kPieceColumns;
            if (piece >= C) break;
            store(room + (warp * kWarp + lane) * kWidth, sums[p]);
            __syncthreads();
            if (thread < kPieceColumns && piece + thread < C) {
                float total = 0.0f;
                for (int i = 0; i < kTokenWarps; ++i) total += room[i * kPieceColumns + thread];
                dwte[token * C + piece + thread] += total;
            }
            __syncthreads();
        }
    }
}

// A block has rows at the distance of the grid, so that the first rows, whose tokens are mostly new, go to different blocks.
template <int kWidth, int kPieces>
__global__ void __launch_bounds__(kTokenThreads)
    token_gradient_kernel(float* dwte, const float* dout, const int32_t* tokens, int64_t N, int64_t C) {
    MG_SHARED(float, room, kTokenThreads* kWidth);
    MG_SHARED(unsigned, is_open, kTokenWarps);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
    // First each warp looks for the token of a row of its own in the rows just before: there most are found again.
    {
        const int64_t row = static_cast<int64_t>(blockIdx.x) + static_cast<int64_t>(warp) * gridDim.x;
        bool seen = row >= N;
        for (int round = 0; round < kNearRounds && !seen; ++round) {
            const int64_t end = row - round * kAtOnce * kWarp, begin = end - kAtOnce * kWarp;
            if (end <= 0) break;
            seen = __any_sync(kAllLanes, is_among(tokens[row], tokens, begin + lane, end, kWarp));
        }
        if (lane == 0) is_open[warp] = seen ? 0u : 1u;
    }
    __syncthreads();
    // Then all warps look for the others' tokens in the rows before those.
    for (int i = 0; i < kTokenWarps; ++i) {
        if (is_open[i] == 0) continue;
        const int64_t row = static_cast<int64_t>(blockIdx.x) + static_cast<int64_t>(i) * gridDim.x;
        const int64_t far = row - kNearRounds * kAtOnce * kWarp;
        const int32_t token = tokens[row];
        bool seen = false;
        for (int64_t begin = 0; begin < far && !seen; begin += kAtOnce * kTokenThreads)
            seen = __syncthreads_or(is_among(token, tokens, begin + thread, far, kTokenThreads)) != 0;
        if (!seen) add_rows_of<kWidth, kPieces>(token, room, dwte, dout, tokens, row, N, C);
    }
}

template <int kWidth>
__global__ void position_gradient_kernel(float* dwpe, const float* dout, int64_t N, int64_t T, int64_t C) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kPositionThreads * kWidth;
    for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kPositionThreads + threadIdx.x) * kWidth; i < T * C;
         i += step) {
        float sum[kWidth];
        load(sum, dwpe + i);
#pragma unroll 4
        for (int64_t at = i; at < N * C; at += T * C) {
            float values[kWidth];
            load(values, dout + at);
            add_to(sum, values);
        }
        store(dwpe + i, sum);
    }
}

template <int kWidth>
void launch_backward(Stream stream, float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N,
                     int64_t T, int64_t C) {
    const unsigned blocks = static_cast<unsigned>(ceil_div(N, kTokenWarps));
    if (C <= 2 * kWarp * kWidth)
        MG_LAUNCH((token_gradient_kernel<kWidth, 2>), blocks, kTokenThreads, 0, stream, dwte, dout, tokens, N, C);
    else
        MG_LAUNCH((token_gradient_kernel<kWidth, 6>), blocks, kTokenThreads, 0, stream, dwte, dout, tokens, N, C);
    MG_LAUNCH((position_gradient_kernel<kWidth>), blocks_for(T * C, kPositionThreads * kWidth, kMostBlocks),
              kPositionThreads, 0, stream, dwpe, dout, N, T, C);
}

}  // namespace

void embedding_forward(Stream stream, float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                       const float* wpe, int64_t N, int64_t T, int64_t C) {
    const unsigned blocks = blocks_for(N, kForwardWarps, kMostBlocks);
    constexpr int kThreads = kForwardWarps * kWarp;
    if (C % 4 == 0 && is_aligned(out, 16) && is_aligned(wte, 16) && is_aligned(wpe, 16))
        MG_LAUNCH((embedding_forward_kernel<4>), blocks, kThreads, 0, stream, out, tokens, positions, wte, wpe, N, T,
                  C);
    else
        MG_LAUNCH((embedding_forward_kernel<1>), blocks, kThreads, 0, stream, out, tokens, positions, wte, wpe, N, T,
                  C);
}

void embedding_backward(Stream stream, float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N,
                        int64_t T, int64_t C) {
    if (C % 4 == 0 && is_aligned(dwte, 16) && is_aligned(dwpe, 16) && is_aligned(dout, 16))
        launch_backward<4>(stream, dwte, dwpe, dout, tokens, N, T, C);
    else
        launch_backward<1>(stream, dwte, dwpe, dout, tokens, N, T, C);
}

}  // namespace mg::cuda
