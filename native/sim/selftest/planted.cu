// Kernels with one defect each, which the simulator must find; tests/test_sim.py says which build finds which.

#include "selftest.h"

#include "cuda/ptx.h"

namespace {

// --- no order between threads

__global__ void no_barrier(float* out) {
    MG_SHARED(float, s, 128);
    s[threadIdx.x] = static_cast<float>(threadIdx.x);
    out[threadIdx.x] = s[(threadIdx.x + 33) % 128];
}

__global__ void buffer_used_again(float* out) {  // no barrier before the next round writes
    MG_SHARED(float, s, 128);
    float sum = 0.0f;
    for (unsigned i = 0; i < 4; ++i) {
        s[threadIdx.x] = static_cast<float>(threadIdx.x + i);
        __syncthreads();
        sum += s[(threadIdx.x + 33) % 128];
    }
    out[threadIdx.x] = sum;
}

__global__ void no_syncwarp(float* out) {
    MG_SHARED(float, s, 32);
    s[threadIdx.x] = static_cast<float>(threadIdx.x);
    out[threadIdx.x] = s[(threadIdx.x + 1) % 32];
}

__global__ void shuffle_is_no_barrier(float* out) {  // lanes meet, but memory is not ordered
    MG_SHARED(float, s, 32);
    s[threadIdx.x] = static_cast<float>(threadIdx.x);
    const float other = __shfl_xor_sync(~0u, 1.0f, 1);
    out[threadIdx.x] = s[(threadIdx.x + 1) % 32] + other;
}

__global__ void blocks_add_without_atomic(float* out) {
    if (threadIdx.x == 5) out[0] += 1.0f;
}

__global__ void last_block_without_fence(float* out, unsigned* counter) {
    MG_SHARED(unsigned, last, 1);
    if (threadIdx.x == 0) {
        out[1 + blockIdx.x] = 1.0f;
        *last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (*last != 0 && threadIdx.x == 0)
        for (unsigned i = 0; i < gridDim.x; ++i) out[0] += out[1 + i];
}

__global__ void matrix_without_syncwarp(float* out) {
    MG_SHARED(uint16_t, s, 8 * 32);
    for (int i = 0; i < 8; ++i) s[threadIdx.x * 8 + i] = 0;
    unsigned registers[4];
    mg::cuda::ldmatrix_x4(registers, s + threadIdx.x * 8);
    out[threadIdx.x] = static_cast<float>(registers[0]);
}

__global__ void copy_without_barrier(float* out,
                                     const float* in) {  // waited for by each thread, but not for each other
    MG_SHARED(float, s, 512);
    mg::cuda::cp_async_16(s + threadIdx.x * 4, in + threadIdx.x * 4);
    mg::cuda::cp_async_commit();
    mg::cuda::cp_async_wait<0>();
    out[threadIdx.x] = s[(threadIdx.x * 4 + 4) % 512];
}

// --- memory

__global__ void past_end(float* out, int n) {
    if (static_cast<int>(threadIdx.x) <= n) out[threadIdx.x] = 1.0f;
}

__global__ void past_end_shared(float* out) {
    MG_SHARED(float, s, 128);
    s[threadIdx.x + 1] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

__global__ void past_end_dynamic_shared(float* out) {
    MG_DYN_SHARED(float, s);
    s[threadIdx.x + 1] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

__global__ void matrix_past_end(float* out) {
    MG_SHARED(uint16_t, s, 8 * 32);
    for (int i = 0; i < 8; ++i) s[threadIdx.x * 8 + i] = 0;
    __syncwarp();
    unsigned registers[4];
    mg::cuda::ldmatrix_x4(registers, s + threadIdx.x * 8 + 8);
    out[threadIdx.x] = static_cast<float>(registers[0]);
}

__global__ void misaligned(float* out, const float* in) {
    const float4 v = *reinterpret_cast<const float4*>(in + 1 + threadIdx.x * 4);
    out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

__global__ void copy_misaligned(float* out, const float* in) {
    MG_SHARED(float, s, 516);
    mg::cuda::cp_async_16(s + threadIdx.x * 4 + 1, in + threadIdx.x * 4);
    mg::cuda::cp_async_commit();
    mg::cuda::cp_async_wait<0>();
    out[threadIdx.x] = s[threadIdx.x * 4 + 1];
}

__global__ void uninitialised_shared(float* out) {
    MG_SHARED(float, s, 128);
    if (threadIdx.x < 127) s[threadIdx.x] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}

__global__ void copy_not_waited_for(float* out, const float* in) {
    MG_SHARED(float, s, 512);
    mg::cuda::cp_async_16(s + threadIdx.x * 4, in + threadIdx.x * 4);
    mg::cuda::cp_async_commit();
    out[threadIdx.x] = s[threadIdx.x * 4];
    mg::cuda::cp_async_wait<0>();
}

__global__ void copy_never_waited_for(float* out, const float* in) {
    MG_SHARED(float, s, 512);
    mg::cuda::cp_async_16(s + threadIdx.x * 4, in + threadIdx.x * 4);
    out[threadIdx.x] = 1.0f;
}

// --- collectives

__global__ void divergent_barrier(float* out) {
    if (threadIdx.x < 64) {
        out[0] = 1.0f;
        __syncthreads();
    } else {
        __syncthreads();
        out[1] = 1.0f;
    }
}

__global__ void early_exit(float* out, int n) {
    if (static_cast<int>(threadIdx.x) >= n) return;
    __syncthreads();
    out[threadIdx.x] = 1.0f;
}

__global__ void half_a_shuffle(float* out) {  // half of the warp is elsewhere
    float v = static_cast<float>(threadIdx.x);
    if (threadIdx.x % 32 < 16)
        v += __shfl_xor_sync(~0u, v, 1);
    else
        __syncwarp();
    out[threadIdx.x] = v;
}

__global__ void shuffle_deadlock(float* out) {
    float v = static_cast<float>(threadIdx.x);
    if (threadIdx.x % 32 < 16) v += __shfl_xor_sync(~0u, v, 1);
    __syncthreads();
    out[threadIdx.x] = v;
}

__global__ void shuffle_from_nobody(float* out) {  // a lane outside the mask
    float v = static_cast<float>(threadIdx.x);
    if (threadIdx.x % 32 < 16) v += __shfl_xor_sync(0xffffu, v, 16);
    out[threadIdx.x] = v;
}

}  // namespace

// Each on one block of 128 threads unless it says otherwise; the output has 128 numbers, the input 512.
const std::vector<Case>& planted_cases() {
#define PLANTED(kernel, blocks, threads, shared, ...)                                                  \
    {                                                                                                  \
        #kernel, [](Buffers& b) { MG_LAUNCH(kernel, blocks, threads, shared, b.stream, __VA_ARGS__); } \
    }
    static const std::vector<Case> cases = {
        PLANTED(no_barrier, 1, 128, 0, b.out),
        PLANTED(buffer_used_again, 1, 128, 0, b.out),
        PLANTED(no_syncwarp, 1, 32, 0, b.out),
        PLANTED(shuffle_is_no_barrier, 1, 32, 0, b.out),
        PLANTED(blocks_add_without_atomic, 4, 32, 0, b.out),
        PLANTED(last_block_without_fence, 4, 32, 0, b.out, b.counter),
        PLANTED(matrix_without_syncwarp, 1, 32, 0, b.out),
        PLANTED(copy_without_barrier, 1, 128, 0, b.out, b.in),
        PLANTED(past_end, 1, 256, 0, b.out, 128),
        PLANTED(past_end_shared, 1, 128, 0, b.out),
        PLANTED(past_end_dynamic_shared, 1, 128, 512, b.out),
        PLANTED(matrix_past_end, 1, 32, 0, b.out),
        PLANTED(misaligned, 1, 8, 0, b.out, b.in),
        PLANTED(copy_misaligned, 1, 128, 0, b.out, b.in),
        PLANTED(uninitialised_shared, 1, 128, 0, b.out),
        PLANTED(copy_not_waited_for, 1, 128, 0, b.out, b.in),
        PLANTED(copy_never_waited_for, 1, 128, 0, b.out, b.in),
        PLANTED(divergent_barrier, 1, 128, 0, b.out),
        PLANTED(early_exit, 1, 128, 0, b.out, 100),
        PLANTED(half_a_shuffle, 1, 128, 0, b.out),
        PLANTED(shuffle_deadlock, 1, 128, 0, b.out),
        PLANTED(shuffle_from_nobody, 1, 128, 0, b.out),
    };
#undef PLANTED
    return cases;
}
