// What every .cu file starts from.  The same text is compiled by nvcc and, with native/sim standing in for <cuda_runtime.h>, by
// g++: that is why kernels are launched, and shared arrays declared, through macros, and why no file but ptx.h holds assembly.
#pragma once

#include "cuda/launch_count.h"
// Each launch adds one to the count that benchmarks and tests read.
#define MG_COUNT_LAUNCH() ::mg::cuda::count_launch()

#include <cuda_runtime.h>

#include <cstdint>

#if !defined(MG_LAUNCH)
#define MG_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    (MG_COUNT_LAUNCH(), kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__))
#define MG_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define MG_DYN_SHARED(type, name)                                       \
    extern __shared__ __align__(128) unsigned char mg_dynamic_shared[]; \
    type* const name = reinterpret_cast<type*>(mg_dynamic_shared)
#endif

namespace mg::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__host__ __device__ constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Blocks for so many pieces of work; a grid of `most` goes on with the rest in strides.
inline unsigned blocks_for(int64_t pieces, int64_t pieces_per_block, int64_t most) {
    const int64_t blocks = ceil_div(pieces, pieces_per_block);
    return static_cast<unsigned>(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

inline bool is_aligned(const void* pointer, size_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

// Over a warp, or over each kLanes neighbouring lanes of it; every lane gets the result.
template <int kLanes = kWarp, typename T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
    return value;
}

template <int kLanes = kWarp>
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
    return value;
}

// The sum over a block of whole warps, at most 1024 threads, in an order that depends on the block's size alone; every thread
// gets it.  `room` holds a number for each warp, and is free again after the call.
template <typename T>
__device__ __forceinline__ T block_sum(T value, T* room) {
    const int warps = static_cast<int>(blockDim.x) / kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    value = warp_sum(value);
    if (lane == 0) room[warp] = value;
    __syncthreads();
    value = lane < warps ? room[lane] : T(0);
    __syncthreads();
    return warp_sum(value);
}

// Whether this block is the last of `blocks` to come here.  What the others wrote before is then visible to it, and so it can
// add up their partial results in one fixed order, within the same launch.  *counter is 0 before and after a launch.
// `is_last` is one shared number.  Call with all threads of the block.
__device__ __forceinline__ bool last_of(unsigned blocks, unsigned* counter, unsigned* is_last) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *is_last = atomicInc(counter, blocks - 1) == blocks - 1 ? 1u : 0u;
    __syncthreads();
    if (*is_last == 0) return false;
    __threadfence();
    return true;
}

// The same among all blocks of the grid.
__device__ __forceinline__ bool last_block(unsigned* counter, unsigned* is_last) {
    return last_of(gridDim.x * gridDim.y * gridDim.z, counter, is_last);
}

}  // namespace mg::cuda
