// Softmax cross-entropy of rows of logits, natural logarithm.  A logit costs 4 bytes of memory in and, with a gradient, an Element
// out (the second read of a row comes from the L2 cache), and two exponentials with about 30 operations: in Bf16 both limits are near.
//   loss = log(sum(exp(l))) - l[target], with the row's maximum taken out first; 0 where the target is -1
//   gradient scale (softmax(l) - onehot(target)), over the row's own logits from its first byte on; 0 where the target is -1
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kMostThreads = 1024;
constexpr float kLeast = -3.402823466e38f;  // below all logits but -inf, and finite: exp(-inf - kLeast) is 0, not NaN

// exp(x) for x <= 0.  __expf(x) rounds x log2(e), an error of 6e-8 |x| of the result, as large as that of the difference x itself
// (a logit less the maximum), and 2 units in the last place: far less than the rounding of a gradient to Bf16.
template <typename E>
__device__ __forceinline__ float exponential(float x) {
    return sizeof(E) < sizeof(float) ? __expf(x) : expf(x);
}

// The largest value of a block's threads, of which room holds one a warp; room is free again after the call.
__device__ __forceinline__ float block_max(float value, float* room) {
    const int warps = static_cast<int>(blockDim.x) / kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    value = warp_max(value);
    if (lane == 0) room[warp] = value;
    __syncthreads();
    value = room[lane < warps ? lane : 0];
    __syncthreads();
    return warp_max(value);
}

// The largest logit so far, and the sum of exp(l - largest).
struct Running {
    float most, total;
};

template <typename E, int kWidth>
__device__ __forceinline__ void take(Running& running, const float* logits, int64_t c, int64_t V) {
    float values[kWidth];
    load(values, logits + c);
    float most = running.most;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
        if (c + i >= V) values[i] = kLeast;
        most = fmaxf(most, values[i]);
    }
    float total = running.total * exponential<E>(running.most - most);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
        if (c + i < V) total += exponential<E>(values[i] - most);
    running = {most, total};
}

template <typename E, int kWidth>
__device__ __forceinline__ void zero_row(E* row, int64_t stride) {
    const float zeros[kWidth] = {};
    for (int64_t c = threadIdx.x * kWidth; c < stride; c += blockDim.x * kWidth) store(row + c, zeros);
}

// A block a row.
template <typename E, int kWidth>
__global__ void __launch_bounds__(kMostThreads) loss_rows_kernel(float* losses, float* logits, const int32_t* targets,
                                                                 const float* scale, int64_t V, int64_t stride) {
    MG_SHARED(float, room, kWarp);
    const int64_t row = blockIdx.x, own = threadIdx.x * kWidth, tile = blockDim.x * kWidth;
    float* const l = logits + row * stride;
    E* const dl = reinterpret_cast<E*>(l);
    const int32_t target = targets[row];
    if (target < 0) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        if (scale != nullptr) zero_row<E, kWidth>(dl, stride);
        return;
    }

    const float of_target = l[target];
    Running running = {kLeast, 0.0f};
#pragma unroll 2
    for (int64_t c = own; c < V; c += tile) take<E, kWidth>(running, l, c, V);
    const float most = block_max(running.most, room);
    const float sum = block_sum(running.total * exponential<E>(running.most - most), room);
    if (threadIdx.x == 0) losses[row] = logf(sum) - (of_target - most);
    if (scale == nullptr) return;

    const float factor = *scale / sum;
    float values[kWidth], next[kWidth] = {};
    if (own < stride) load(next, l + own);
    for (int64_t begin = 0; begin < stride; begin += tile) {
        const int64_t c = begin + own;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] = next[i];
        if (c + tile < stride) load(next, l + c + tile);
        // Gradients narrower than logits are written where other threads' logits lie, of this tile or of one before.
        if constexpr (sizeof(E) < sizeof(float)) __syncthreads();
        if (c >= stride) continue;
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            const float e = exponential<E>(values[i] - most);
            const float gradient = (c + i == target ? e - sum : e) * factor;
            values[i] = c + i < V ? gradient : 0.0f;
        }
        store(dl + c, values);
    }
}

template <typename E, int kWidth>
void launch(Stream stream, float* losses, float* logits, const int32_t* targets, const float* scale, int64_t rows,
            int64_t V, int64_t stride) {
    // A few pieces for each thread: long rows take all threads, short ones leave room for more blocks.
    int threads = kWarp;
    while (threads < kMostThreads && threads * kWidth * 2 < V) threads *= 2;
    MG_LAUNCH((loss_rows_kernel<E, kWidth>), static_cast<unsigned>(rows), threads, 0, stream, losses, logits, targets,
              scale, V, stride);
}

}  // namespace

template <typename E>
void loss_rows(Stream stream, float* losses, float* logits, const int32_t* targets, const float* scale, int64_t rows,
               int64_t V, int64_t stride) {
    if (stride % 8 == 0 && is_aligned(logits, 16))
        launch<E, 8>(stream, losses, logits, targets, scale, rows, V, stride);
    else
        launch<E, 1>(stream, losses, logits, targets, scale, rows, V, stride);
}

template void loss_rows<float>(Stream, float*, float*, const int32_t*, const float*, int64_t, int64_t, int64_t);
template void loss_rows<Bf16>(Stream, float*, float*, const int32_t*, const float*, int64_t, int64_t, int64_t);

}  // namespace mg::cuda
