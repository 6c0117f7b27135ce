// Layer norm over rows of C (Ba, Kiros & Hinton 2016), biased variance; and RMSNorm (Zhang & Sennrich 2019), which is the same
// with a mean of 0, given by a null mean.  A null gamma is 1, a null beta 0.
//   forward   mean = sum(x) / C; rstd = 1 / sqrt(sum((x - mean)^2) / C + eps); xhat = (x - mean) rstd;
//             out = gamma xhat + beta
//   backward  g = dout gamma;  dx += rstd (g - mean(g) - xhat mean(g xhat)), without mean(g) for RMSNorm;
//             dgamma += sum over rows of dout xhat;  dbeta += sum over rows of dout
#pragma once

#include "cpu/ops/bf16.h"

namespace {

constexpr float kNormEpsilon = 1e-5f;

// What is null is known where loops are compiled, not asked in them: kWhole means that nothing is, as in GPT-2.  Each variant is
// a function of its own: compilers contract a product and a sum to one rounding only where they stay together, and what they
// moved to a place common to several variants would change bits.
inline float mean_of(const float* mean, int64_t row) { return mean != nullptr ? mean[row] : 0.0f; }

template <typename E, bool kWhole>
void scale_and_shift(E* out, const float* x, float mean, float rstd, const float* gamma, const float* beta, int64_t C) {
    for_vectors(C, [&](int64_t c, int64_t n) {
        const Vector xhat = (load_some(x + c, n) - mean) * rstd;
        if (kWhole) {
            store_some(out + c, xhat * load_some(gamma + c, n) + load_some(beta + c, n), n);
        } else {
            const Vector scaled = gamma != nullptr ? xhat * load_some(gamma + c, n) : xhat;
            store_some(out + c, beta != nullptr ? scaled + load_some(beta + c, n) : scaled, n);
        }
    });
}

template <typename E, bool kWhole>
[[gnu::noinline]] void norm_again_rows(E* out, const float* x, const float* mean, const float* rstd, const float* gamma,
                                       const float* beta, int64_t row_begin, int64_t row_end, int64_t C) {
    for (int64_t row = row_begin; row < row_end; ++row)
        scale_and_shift<E, kWhole>(out + row * C, x + row * C, kWhole ? mean[row] : mean_of(mean, row), rstd[row],
                                   gamma, beta, C);
}

template <typename E>
void norm_again(E* out, const float* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                int64_t row_begin, int64_t row_end, int64_t C) {
    const bool whole = mean != nullptr && gamma != nullptr && beta != nullptr;
    const auto rows = whole ? norm_again_rows<E, true> : norm_again_rows<E, false>;
    rows(out, x, mean, rstd, gamma, beta, row_begin, row_end, C);
}

template <typename E, bool kWhole>
[[gnu::noinline]] void norm_forward_rows(E* out, float* mean, float* rstd, const float* x, const float* gamma,
                                         const float* beta, int64_t row_begin, int64_t row_end, int64_t C) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float* in = x + row * C;
        E* to = out + row * C;
        float row_mean = 0.0f;
        if (kWhole || mean != nullptr) {
            Vector total = {};
            for_vectors(C, [&](int64_t c, int64_t n) { total = total + load_some(in + c, n); });
            row_mean = sum_lanes(total) / static_cast<float>(C);
        }
        // A second pass over a row that is in cache: x*x - mean*mean would lose the variance of rows far from 0.
        Vector squares = {};
        int64_t c = 0;
        for (; c + kWidth <= C; c += kWidth) {
            const Vector centred = load(in + c) - row_mean;
            squares = centred * centred + squares;
        }
        float variance = sum_lanes(squares);
        for (; c < C; ++c) variance += (in[c] - row_mean) * (in[c] - row_mean);
        const float row_rstd = 1.0f / sqrtf(variance / static_cast<float>(C) + kNormEpsilon);
        scale_and_shift<E, kWhole>(to, in, row_mean, row_rstd, gamma, beta, C);
        if (kWhole || mean != nullptr) mean[row] = row_mean;
        rstd[row] = row_rstd;
    }
}

template <typename E>
void norm_forward(E* out, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                  int64_t row_begin, int64_t row_end, int64_t C) {
    const bool whole = mean != nullptr && gamma != nullptr && beta != nullptr;
    const auto rows = whole ? norm_forward_rows<E, true> : norm_forward_rows<E, false>;
    rows(out, mean, rstd, x, gamma, beta, row_begin, row_end, C);
}

// kAdds: dx +=, else =; kScales: there is a gamma.
template <typename E, bool kAdds, bool kScales>
[[gnu::noinline]] void norm_backward_rows(float* dx, float* partial, const E* dout, const float* x, const float* mean,
                                          const float* rstd, const float* gamma, int64_t row_begin, int64_t row_end,
                                          int64_t C) {
    float* dgamma = partial;
    float* dbeta = partial + C;
    memset(partial, 0, static_cast<size_t>(2 * C) * sizeof(float));
    const auto scaled = [&](Vector d, int64_t c, int64_t n) { return kScales ? d * load_some(gamma + c, n) : d; };
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float* in = x + row * C;
        const E* g_out = dout + row * C;
        const float row_mean = mean_of(mean, row), row_rstd = rstd[row];
        Vector sum_g = {}, sum_g_xhat = {};
        for_vectors(C, [&](int64_t c, int64_t n) {
            const Vector d = load_some(g_out + c, n);
            const Vector xhat = (load_some(in + c, n) - row_mean) * row_rstd;
            const Vector g = scaled(d, c, n);
            sum_g = sum_g + g;
            sum_g_xhat = g * xhat + sum_g_xhat;
            store_some(dgamma + c, d * xhat + load_some(dgamma + c, n), n);
            store_some(dbeta + c, d + load_some(dbeta + c, n), n);
        });
        const float mean_g = mean != nullptr ? sum_lanes(sum_g) / static_cast<float>(C) : 0.0f;
        const float mean_g_xhat = sum_lanes(sum_g_xhat) / static_cast<float>(C);
        float* to = dx + row * C;
        for_vectors(C, [&](int64_t c, int64_t n) {
            const Vector xhat = (load_some(in + c, n) - row_mean) * row_rstd;
            const Vector g = scaled(load_some(g_out + c, n), c, n);
            const Vector before = kAdds ? load_some(to + c, n) : Vector{};
            store_some(to + c, (g - mean_g - xhat * mean_g_xhat) * row_rstd + before, n);
        });
    }
}

template <typename E>
void norm_backward(float* dx, bool adds, float* partial, const E* dout, const float* x, const float* mean,
                   const float* rstd, const float* gamma, int64_t row_begin, int64_t row_end, int64_t C) {
    const auto scaled = adds ? norm_backward_rows<E, true, true> : norm_backward_rows<E, false, true>;
    const auto plain = adds ? norm_backward_rows<E, true, false> : norm_backward_rows<E, false, false>;
    (gamma != nullptr ? scaled : plain)(dx, partial, dout, x, mean, rstd, gamma, row_begin, row_end, C);
}

}  // namespace
