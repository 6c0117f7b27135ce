// What lies between the MLP's layers, and its gradient.  Bound by memory: a number costs two Elements forward and 4 backward; where
// the function is gated, 3 and 6.  GELU takes some 25 operations forward and 40 backward, and so does its exact form.
//   gelu       0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3)   (Hendrycks & Gimpel 2016)
//              = x s with s = 1 / (1 + exp(-2u)), which keeps the relative error small where gelu goes to 0
//              derivative s + x s (1 - s) 2 u'
//   gelu_erf   x Phi(x); derivative Phi(x) + x phi(x)          Phi, phi: the normal distribution and its density (the same paper)
//   relu       max(x, 0); derivative 1 where x > 0, else 0
//   relu2      max(x, 0)^2; derivative 2 max(x, 0)             (So et al. 2021)
//   swiglu     silu(a) b with silu(a) = a s, s = 1 / (1 + exp(-a)), and silu'(a) = s + a s (1 - s)     (Shazeer 2020)
// Another function is a structure here, and a line of with_function.  NaN in, NaN out.
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;

struct Activated {
    float value;
    float slope;  // the derivative
};

struct Gate {
    float open;    // s
    float closed;  // 1 - s, without the cancellation
};

// s = 1 / (1 + 2^-exponent).  The power is taken of -|exponent|: it is at most 1, so nothing overflows and the smaller of s and
// 1 - s keeps its relative error, at most 1e-6 while |exponent| is below 16: its rounding to 2^-20 and the 2 units in the last
// place of exp2f.  __fdividef is off by 2 units in the last place too, for divisors between 1 and 2: taken where the result is
// rounded to Bf16.
template <typename E>
__device__ __forceinline__ Gate gate(float exponent) {
    const float power = exp2f(-fabsf(exponent));
    const float larger = sizeof(E) < sizeof(float) ? __fdividef(1.0f, 1.0f + power) : 1.0f / (1.0f + power);
    const float smaller = power * larger;
    return exponent < 0.0f ? Gate{smaller, larger} : Gate{larger, smaller};
}

__device__ __forceinline__ float positive_part(float x) { return x <= 0.0f ? 0.0f : x; }  // of NaN, NaN

// --- the functions: of E, what the results are rounded to, and f and f' of one number.  Of a gated one they are those of the gate.

template <typename E>
struct Gelu {
    static constexpr bool kGated = false;
    static constexpr float kTwiceSqrtTwoOverPi = 1.595769122f, kCubic = 0.044715f;
    // 2u log2(e) = x (kLinear + kCubed x^2): the exponent of a power of 2, which is what the hardware has.
    static constexpr float kLinear = 2.302208198f, kCubed = 0.102943240f;

    static __device__ __forceinline__ Activated at(float x) {
        const Gate g = gate<E>(x * (kLinear + kCubed * x * x));
        return {x * g.open, g.open + x * g.open * g.closed * (kTwiceSqrtTwoOverPi * (1.0f + 3.0f * kCubic * x * x))};
    }
};

template <typename E>
struct GeluErf {
    static constexpr bool kGated = false;
    // Phi(x) = erfc(-x / sqrt(2)) / 2, whose relative error stays small where it goes to 0: 4 units in the last place of erfcf, and
    // x^2 times the rounding of its argument.
    static __device__ __forceinline__ Activated at(float x) {
        const float share = 0.5f * erfcf(-0.707106781f * x), density = 0.398942280f * expf(-0.5f * x * x);
        return {x * share, share + x * density};
    }
};

template <typename E>
struct Relu {
    static constexpr bool kGated = false;
    static __device__ __forceinline__ Activated at(float x) {
        return {positive_part(x), x > 0.0f ? 1.0f : positive_part(x)};
    }
};

template <typename E>
struct Relu2 {
    static constexpr bool kGated = false;
    static __device__ __forceinline__ Activated at(float x) {
        const float part = positive_part(x);
        return {part * part, 2.0f * part};
    }
};

template <typename E>
struct Swiglu {
    static constexpr bool kGated = true;
    static __device__ __forceinline__ Activated at(float x) {
        const Gate g = gate<E>(1.442695041f * x);
        return {x * g.open, g.open + x * g.open * g.closed};
    }
};

// Calls launch with the function, or with that of its gate.
template <typename E, typename Launch>
void with_function(Activation f, const Launch& launch) {
    switch (f) {
        case Activation::gelu: return launch(Gelu<E>());
        case Activation::gelu_erf: return launch(GeluErf<E>());
        case Activation::relu: return launch(Relu<E>());
        case Activation::relu2: return launch(Relu2<E>());
        case Activation::swiglu: return launch(Swiglu<E>());
    }
}

// --- one number after the other

template <typename F, int kWidth, typename E>
__device__ __forceinline__ void forward_piece(E* out, const E* hidden) {
    float values[kWidth];
    load(values, hidden);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = F::at(values[i]).value;
    store(out, values);
}

template <typename F, int kWidth, typename E>
__device__ __forceinline__ void backward_piece(E* dhidden, E* activated, const E* hidden, const E* dout) {
    float x[kWidth], gradient[kWidth];
    load(x, hidden);
    load(gradient, dout);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
        const Activated f = F::at(x[i]);
        x[i] = f.value;
        gradient[i] *= f.slope;
    }
    store(dhidden, gradient);
    store(activated, x);
}

// The numbers after the last whole piece are single ones for the first threads.
template <typename F, typename E, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_kernel(E* out, const E* hidden, int64_t count) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, whole = count / kWidth * kWidth;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
    for (int64_t i = thread * kWidth; i < whole; i += step) forward_piece<F, kWidth>(out + i, hidden + i);
    const int64_t single = whole + thread;
    if (single < count) forward_piece<F, 1>(out + single, hidden + single);
}

template <typename F, typename E, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(E* dhidden, E* activated, const E* hidden, const E* dout, int64_t count) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, whole = count / kWidth * kWidth;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
    for (int64_t i = thread * kWidth; i < whole; i += step)
        backward_piece<F, kWidth>(dhidden + i, activated + i, hidden + i, dout + i);
    const int64_t single = whole + thread;
    if (single < count) backward_piece<F, 1>(dhidden + single, activated + single, hidden + single, dout + single);
}

// --- gated: a row of hidden is M gates a, then M numbers b that they let through.  kWidth divides M.

// Calls piece(first of the row in hidden, in out, column) for all pieces of kWidth columns.  A thread goes on to the piece that
// lies a grid further; only its first takes a division.
template <int kWidth, typename Piece>
__device__ __forceinline__ void for_gated_pieces(int64_t N, int64_t M, const Piece& piece) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth, rows = step / M, columns = step % M;
    const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
    int64_t column = first % M;
    for (int64_t row = first / M; row < N; row += rows) {
        piece(row * 2 * M + column, row * M + column);
        column += columns;
        if (column >= M) {
            column -= M;
            ++row;
        }
    }
}

template <typename F, typename E, int kWidth>
__global__ void __launch_bounds__(kThreads) gated_forward_kernel(E* out, const E* hidden, int64_t N, int64_t M) {
    for_gated_pieces<kWidth>(N, M, [&](int64_t in_hidden, int64_t in_out) {
        float a[kWidth], b[kWidth];
        load(a, hidden + in_hidden);
        load(b, hidden + in_hidden + M);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) a[i] = F::at(a[i]).value * b[i];
        store(out + in_out, a);
    });
}

template <typename F, typename E, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gated_backward_kernel(E* dhidden, E* activated, const E* hidden, const E* dout, int64_t N, int64_t M) {
    for_gated_pieces<kWidth>(N, M, [&](int64_t in_hidden, int64_t in_out) {
        float a[kWidth], b[kWidth], gradient[kWidth];
        load(a, hidden + in_hidden);
        load(b, hidden + in_hidden + M);
        load(gradient, dout + in_out);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const Activated gate = F::at(a[i]);
            const float passed = b[i];
            a[i] = gradient[i] * passed * gate.slope;
            b[i] = gradient[i] * gate.value;
            gradient[i] = gate.value * passed;
        }
        store(dhidden + in_hidden, a);
        store(dhidden + in_hidden + M, b);
        store(activated + in_out, gradient);
    });
}

// Calls launch with the width of a piece: the widest where all pointers, and rows of M numbers, begin at whole pieces.
template <typename E, typename Launch, typename... Pointers>
void with_width(int64_t M, const Launch& launch, const Pointers*... pointers) {
    if (M % kWidest<E> == 0 && (is_aligned(pointers, 16) && ...))
        launch(std::integral_constant<int, kWidest<E>>());
    else
        launch(std::integral_constant<int, 1>());
}

}  // namespace

template <typename E>
void activation_forward(Stream stream, Activation f, E* out, const E* hidden, int64_t N, int64_t M) {
    with_function<E>(f, [&](auto function) {
        using F = decltype(function);
        with_width<E>(
            F::kGated ? M : kWidest<E>,
            [&](auto width) {
                const unsigned blocks = blocks_for(N * M, kThreads * width, kMostBlocks);
                if constexpr (F::kGated)
                    MG_LAUNCH((gated_forward_kernel<F, E, width>), blocks, kThreads, 0, stream, out, hidden, N, M);
                else
                    MG_LAUNCH((forward_kernel<F, E, width>), blocks, kThreads, 0, stream, out, hidden, N * M);
            },
            out, hidden);
    });
}

template <typename E>
void activation_backward(Stream stream, Activation f, E* dhidden, E* activated, const E* hidden, const E* dout,
                         int64_t N, int64_t M) {
    with_function<E>(f, [&](auto function) {
        using F = decltype(function);
        with_width<E>(
            F::kGated ? M : kWidest<E>,
            [&](auto width) {
                const unsigned blocks = blocks_for(N * M, kThreads * width, kMostBlocks);
                if constexpr (F::kGated)
                    MG_LAUNCH((gated_backward_kernel<F, E, width>), blocks, kThreads, 0, stream, dhidden, activated,
                              hidden, dout, N, M);
                else
                    MG_LAUNCH((backward_kernel<F, E, width>), blocks, kThreads, 0, stream, dhidden, activated, hidden,
                              dout, N * M);
            },
            dhidden, activated, hidden, dout);
    });
}

#define MG_INSTANTIATE(E)                                                                    \
    template void activation_forward<E>(Stream, Activation, E*, const E*, int64_t, int64_t); \
    template void activation_backward<E>(Stream, Activation, E*, E*, const E*, const E*, int64_t, int64_t);
MG_INSTANTIATE(float)
MG_INSTANTIATE(Bf16)
#undef MG_INSTANTIATE

}  // namespace mg::cuda
