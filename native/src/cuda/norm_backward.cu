// The gradients of norm.cu's norms.  Bound by memory: a number costs 12 bytes (x, and dx in and out) and two to three Elements; some
// 20 operations go with each, far below the limit.
//   g = dout gamma; dx += rstd (g - mean(g) - xhat mean(g xhat)), without mean(g) where the mean is taken to be 0;
//   dgamma += sum over rows of dout xhat; dbeta += sum over rows of dout
// The sums over rows go to dgamma and dbeta in one launch, in two levels: each block adds up its rows, the last block to finish of
// every 16 those blocks' sums, and the last of these the sums of all: so no block has to read more than a few hundred kilobytes
// at the end.
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"
#include "cuda/norm_rows.h"

namespace mg::cuda {

namespace {

constexpr int kThreads = kNormThreads, kWarps = kNormWarps;
constexpr int kMostBlocks = 132 * 2;
constexpr int kFanIn = 16;  // sums that one block adds up
constexpr size_t kCounterBytes = 256;
static_assert((1 + kMostBlocks / kFanIn + 1) * sizeof(unsigned) <= kCounterBytes, "a counter a group, and one for all");

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
    return {static_cast<unsigned*>(scratch), of_blocks, of_blocks + kMostBlocks * 2 * C};
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
        float* const to = i < C ? dgamma : dbeta;
        if (to == nullptr) continue;
        const int64_t c = i < C ? i : i - C;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) to[c + k] += sum[k];
    }
}

template <typename E, typename D, int kPieces, int kRowWarps>
__global__ void __launch_bounds__(kThreads, 2)
    norm_backward_kernel(float* dx, bool adds, E* dx_elements, E* out, float* dgamma, float* dbeta, const D* dout,
                         const float* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                         Partials partials, int64_t N, int64_t C) {
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
        const float row_mean = has_row ? value_or(mean, row, 0.0f) : 0.0f, row_rstd = has_row ? rstd[row] : 0.0f;
        // All that is read of the row is under way before the first of it is needed.
        float xhat[kPieces][4], g[kPieces][4], total[kPieces][4];
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int64_t c = S::column(p);
            if (!has_row || c >= C) continue;
            load(xhat[p], x + row * C + c);
            load(g[p], dout + row * C + c);
            load_or(total[p], adds ? dx : nullptr, row * C + c, 0.0f);
        }
        float sums[2] = {};
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int64_t c = S::column(p);
            if (!has_row || c >= C) continue;
            float scale[4];
            load_or(scale, gamma, c, 1.0f);
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
        const float mean_g = mean != nullptr ? sums[0] * share : 0.0f, mean_g_xhat = sums[1] * share;
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
            load_or(scale, gamma, c, 1.0f);
            load_or(offset, beta, c, 0.0f);
#pragma unroll
            for (int i = 0; i < 4; ++i) xhat[p][i] = xhat[p][i] * scale[i] + offset[i];
            store(out + row * C + c, xhat[p]);
        }
    }

    if (dgamma == nullptr && dbeta == nullptr) return;
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
template <typename E, typename D>
__global__ void __launch_bounds__(kThreads)
    norm_backward_any_kernel(float* dx, bool adds, E* dx_elements, E* out, float* dgamma, float* dbeta, const D* dout,
                             const float* x, const float* mean, const float* rstd, const float* gamma,
                             const float* beta, Partials partials, int64_t N, int64_t C) {
    MG_SHARED(float, room, kWarps);
    float* const own = partials.of_blocks + static_cast<int64_t>(blockIdx.x) * 2 * C;
    for (int64_t c = threadIdx.x; c < C; c += kThreads) own[c] = own[C + c] = 0.0f;
    for (int64_t row = blockIdx.x; row < N; row += gridDim.x) {
        const int64_t at = row * C;
        const float row_mean = value_or(mean, row, 0.0f), row_rstd = rstd[row];
        float sum_g = 0.0f, sum_g_xhat = 0.0f;
        for (int64_t c = threadIdx.x; c < C; c += kThreads) {
            const float d = to_float(dout[at + c]), xhat = (x[at + c] - row_mean) * row_rstd;
            own[c] += d * xhat;
            own[C + c] += d;
            const float g = d * value_or(gamma, c, 1.0f);
            sum_g += g;
            sum_g_xhat += g * xhat;
        }
        const float mean_g = mean != nullptr ? block_sum(sum_g, room) / static_cast<float>(C) : 0.0f;
        const float mean_g_xhat = block_sum(sum_g_xhat, room) / static_cast<float>(C);
        for (int64_t c = threadIdx.x; c < C; c += kThreads) {
            const float g = to_float(dout[at + c]) * value_or(gamma, c, 1.0f), xhat = (x[at + c] - row_mean) * row_rstd;
            const float total = (adds ? dx[at + c] : 0.0f) + (g - mean_g - xhat * mean_g_xhat) * row_rstd;
            dx[at + c] = total;
            if (dx_elements != nullptr) dx_elements[at + c] = from_float<E>(total);
            if (out != nullptr) out[at + c] = from_float<E>(xhat * value_or(gamma, c, 1.0f) + value_or(beta, c, 0.0f));
        }
    }
    if (dgamma != nullptr || dbeta != nullptr) add_up<1>(dgamma, dbeta, partials, C);
}

template <typename E, typename D, int kPieces, int kRowWarps, typename... Arguments>
void launch_spread(Spread<kPieces, kRowWarps>, Stream stream, int64_t N, Arguments... arguments) {
    const unsigned blocks = blocks_for(N, kWarps / kRowWarps, kMostBlocks);
    MG_LAUNCH((norm_backward_kernel<E, D, kPieces, kRowWarps>), blocks, kThreads, 0, stream, arguments...);
}

template <typename E, typename D>
void launch(Stream stream, float* dx, bool adds, E* dx_elements, E* out, float* dgamma, float* dbeta, const D* dout,
            const float* x, const float* mean, const float* rstd, const float* gamma, const float* beta, void* scratch,
            int64_t N, int64_t C) {
    const Partials partials = partials_in(scratch, C);
    const bool in_registers = C % 4 == 0 && are_aligned(16, dx, x, gamma, beta) &&
                              are_aligned(4 * sizeof(E), dx_elements, out) && is_aligned(dout, 4 * sizeof(D)) &&
                              spread_rows(C, [&](auto spread) {
                                  launch_spread<E, D>(spread, stream, N, dx, adds, dx_elements, out, dgamma, dbeta,
                                                      dout, x, mean, rstd, gamma, beta, partials, N, C);
                              });
    if (!in_registers)
        MG_LAUNCH((norm_backward_any_kernel<E, D>), blocks_for(N, 1, kMostBlocks), kThreads, 0, stream, dx, adds,
                  dx_elements, out, dgamma, dbeta, dout, x, mean, rstd, gamma, beta, partials, N, C);
}

}  // namespace

size_t norm_backward_scratch_bytes(int64_t, int64_t C) {
    constexpr int64_t kSums = kMostBlocks + ceil_div(kMostBlocks, kFanIn);
    return kCounterBytes + static_cast<size_t>(kSums * 2 * C) * sizeof(float);
}

template <typename E>
void norm_backward(Stream stream, float* dx, E* dx_elements, E* out, float* dgamma, float* dbeta, const E* dout,
                   const float* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                   void* scratch, int64_t N, int64_t C) {
    launch<E, E>(stream, dx, true, dx_elements, out, dgamma, dbeta, dout, x, mean, rstd, gamma, beta, scratch, N, C);
}

// Each thread reads its numbers of dx before it writes them, so dx is what came back through the output, too.
template <typename E>
void stream_norm_backward(Stream stream, float* dx, E* dx_elements, float* dgamma, float* dbeta, const float* x,
                          const float* mean, const float* rstd, const float* gamma, void* scratch, int64_t N,
                          int64_t C) {
    launch<E, float>(stream, dx, false, dx_elements, nullptr, dgamma, dbeta, dx, x, mean, rstd, gamma, nullptr, scratch,
                     N, C);
}

#define MG_INSTANTIATE(E)                                                                                        \
    template void norm_backward<E>(Stream, float*, E*, E*, float*, float*, const E*, const float*, const float*, \
                                   const float*, const float*, const float*, void*, int64_t, int64_t);           \
    template void stream_norm_backward<E>(Stream, float*, E*, float*, float*, const float*, const float*,        \
                                          const float*, const float*, void*, int64_t, int64_t);
MG_INSTANTIATE(float)
MG_INSTANTIATE(Bf16)
#undef MG_INSTANTIATE

}  // namespace mg::cuda
