// Small things around products.  All are bound by memory, with one or two operations a number: convert reads a float and writes an
// Element, add moves 8 bytes and one Element, or two, add_bias two Elements (the bias stays in cache), column_sums reads one.
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int64_t kMostBlocks = 132 * 16;

// --- one number after the other

template <int kWidth, typename E>
__device__ __forceinline__ void convert_piece(E* out, const float* x) {
    float values[kWidth];
    load(values, x);
    store(out, values);
}

template <int kWidth, typename E>
__device__ __forceinline__ void add_piece(float* y, E* elements, const E* x) {
    float values[kWidth], more[kWidth];
    load(values, y);
    load(more, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += more[i];
    store(y, values);
    if (elements != nullptr) store(elements, values);
}

template <typename E, int kWidth>
__global__ void __launch_bounds__(kThreads) convert_kernel(E* out, const float* x, int64_t count) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, whole = count / kWidth * kWidth;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
    for (int64_t i = thread * kWidth; i < whole; i += step) convert_piece<kWidth>(out + i, x + i);
    if (whole + thread < count) convert_piece<1>(out + whole + thread, x + whole + thread);
}

// A null `elements` stays null.
template <typename T>
__device__ __forceinline__ T* further(T* pointer, int64_t numbers) {
    return pointer == nullptr ? nullptr : pointer + numbers;
}

template <typename E, int kWidth>
__global__ void __launch_bounds__(kThreads) add_kernel(float* y, E* elements, const E* x, int64_t count) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, whole = count / kWidth * kWidth;
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
    for (int64_t i = thread * kWidth; i < whole; i += step) add_piece<kWidth>(y + i, further(elements, i), x + i);
    const int64_t single = whole + thread;
    if (single < count) add_piece<1>(y + single, further(elements, single), x + single);
}

// --- rows

// A thread goes on to the piece that lies a grid further; only its first column takes a division.
template <typename E, int kWidth>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(E* x, const float* bias, int64_t N, int64_t columns) {
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth, further = step % columns;
    int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth, column = i % columns;
    for (; i < N * columns; i += step) {
        float values[kWidth], more[kWidth];
        load(values, x + i);
        load(more, bias + column);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) values[k] += more[k];
        store(x + i, values);
        column += further;
        if (column >= columns) column -= columns;
    }
}

// --- sums of columns: blocks of one column of the grid share kWarp pieces of each row, blocks of one row of it some rows.  The last
// block of a column of the grid to finish adds up what the others have found.

constexpr int64_t kRowsPerBlock = 64, kMostRowBlocks = 128, kMostColumnBlocks = 1024;
constexpr size_t kCounterBytes = kMostColumnBlocks * sizeof(unsigned);

int64_t row_blocks(int64_t N) { return blocks_for(N, kRowsPerBlock, kMostRowBlocks); }

// The sums of rows [begin, end) in the block's columns from c on; the first warp's threads get them.  Each warp has every
// kWarps-th row; then their sums are added in the warps' order.
template <typename E, int kWidth>
__device__ __forceinline__ void sum_rows(float (&sums)[kWidth], float* room, const E* x, int64_t begin, int64_t end,
                                         int64_t columns, int64_t c) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] = 0.0f;
    if (c < columns) {
#pragma unroll 4
        for (int64_t row = begin + warp; row < end; row += kWarps) {
            float values[kWidth];
            load(values, x + row * columns + c);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sums[i] += values[i];
        }
    }
    // Number i of all threads, then number i + 1: lanes side by side lie in different banks.
#pragma unroll
    for (int i = 0; i < kWidth; ++i) room[i * kThreads + threadIdx.x] = sums[i];
    __syncthreads();
    if (warp == 0)
        for (int other = 1; other < kWarps; ++other)
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sums[i] += room[i * kThreads + other * kWarp + lane];
    __syncthreads();
}

template <typename E, int kWidth>
__global__ void __launch_bounds__(kThreads)
    column_sums_kernel(float* out, const E* x, unsigned* counters, float* partials, int64_t N, int64_t columns) {
    MG_SHARED(float, room, kThreads* kWidth);
    MG_SHARED(unsigned, is_last, 1);
    constexpr int64_t kColumns = kWarp * kWidth;
    const int64_t rows = ceil_div(N, gridDim.y), begin = blockIdx.y * rows, end = begin + rows < N ? begin + rows : N;
    const int64_t step = gridDim.x * kColumns, own = threadIdx.x % kWarp * kWidth;
    for (int64_t base = blockIdx.x * kColumns; base < columns; base += step) {
        float sums[kWidth];
        sum_rows(sums, room, x, begin, end, columns, base + own);
        if (threadIdx.x < kWarp && base + own < columns) store(partials + blockIdx.y * columns + base + own, sums);
    }
    if (!last_of(gridDim.y, counters + blockIdx.x, is_last)) return;
    for (int64_t base = blockIdx.x * kColumns; base < columns; base += step) {
        float sums[kWidth];
        sum_rows(sums, room, partials, 0, gridDim.y, columns, base + own);
        if (threadIdx.x < kWarp && base + own < columns)
#pragma unroll
            for (int i = 0; i < kWidth; ++i) out[base + own + i] += sums[i];
    }
}

template <typename E, int kWidth>
void launch_column_sums(Stream stream, float* out, const E* x, void* scratch, int64_t N, int64_t columns) {
    unsigned* const counters = static_cast<unsigned*>(scratch);
    float* const partials = reinterpret_cast<float*>(static_cast<char*>(scratch) + kCounterBytes);
    const dim3 grid(blocks_for(columns, kWarp * kWidth, kMostColumnBlocks), static_cast<unsigned>(row_blocks(N)));
    MG_LAUNCH((column_sums_kernel<E, kWidth>), grid, kThreads, 0, stream, out, x, counters, partials, N, columns);
}

}  // namespace

template <typename E>
void convert(Stream stream, E* out, const float* x, int64_t count) {
    constexpr int kWidth = kWidest<E>;
    if (is_aligned(out, 16) && is_aligned(x, 16))
        MG_LAUNCH((convert_kernel<E, kWidth>), blocks_for(count, kThreads * kWidth, kMostBlocks), kThreads, 0, stream,
                  out, x, count);
    else
        MG_LAUNCH((convert_kernel<E, 1>), blocks_for(count, kThreads, kMostBlocks), kThreads, 0, stream, out, x, count);
}

template <typename E>
void add(Stream stream, float* y, E* elements, const E* x, int64_t count) {
    constexpr int kWidth = kWidest<E>;
    if (is_aligned(y, 16) && is_aligned(elements, 16) && is_aligned(x, 16))
        MG_LAUNCH((add_kernel<E, kWidth>), blocks_for(count, kThreads * kWidth, kMostBlocks), kThreads, 0, stream, y,
                  elements, x, count);
    else
        MG_LAUNCH((add_kernel<E, 1>), blocks_for(count, kThreads, kMostBlocks), kThreads, 0, stream, y, elements, x,
                  count);
}

template <typename E>
void add_bias(Stream stream, E* x, const float* bias, int64_t N, int64_t columns) {
    constexpr int kWidth = kWidest<E>;
    if (columns % kWidth == 0 && is_aligned(x, 16) && is_aligned(bias, 16))
        MG_LAUNCH((add_bias_kernel<E, kWidth>), blocks_for(N * columns, kThreads * kWidth, kMostBlocks), kThreads, 0,
                  stream, x, bias, N, columns);
    else
        MG_LAUNCH((add_bias_kernel<E, 1>), blocks_for(N * columns, kThreads, kMostBlocks), kThreads, 0, stream, x, bias,
                  N, columns);
}

size_t column_sums_scratch_bytes(int64_t N, int64_t columns) {
    return kCounterBytes + static_cast<size_t>(row_blocks(N) * columns) * sizeof(float);
}

template <typename E>
void column_sums(Stream stream, float* out, const E* x, void* scratch, int64_t N, int64_t columns) {
    constexpr int kWidth = kWidest<E>;
    if (columns % kWidth == 0 && is_aligned(x, 16))
        launch_column_sums<E, kWidth>(stream, out, x, scratch, N, columns);
    else
        launch_column_sums<E, 1>(stream, out, x, scratch, N, columns);
}

#define MG_INSTANTIATE(E)                                                  \
    template void convert<E>(Stream, E*, const float*, int64_t);           \
    template void add<E>(Stream, float*, E*, const E*, int64_t);           \
    template void add_bias<E>(Stream, E*, const float*, int64_t, int64_t); \
    template void column_sums<E>(Stream, float*, const E*, void*, int64_t, int64_t);
MG_INSTANTIATE(float)
MG_INSTANTIATE(Bf16)
#undef MG_INSTANTIATE

}  // namespace mg::cuda
