// Layer norm over rows of C (Ba, Kiros & Hinton 2016), biased variance.  Bound by memory: a number costs forward 4 bytes in and an
// Element out, backward 12 (x, and dx in and out) and two to three Elements; some 20 operations go with each, far below the limit.
//   forward   mean = sum(x) / C; rstd = 1 / sqrt(sum((x - mean)^2) / C + eps); out = gamma (x - mean) rstd + beta
//   backward  g = dout gamma; dx += rstd (g - mean(g) - xhat mean(g xhat));
//             dgamma += sum over rows of dout xhat; dbeta += sum over rows of dout
// A row is read once, into the registers of one warp, or of several where it is wide.  The sums over rows go to dgamma and dbeta
// in one launch, in two levels: each block adds up its rows, the last block to finish of every 16 those blocks' sums, and the
// last of these the sums of all: so no block has to read more than a few hundred kilobytes at the end.
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr float kEpsilon = 1e-5f;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMostForwardBlocks = 132 * 16, kMostBackwardBlocks = 132 * 2;
constexpr int kFanIn = 16;  // sums that one block adds up
constexpr size_t kCounterBytes = 256;
static_assert((1 + kMostBackwardBlocks / kFanIn + 1) * sizeof(unsigned) <= kCounterBytes,
              "a counter a group, and one for all");

// Sums over the kRowWarps warps that share a row.  `room` holds kCount floats a warp; it is free again after the next call that
// uses another room.
template <int kRowWarps, int kCount>
__device__ __forceinline__ void row_sums(float (&values)[kCount], float* room) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = warp_sum(values[i]);
    if constexpr (kRowWarps > 1) {
        if (lane == 0)
            for (int i = 0; i < kCount; ++i) room[warp * kCount + i] = values[i];
        __syncthreads();
        const float* of_row = room + warp / kRowWarps * kRowWarps * kCount;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            values[i] = 0.0f;
            for (int w = 0; w < kRowWarps; ++w) values[i] += of_row[w * kCount + i];
        }
    }
}

// Rows in registers: each of the kRowWarps warps' threads holds kPieces pieces of 4 numbers.
template <int kPieces, int kRowWarps>
struct Spread {
    static constexpr int kOfRow = kRowWarps * kWarp, kRows = kWarps / kRowWarps;

    static __device__ __forceinline__ int group() { return static_cast<int>(threadIdx.x) / kOfRow; }
    static __device__ __forceinline__ int64_t column(int piece) {
        return (piece * kOfRow + static_cast<int>(threadIdx.x) % kOfRow) * 4;
    }
};

template <typename E, int kPieces, int kRowWarps>
__global__ void __launch_bounds__(kThreads)
    norm_forward_kernel(E* out, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                        int64_t N, int64_t C) {
    using S = Spread<kPieces, kRowWarps>;
    MG_SHARED(float, room, 2 * kWarps);
    const float share = 1.0f / static_cast<float>(C);
    for (int64_t base = static_cast<int64_t>(blockIdx.x) * S::kRows; base < N;
         base += static_cast<int64_t>(gridDim.x) * S::kRows) {
        const int64_t row = base + S::group();
        const bool has_row = row < N;
        float values[kPieces][4];
        float total[1] = {};
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
            if (has_row && S::column(p) < C) load(values[p], x + row * C + S::column(p));
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
            if (has_row && S::column(p) < C) total[0] += (values[p][0] + values[p][1]) + (values[p][2] + values[p][3]);
        row_sums<kRowWarps>(total, room);
        const float row_mean = total[0] / static_cast<float>(C);
        // From the registers: sum(x^2) / C - mean^2 would lose the variance of rows far from 0.
        float squares[1] = {};
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
            if (has_row && S::column(p) < C)
#pragma unroll
                for (int i = 0; i < 4; ++i) squares[0] += (values[p][i] - row_mean) * (values[p][i] - row_mean);
        row_sums<kRowWarps>(squares, room + kWarps);
        if (!has_row) continue;
        const float row_rstd = 1.0f / sqrtf(squares[0] * share + kEpsilon);
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int64_t c = S::column(p);
            if (c >= C) continue;
            float scale[4], offset[4];
            load(scale, gamma + c);
            load(offset, beta + c);
#pragma unroll
            for (int i = 0; i < 4; ++i) values[p][i] = (values[p][i] - row_mean) * row_rstd * scale[i] + offset[i];
            store(out + row * C + c, values[p]);
        }
        if (threadIdx.x % S::kOfRow == 0) {
            mean[row] = row_mean;
            rstd[row] = row_rstd;
        }
    }
}

// Any width and alignment: a warp a row, which it reads three times.
template <typename E>
__global__ void __launch_bounds__(kThreads)
    norm_forward_any_kernel(E* out, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                            int64_t N, int64_t C) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < N;
         row += static_cast<int64_t>(gridDim.x) * kWarps) {
        const float* in = x + row * C;
        float total = 0.0f, squares = 0.0f;
        for (int64_t c = lane; c < C; c += kWarp) total += in[c];
        const float row_mean = warp_sum(total) / static_cast<float>(C);
        for (int64_t c = lane; c < C; c += kWarp) squares += (in[c] - row_mean) * (in[c] - row_mean);
        const float row_rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(C) + kEpsilon);
        for (int64_t c = lane; c < C; c += kWarp)
            out[row * C + c] = from_float<E>((in[c] - row_mean) * row_rstd * gamma[c] + beta[c]);
        if (lane == 0) {
            mean[row] = row_mean;
            rstd[row] = row_rstd;
        }
    }
}

// sum += kWidth numbers of each of `count` rows that lie `width` numbers apart.
template <int kWidth>
__device__ __forceinline__ void add_rows(float (&sum)[kWidth], const float* rows, int64_t count, int64_t width) {
#pragma unroll 8
    for (int64_t row = 0; row < count; ++row) {
        float values[kWidth];
        load(values, rows + row * width);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) sum[i] += values[i];
    }
}

// Where the sums of the backward pass lie in scratch: counters, dgamma and dbeta of each block, and of each group of blocks.
struct Partials {
    unsigned* counters;
    float* of_blocks;
    float* of_groups;
};

Partials partials_in(void* scratch, int64_t C) {
    float* const of_blocks = reinterpret_cast<float*>(static_cast<char*>(scratch) + kCounterBytes);
    return {static_cast<unsigned*>(scratch), of_blocks, of_blocks + kMostBackwardBlocks * 2 * C};
}

// The end of the backward pass, after each block has written its own sums.
template <int kWidth>
__device__ __forceinline__ void add_up(float* dgamma, float* dbeta, const Partials& partials, int64_t C) {
    MG_SHARED(unsigned, is_last, 1);
    const unsigned group = blockIdx.x / kFanIn, groups = (gridDim.x + kFanIn - 1) / kFanIn;
    const unsigned members = group + 1 < groups ? kFanIn : gridDim.x - group * kFanIn;
    if (!last_of(members, partials.counters + 1 + group, is_last)) return;
    for (int64_t i = threadIdx.x * kWidth; i < 2 * C; i += kThreads * kWidth) {
        float sum[kWidth] = {};
        add_rows(sum, partials.of_blocks + group * kFanIn * 2 * C + i, members, 2 * C);
        store(partials.of_groups + group * 2 * C + i, sum);
    }
    if (!last_of(groups, partials.counters, is_last)) return;
    for (int64_t i = threadIdx.x * kWidth; i < 2 * C; i += kThreads * kWidth) {
        float sum[kWidth] = {};
        add_rows(sum, partials.of_groups + i, groups, 2 * C);
        float* const to = i < C ? dgamma + i : dbeta + (i - C);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) to[k] += sum[k];
    }
}

template <typename E, int kPieces, int kRowWarps>
__global__ void __launch_bounds__(kThreads, 2)
    norm_backward_kernel(float* dx, E* dx_elements, E* out, float* dgamma, float* dbeta, const E* dout, const float* x,
                         const float* mean, const float* rstd, const float* gamma, const float* beta, Partials partials,
                         int64_t N, int64_t C) {
    using S = Spread<kPieces, kRowWarps>;
    MG_SHARED(float, rooms, 2 * 2 * kWarps);
    MG_SHARED(float, piece, kThreads * 4);
    const float share = 1.0f / static_cast<float>(C);
    float gamma_sums[kPieces][4] = {}, beta_sums[kPieces][4] = {};
    int turn = 0;
    for (int64_t base = static_cast<int64_t>(blockIdx.x) * S::kRows; base < N;
         base += static_cast<int64_t>(gridDim.x) * S::kRows) {
        const int64_t row = base + S::group();
        const bool has_row = row < N;
        const float row_mean = has_row ? mean[row] : 0.0f, row_rstd = has_row ? rstd[row] : 0.0f;
        // All that is read of the row is under way before the first of it is needed.
        float xhat[kPieces][4], g[kPieces][4], total[kPieces][4];
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int64_t c = S::column(p);
            if (!has_row || c >= C) continue;
            load(xhat[p], x + row * C + c);
            load(g[p], dout + row * C + c);
            load(total[p], dx + row * C + c);
        }
        float sums[2] = {};
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int64_t c = S::column(p);
            if (!has_row || c >= C) continue;
            float scale[4];
            load(scale, gamma + c);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                xhat[p][i] = (xhat[p][i] - row_mean) * row_rstd;
                gamma_sums[p][i] += g[p][i] * xhat[p][i];
                beta_sums[p][i] += g[p][i];
                g[p][i] *= scale[i];
                sums[0] += g[p][i];
                sums[1] += g[p][i] * xhat[p][i];
            }
        }
        row_sums<kRowWarps>(sums, rooms + turn * 2 * kWarps);
        turn ^= 1;
        const float mean_g = sums[0] * share, mean_g_xhat = sums[1] * share;
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int64_t c = S::column(p);
            if (!has_row || c >= C) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i) total[p][i] += (g[p][i] - mean_g - xhat[p][i] * mean_g_xhat) * row_rstd;
            store(dx + row * C + c, total[p]);
            if (dx_elements != nullptr) store(dx_elements + row * C + c, total[p]);
            if (out == nullptr) continue;
            float scale[4], offset[4];
            load(scale, gamma + c);
            load(offset, beta + c);
#pragma unroll
            for (int i = 0; i < 4; ++i) xhat[p][i] = xhat[p][i] * scale[i] + offset[i];
            store(out + row * C + c, xhat[p]);
        }
    }

    // The groups of warps have had different rows of the same columns.
    float* const own = partials.of_blocks + static_cast<int64_t>(blockIdx.x) * 2 * C;
#pragma unroll
    for (int p = 0; p < 2 * kPieces; ++p) {
        const int64_t c = S::column(p / 2);
        float (&sum)[4] = p % 2 == 0 ? gamma_sums[p / 2] : beta_sums[p / 2];
        if constexpr (S::kRows > 1) {
            store(piece + threadIdx.x * 4, sum);
            __syncthreads();
            if (S::group() == 0)
                for (int other = 1; other < S::kRows; ++other) {
                    float values[4];
                    load(values, piece + (threadIdx.x + other * S::kOfRow) * 4);
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[i] += values[i];
                }
            __syncthreads();
        }
        if (S::group() == 0 && c < C) store(own + p % 2 * C + c, sum);
    }
    add_up<4>(dgamma, dbeta, partials, C);
}

// Any width and alignment: a block a row, sums over rows in the block's part of scratch, where each thread has its columns.
template <typename E>
__global__ void __launch_bounds__(kThreads)
    norm_backward_any_kernel(float* dx, E* dx_elements, E* out, float* dgamma, float* dbeta, const E* dout,
                             const float* x, const float* mean, const float* rstd, const float* gamma,
                             const float* beta, Partials partials, int64_t N, int64_t C) {
    MG_SHARED(float, room, kWarps);
    float* const own = partials.of_blocks + static_cast<int64_t>(blockIdx.x) * 2 * C;
    for (int64_t c = threadIdx.x; c < C; c += kThreads) own[c] = own[C + c] = 0.0f;
    for (int64_t row = blockIdx.x; row < N; row += gridDim.x) {
        const int64_t at = row * C;
        const float row_mean = mean[row], row_rstd = rstd[row];
        float sum_g = 0.0f, sum_g_xhat = 0.0f;
        for (int64_t c = threadIdx.x; c < C; c += kThreads) {
            const float d = to_float(dout[at + c]), xhat = (x[at + c] - row_mean) * row_rstd;
            own[c] += d * xhat;
            own[C + c] += d;
            sum_g += d * gamma[c];
            sum_g_xhat += d * gamma[c] * xhat;
        }
        const float mean_g = block_sum(sum_g, room) / static_cast<float>(C);
        const float mean_g_xhat = block_sum(sum_g_xhat, room) / static_cast<float>(C);
        for (int64_t c = threadIdx.x; c < C; c += kThreads) {
            const float g = to_float(dout[at + c]) * gamma[c], xhat = (x[at + c] - row_mean) * row_rstd;
            const float total = dx[at + c] + (g - mean_g - xhat * mean_g_xhat) * row_rstd;
            dx[at + c] = total;
            if (dx_elements != nullptr) dx_elements[at + c] = from_float<E>(total);
            if (out != nullptr) out[at + c] = from_float<E>(xhat * gamma[c] + beta[c]);
        }
    }
    add_up<1>(dgamma, dbeta, partials, C);
}

// Calls launch with the Spread for rows of C numbers; false where the registers of a block don't hold one.
template <typename Launch>
bool spread_rows(int64_t C, const Launch& launch) {
    if (C <= 128)
        launch(Spread<1, 1>());
    else if (C <= 256)
        launch(Spread<2, 1>());
    else if (C <= 512)
        launch(Spread<4, 1>());
    else if (C <= 768)
        launch(Spread<3, 2>());
    else if (C <= 1024)
        launch(Spread<4, 2>());
    else if (C <= 1536)
        launch(Spread<3, 4>());
    else if (C <= 2048)
        launch(Spread<4, 4>());
    else if (C <= 4096)
        launch(Spread<4, 8>());
    else
        return false;
    return true;
}

template <typename... Pointers>
bool are_aligned(size_t bytes, const Pointers*... pointers) {
    return (is_aligned(pointers, bytes) && ...);
}

template <typename E, int kPieces, int kRowWarps, typename... Arguments>
void launch_forward(Spread<kPieces, kRowWarps>, Stream stream, int64_t N, Arguments... arguments) {
    const unsigned blocks = blocks_for(N, kWarps / kRowWarps, kMostForwardBlocks);
    MG_LAUNCH((norm_forward_kernel<E, kPieces, kRowWarps>), blocks, kThreads, 0, stream, arguments...);
}

template <typename E, int kPieces, int kRowWarps, typename... Arguments>
void launch_backward(Spread<kPieces, kRowWarps>, Stream stream, int64_t N, Arguments... arguments) {
    const unsigned blocks = blocks_for(N, kWarps / kRowWarps, kMostBackwardBlocks);
    MG_LAUNCH((norm_backward_kernel<E, kPieces, kRowWarps>), blocks, kThreads, 0, stream, arguments...);
}

}  // namespace

template <typename E>
void norm_forward(Stream stream, E* out, float* mean, float* rstd, const float* x, const float* gamma,
                  const float* beta, int64_t N, int64_t C) {
    const bool in_registers = C % 4 == 0 && are_aligned(16, x, gamma, beta) && is_aligned(out, 4 * sizeof(E)) &&
                              spread_rows(C, [&](auto spread) {
                                  launch_forward<E>(spread, stream, N, out, mean, rstd, x, gamma, beta, N, C);
                              });
    if (!in_registers)
        MG_LAUNCH((norm_forward_any_kernel<E>), blocks_for(N, kWarps, kMostForwardBlocks), kThreads, 0, stream, out,
                  mean, rstd, x, gamma, beta, N, C);
}

size_t norm_backward_scratch_bytes(int64_t, int64_t C) {
    constexpr int64_t kSums = kMostBackwardBlocks + ceil_div(kMostBackwardBlocks, kFanIn);
    return kCounterBytes + static_cast<size_t>(kSums * 2 * C) * sizeof(float);
}

template <typename E>
void norm_backward(Stream stream, float* dx, E* dx_elements, E* out, float* dgamma, float* dbeta, const E* dout,
                   const float* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                   void* scratch, int64_t N, int64_t C) {
    if (static_cast<void*>(dx_elements) == dx) dx_elements = nullptr;  // of floats: they are the same numbers
    const Partials partials = partials_in(scratch, C);
    const bool in_registers = C % 4 == 0 && are_aligned(16, dx, x, gamma, beta) &&
                              are_aligned(4 * sizeof(E), dx_elements, out, dout) && spread_rows(C, [&](auto spread) {
                                  launch_backward<E>(spread, stream, N, dx, dx_elements, out, dgamma, dbeta, dout, x,
                                                     mean, rstd, gamma, beta, partials, N, C);
                              });
    if (!in_registers)
        MG_LAUNCH((norm_backward_any_kernel<E>), blocks_for(N, 1, kMostBackwardBlocks), kThreads, 0, stream, dx,
                  dx_elements, out, dgamma, dbeta, dout, x, mean, rstd, gamma, beta, partials, N, C);
}

#define MG_INSTANTIATE(E)                                                                                        \
    template void norm_forward<E>(Stream, E*, float*, float*, const float*, const float*, const float*, int64_t, \
                                  int64_t);                                                                      \
    template void norm_backward<E>(Stream, float*, E*, E*, float*, float*, const E*, const float*, const float*, \
                                   const float*, const float*, const float*, void*, int64_t, int64_t);
MG_INSTANTIATE(float)
MG_INSTANTIATE(Bf16)
#undef MG_INSTANTIATE

}  // namespace mg::cuda
