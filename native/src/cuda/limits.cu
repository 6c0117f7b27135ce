// What the GPU can do at most, to measure everything else against: multiply-adds of operands that never leave the registers, 4096
// operations an instruction of the tensor cores or 2 of a float unit; and a plain read of memory, whose sum keeps the reads alive.
#include "cuda/check.h"
#include "cuda/kernel.h"
#include "cuda/launchers.h"
#include "cuda/ptx.h"

namespace mg::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTiles = 8;    // independent sums of a warp's tensor core instructions: more than their latency
constexpr int kFloats = 16;  // and of a thread's multiply-adds
constexpr double kTileOperations = 2.0 * 16 * 8 * 16;

// mma.sync is as much as sm_80 has; on sm_90 wgmma reaches about half as much again.
__global__ void __launch_bounds__(kThreads) peak_bf16_kernel(float* sink, int64_t rounds) {
    const unsigned ones = 0x3f803f80u;
    const unsigned a[4] = {ones, ones, ones, ones}, b[2] = {ones - threadIdx.x, ones};
    float sums[kTiles][4] = {};
    for (int64_t round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < kTiles; ++i) mma_bf16_16816(sums[i], a, b);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) total += (sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3]);
    // The result decides nothing, but the compiler doesn't know.
    if (total == -1.0f) *sink = total;
}

__global__ void __launch_bounds__(kThreads) peak_float_kernel(float* sink, int64_t rounds) {
    const float factor = 1.0f - static_cast<float>(threadIdx.x + 1) / 1024.0f, term = 0.5f;
    float sums[kFloats];
#pragma unroll
    for (int i = 0; i < kFloats; ++i) sums[i] = static_cast<float>(i);
#pragma unroll 4
    for (int64_t round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < kFloats; ++i) sums[i] = fmaf(sums[i], factor, term);
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kFloats; ++i) total += sums[i];
    if (total == -1.0f) *sink = total;
}

// 4 blocks a multiprocessor: no more than run at once, so that all end together, and enough to hide every latency.
int64_t blocks_at_once() {
    int device = 0, processors = 1;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return static_cast<int64_t>(processors) * 4;
}

}  // namespace

template <>
double peak_products<float>(Stream stream, float* sink, int64_t rounds) {
    const int64_t blocks = blocks_at_once();
    MG_LAUNCH(peak_float_kernel, static_cast<unsigned>(blocks), kThreads, 0, stream, sink, rounds);
    return 2.0 * kFloats * kThreads * static_cast<double>(blocks) * static_cast<double>(rounds);
}

template <>
double peak_products<Bf16>(Stream stream, float* sink, int64_t rounds) {
    const int64_t blocks = blocks_at_once();
    MG_LAUNCH(peak_bf16_kernel, static_cast<unsigned>(blocks), kThreads, 0, stream, sink, rounds);
    return kTileOperations * kTiles * (kThreads / kWarp) * static_cast<double>(blocks) * static_cast<double>(rounds);
}

void read_memory(Stream stream, float* result, const void* memory, void* scratch, size_t bytes) {
    sum(stream, result, static_cast<const float*>(memory), scratch, static_cast<int64_t>(bytes / sizeof(float)));
}

}  // namespace mg::cuda
