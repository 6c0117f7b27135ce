// GELU in its tanh form (Hendrycks & Gimpel 2016) and its derivative.  Bound by memory: in Bf16 4 bytes a number forward and 6
// backward, in float 8 and 12, with about 25 and 40 operations.
//   gelu(x) = 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3)
//           = x s with s = 1 / (1 + exp(-2u)), which keeps the relative error small where gelu goes to 0
//   gelu'(x) = s + x s (1 - s) 2 u'
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;
constexpr float kTwiceSqrtTwoOverPi = 1.595769122f, kCubic = 0.044715f;
// 2u log2(e) = x (kLinear + kCubed x^2): the exponent of a power of 2, which is what the hardware has.
constexpr float kLinear = 2.302208198f, kCubed = 0.102943240f;

struct Gate {
    float open;    // s
    float closed;  // 1 - s, without the cancellation
};

// The power is taken of -|2u|: it is at most 1, so nothing overflows and the smaller of s and 1 - s keeps its relative error.  That
// is at most 1e-6 for |x| < 4, where the exponent is 16: its rounding to 2^-20 and the 2 units in the last place of exp2f.
// __fdividef is off by 2 units in the last place too, for divisors between 1 and 2: taken where the result is rounded to Bf16.
template <typename E>
__device__ __forceinline__ Gate gate(float x) {
    const float exponent = x * (kLinear + kCubed * x * x);
    const float power = exp2f(-fabsf(exponent));
    const float larger = sizeof(E) < sizeof(float) ? __fdividef(1.0f, 1.0f + power) : 1.0f / (1.0f + power);
    const float smaller = power * larger;
    return exponent < 0.0f ? Gate{smaller, larger} : Gate{larger, smaller};
}

template <typename E>
__device__ __forceinline__ float gelu_of(float x) {
    return x * gate<E>(x).open;
}

template <typename E>
__device__ __forceinline__ float derivative(float x) {
    const Gate g = gate<E>(x);
    return g.open + x * g.open * g.closed * (kTwiceSqrtTwoOverPi * (1.0f + 3.0f * kCubic * x * x));
}

template <int kWidth, typename E>
__device__ __forceinline__ void gelu_piece(E* out, const E* hidden) {
    float values[kWidth];
    load(values, hidden);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = gelu_of<E>(values[i]);
    store(out, values);
}

template <int kWidth, typename E>
__device__ __forceinline__ void gelu_backward_piece(E* dhidden, const E* hidden) {
    float values[kWidth], x[kWidth];
    load(values, dhidden);
    load(x, hidden);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] *= derivative<E>(x[i]);
    store(dhidden, values);
}

// The numbers after the last whole piece are single ones for the first threads.
template <typename E, int kWidth>
__global__ void __launch_bounds__(kThreads) gelu_kernel(E* out, const E* hidden, int64_t count) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, whole = count / kWidth * kWidth;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
    for (int64_t i = thread * kWidth; i < whole; i += step) gelu_piece<kWidth>(out + i, hidden + i);
    if (whole + thread < count) gelu_piece<1>(out + whole + thread, hidden + whole + thread);
}

template <typename E, int kWidth>
__global__ void __launch_bounds__(kThreads) gelu_backward_kernel(E* dhidden, const E* hidden, int64_t count) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, whole = count / kWidth * kWidth;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
    for (int64_t i = thread * kWidth; i < whole; i += step) gelu_backward_piece<kWidth>(dhidden + i, hidden + i);
    if (whole + thread < count) gelu_backward_piece<1>(dhidden + whole + thread, hidden + whole + thread);
}

}  // namespace

template <typename E>
void gelu(Stream stream, E* out, const E* hidden, int64_t count) {
    constexpr int kWidth = kWidest<E>;
    if (is_aligned(out, 16) && is_aligned(hidden, 16))
        MG_LAUNCH((gelu_kernel<E, kWidth>), blocks_for(count, kThreads * kWidth, kMostBlocks), kThreads, 0, stream, out,
                  hidden, count);
    else
        MG_LAUNCH((gelu_kernel<E, 1>), blocks_for(count, kThreads, kMostBlocks), kThreads, 0, stream, out, hidden,
                  count);
}

template <typename E>
void gelu_backward(Stream stream, E* dhidden, const E* hidden, int64_t count) {
    constexpr int kWidth = kWidest<E>;
    if (is_aligned(dhidden, 16) && is_aligned(hidden, 16))
        MG_LAUNCH((gelu_backward_kernel<E, kWidth>), blocks_for(count, kThreads * kWidth, kMostBlocks), kThreads, 0,
                  stream, dhidden, hidden, count);
    else
        MG_LAUNCH((gelu_backward_kernel<E, 1>), blocks_for(count, kThreads, kMostBlocks), kThreads, 0, stream, dhidden,
                  hidden, count);
}

#define MG_INSTANTIATE(E)                                 \
    template void gelu<E>(Stream, E*, const E*, int64_t); \
    template void gelu_backward<E>(Stream, E*, const E*, int64_t);
MG_INSTANTIATE(float)
MG_INSTANTIATE(Bf16)
#undef MG_INSTANTIATE

}  // namespace mg::cuda
