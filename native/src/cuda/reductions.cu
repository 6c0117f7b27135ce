// Sums over long arrays: 4 bytes of memory a number and one or two operations, which memory bounds by far even though they are in
// double.  Each is one launch: a block adds up its share, and the last block to finish adds up what the others have found.
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kThreads = 256, kLossThreads = 1024;
constexpr int64_t kMostBlocks = 1024, kCounterBytes = 64;
static_assert(kCounterBytes + kMostBlocks * sizeof(double) <= kReductionScratchBytes, "a partial sum for each block");

struct Value {
    static __device__ __forceinline__ double of(float x) { return static_cast<double>(x); }
    static __device__ __forceinline__ float result(double total) { return static_cast<float>(total); }
};

struct Square {
    static __device__ __forceinline__ double of(float x) { return static_cast<double>(x) * static_cast<double>(x); }
    static __device__ __forceinline__ float result(double total) { return static_cast<float>(sqrt(total)); }
};

// The sum of one thread of `threads`; numbers after the last whole piece are single ones for the first threads.
template <typename Term, int kWidth>
__device__ __forceinline__ double own_sum(const float* x, int64_t count, int64_t thread, int64_t threads) {
    double sums[kWidth] = {};
    const int64_t whole = count / kWidth * kWidth;
#pragma unroll 4
    for (int64_t i = thread * kWidth; i < whole; i += threads * kWidth) {
        float values[kWidth];
        load(values, x + i);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) sums[k] += Term::of(values[k]);
    }
    if (whole + thread < count) sums[0] += Term::of(x[whole + thread]);
    double total = 0.0;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) total += sums[k];
    return total;
}

template <typename Term, int kWidth>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(float* result, const float* x, unsigned* counter, double* partials, int64_t count) {
    MG_SHARED(double, room, kThreads / kWarp);
    MG_SHARED(unsigned, is_last, 1);
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
    const double of_block = block_sum(own_sum<Term, kWidth>(x, count, thread, threads), room);
    if (threadIdx.x == 0) partials[blockIdx.x] = of_block;
    if (!last_block(counter, is_last)) return;
    double own = 0.0;
    for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) own += partials[block];
    const double total = block_sum(own, room);
    if (threadIdx.x == 0) *result = Term::result(total);
}

template <typename Term>
void reduce(Stream stream, float* result, const float* x, void* scratch, int64_t count) {
    unsigned* const counter = static_cast<unsigned*>(scratch);
    double* const partials = reinterpret_cast<double*>(static_cast<char*>(scratch) + kCounterBytes);
    const unsigned blocks = blocks_for(count, kThreads * 16, kMostBlocks);
    if (is_aligned(x, 16))
        MG_LAUNCH((reduce_kernel<Term, 4>), blocks, kThreads, 0, stream, result, x, counter, partials, count);
    else
        MG_LAUNCH((reduce_kernel<Term, 1>), blocks, kThreads, 0, stream, result, x, counter, partials, count);
}

// One block: a batch has few losses, and no other block has to be waited for.
template <int kWidth>
__global__ void __launch_bounds__(kLossThreads)
    batch_loss_kernel(StepState* state, const float* losses, const BatchScale* scale, int64_t N) {
    MG_SHARED(double, room, kLossThreads / kWarp);
    const double total = block_sum(own_sum<Value, kWidth>(losses, N, threadIdx.x, kLossThreads), room);
    if (threadIdx.x != 0) return;
    const float loss = static_cast<float>(total) * scale->loss;
    state->loss = loss;
    if (scale->weight != 0.0f) state->total_loss += loss * scale->weight;
}

}  // namespace

void sum(Stream stream, float* result, const float* x, void* scratch, int64_t count) {
    reduce<Value>(stream, result, x, scratch, count);
}

void global_norm(Stream stream, float* result, const float* x, void* scratch, int64_t count) {
    reduce<Square>(stream, result, x, scratch, count);
}

void batch_loss(Stream stream, StepState* state, const float* losses, const BatchScale* scale, int64_t N) {
    if (is_aligned(losses, 16))
        MG_LAUNCH((batch_loss_kernel<4>), 1, kLossThreads, 0, stream, state, losses, scale, N);
    else
        MG_LAUNCH((batch_loss_kernel<1>), 1, kLossThreads, 0, stream, state, losses, scale, N);
}

}  // namespace mg::cuda
