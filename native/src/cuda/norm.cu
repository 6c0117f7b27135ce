// Layer norm over rows of C (Ba, Kiros & Hinton 2016), biased variance, and RMSNorm.  Bound by memory: a number costs 4 bytes in
// and an Element out, or a float and an Element; some 10 operations go with each, far below the limit.
//   mean = sum(x) / C; rstd = 1 / sqrt(sum((x - mean)^2) / C + eps); out = gamma (x - mean) rstd + beta
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"
#include "cuda/norm_rows.h"

#include <type_traits>

namespace mg::cuda {

namespace {

constexpr float kEpsilon = 1e-5f;
constexpr int kThreads = kNormThreads, kWarps = kNormWarps;
constexpr int kMostBlocks = 132 * 16;

// `also`: the output once more as A, where it isn't null; of a norm that has one output A is Nothing.
struct Nothing {};

template <typename E, typename A, int kPieces, int kRowWarps>
__global__ void __launch_bounds__(kThreads)
    norm_forward_kernel(E* out, A* also, float* mean, float* rstd, const float* x, const float* gamma,
                        const float* beta, int64_t N, int64_t C) {
    using S = Spread<kPieces, kRowWarps>;
    MG_SHARED(float, rooms, 2 * kWarps);
    const float share = 1.0f / static_cast<float>(C);
    int turn = 0;
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
        float row_mean = 0.0f;
        if (mean != nullptr) {
            row_sums<kRowWarps>(total, rooms + turn * kWarps);
            turn ^= 1;
            row_mean = total[0] / static_cast<float>(C);
        }
        // From the registers: sum(x^2) / C - mean^2 would lose the variance of rows far from 0.
        float squares[1] = {};
#pragma unroll
        for (int p = 0; p < kPieces; ++p)
            if (has_row && S::column(p) < C)
#pragma unroll
                for (int i = 0; i < 4; ++i) squares[0] += (values[p][i] - row_mean) * (values[p][i] - row_mean);
        row_sums<kRowWarps>(squares, rooms + turn * kWarps);
        turn ^= 1;
        if (!has_row) continue;
        const float row_rstd = 1.0f / sqrtf(squares[0] * share + kEpsilon);
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
            const int64_t c = S::column(p);
            if (c >= C) continue;
            float scale[4], offset[4];
            load_or(scale, gamma, c, 1.0f);
            load_or(offset, beta, c, 0.0f);
#pragma unroll
            for (int i = 0; i < 4; ++i) values[p][i] = (values[p][i] - row_mean) * row_rstd * scale[i] + offset[i];
            store(out + row * C + c, values[p]);
            if constexpr (!std::is_same_v<A, Nothing>)
                if (also != nullptr) store(also + row * C + c, values[p]);
        }
        if (threadIdx.x % S::kOfRow == 0) {
            if (mean != nullptr) mean[row] = row_mean;
            rstd[row] = row_rstd;
        }
    }
}

// Any width and alignment: a warp a row, which it reads three times.
template <typename E, typename A>
__global__ void __launch_bounds__(kThreads)
    norm_forward_any_kernel(E* out, A* also, float* mean, float* rstd, const float* x, const float* gamma,
                            const float* beta, int64_t N, int64_t C) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < N;
         row += static_cast<int64_t>(gridDim.x) * kWarps) {
        const float* in = x + row * C;
        float row_mean = 0.0f, squares = 0.0f;
        if (mean != nullptr) {
            float total = 0.0f;
            for (int64_t c = lane; c < C; c += kWarp) total += in[c];
            row_mean = warp_sum(total) / static_cast<float>(C);
        }
        for (int64_t c = lane; c < C; c += kWarp) squares += (in[c] - row_mean) * (in[c] - row_mean);
        const float row_rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(C) + kEpsilon);
        for (int64_t c = lane; c < C; c += kWarp) {
            const float value = (in[c] - row_mean) * row_rstd * value_or(gamma, c, 1.0f) + value_or(beta, c, 0.0f);
            out[row * C + c] = from_float<E>(value);
            if constexpr (!std::is_same_v<A, Nothing>)
                if (also != nullptr) also[row * C + c] = from_float<A>(value);
        }
        if (lane == 0) {
            if (mean != nullptr) mean[row] = row_mean;
            rstd[row] = row_rstd;
        }
    }
}

template <typename E, typename A, int kPieces, int kRowWarps, typename... Arguments>
void launch_forward(Spread<kPieces, kRowWarps>, Stream stream, int64_t N, Arguments... arguments) {
    const unsigned blocks = blocks_for(N, kWarps / kRowWarps, kMostBlocks);
    MG_LAUNCH((norm_forward_kernel<E, A, kPieces, kRowWarps>), blocks, kThreads, 0, stream, arguments...);
}

template <typename E, typename A>
void launch(Stream stream, E* out, A* also, float* mean, float* rstd, const float* x, const float* gamma,
            const float* beta, int64_t N, int64_t C) {
    const bool in_registers = C % 4 == 0 && are_aligned(16, x, gamma, beta) && is_aligned(out, 4 * sizeof(E)) &&
                              is_aligned(also, 4 * sizeof(A)) && spread_rows(C, [&](auto spread) {
                                  launch_forward<E, A>(spread, stream, N, out, also, mean, rstd, x, gamma, beta, N, C);
                              });
    if (!in_registers)
        MG_LAUNCH((norm_forward_any_kernel<E, A>), blocks_for(N, kWarps, kMostBlocks), kThreads, 0, stream, out, also,
                  mean, rstd, x, gamma, beta, N, C);
}

}  // namespace

template <typename E>
void norm_forward(Stream stream, E* out, float* mean, float* rstd, const float* x, const float* gamma,
                  const float* beta, int64_t N, int64_t C) {
    launch(stream, out, static_cast<Nothing*>(nullptr), mean, rstd, x, gamma, beta, N, C);
}

template <typename E>
void stream_norm_forward(Stream stream, float* out, E* elements, float* mean, float* rstd, const float* x,
                         const float* gamma, const float* beta, int64_t N, int64_t C) {
    launch(stream, out, elements, mean, rstd, x, gamma, beta, N, C);
}

#define MG_INSTANTIATE(E)                                                                                              \
    template void norm_forward<E>(Stream, E*, float*, float*, const float*, const float*, const float*, int64_t,       \
                                  int64_t);                                                                            \
    template void stream_norm_forward<E>(Stream, float*, E*, float*, float*, const float*, const float*, const float*, \
                                         int64_t, int64_t);
MG_INSTANTIATE(float)
MG_INSTANTIATE(Bf16)
#undef MG_INSTANTIATE

}  // namespace mg::cuda
