// Kernels without a defect that use all the simulator has: no build may complain of them, in any order of the threads, and their
// results are exact.

#include "selftest.h"

#include <cuda_bf16.h>

#include "cuda/ptx.h"

namespace {

using mg::cuda::cp_async_16;

__device__ float warp_sum(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

// Partial sums of blocks, added up by the last block; run twice, for the counter must be back at zero.
__global__ void sum_last_block(float* out, float* partial, const float* in, int n, unsigned* counter) {
    MG_SHARED(float, room, 32);
    MG_SHARED(unsigned, last, 1);
    float sum = 0.0f;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < static_cast<unsigned>(n); i += gridDim.x * blockDim.x)
        sum += in[i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0f;
        for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += room[w];
        partial[blockIdx.x] = sum;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (*last == 0) return;
    __threadfence();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < gridDim.x ? partial[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) out[0] = sum;
    }
}

// out[l] = what warp primitives say in lane l.
__global__ void warp_primitives(float* out) {
    const int lane = static_cast<int>(threadIdx.x);
    out[lane] = static_cast<float>(__shfl_sync(~0u, lane, 5));
    out[32 + lane] = static_cast<float>(__shfl_down_sync(~0u, static_cast<double>(lane), 3, 16));
    out[64 + lane] = static_cast<float>(__popc(__ballot_sync(~0u, lane % 3 == 0)) + 100 * __any_sync(~0u, lane == 31) +
                                        1000 * __all_sync(~0u, lane < 31));
    if (lane < 16)
        out[96 + lane] = static_cast<float>(__shfl_up_sync(0xffffu, lane, 1));
    else
        out[96 + lane] = static_cast<float>(__shfl_xor_sync(0xffff0000u, lane, 1));
    __syncwarp();
}

__global__ void block_votes(float* out) {
    const int i = static_cast<int>(threadIdx.x);
    out[i] = static_cast<float>(__syncthreads_count(i % 3 == 0) + 100 * __syncthreads_or(i == 64) +
                                1000 * __syncthreads_and(i < 64));
}

// A warp's 16x8 product of small whole numbers: a[r][k] = r + k, b[k][c] = k - c; ldmatrix in all its forms.
__global__ void one_product(float* out, bool b_by_columns) {
    MG_SHARED(uint16_t, a, 16 * 24);
    MG_SHARED(uint16_t, b, 16 * 24);
    const unsigned lane = threadIdx.x;
    for (unsigned i = lane; i < 256; i += 32)
        a[i / 16 * 24 + i % 16] = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(i / 16 + i % 16)));
    for (unsigned i = lane; i < 128; i += 32) {
        const unsigned k = i / 8, c = i % 8;
        b[b_by_columns ? c * 24 + k : k * 24 + c] =
            __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(k) - static_cast<float>(c)));
    }
    __syncwarp();
    unsigned fa[4], fb[2], again[4];
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    mg::cuda::ldmatrix_x4(fa, a + lane % 16 * 24 + lane / 16 * 8);
    if (b_by_columns) {
        mg::cuda::ldmatrix_x2(fb, b + lane % 8 * 24 + lane / 8 % 2 * 8);
    } else {
        mg::cuda::ldmatrix_x2_trans(fb, b + lane % 16 * 24);
        mg::cuda::ldmatrix_x4_trans(again, b + lane % 16 * 24);
        if (again[0] != fb[0] || again[1] != fb[1]) d[0] = NAN;
    }
    mg::cuda::mma_bf16_16816(d, fa, fb);
    for (unsigned i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

// Two stages of asynchronous copies; the last numbers are beyond the end and become zero.
__global__ void staged_copy(float* out, const float* in, int n) {
    MG_DYN_SHARED(float, stages);
    const int tiles = 4, of_tile = 128, i = static_cast<int>(threadIdx.x);
    const auto start = [&](int tile) {
        if (i < of_tile / 4) {
            const int at = tile * of_tile + i * 4;
            cp_async_16(stages + tile % 2 * of_tile + i * 4, in + at, at < n);
        }
        mg::cuda::cp_async_commit();
    };
    float sum = 0.0f;
    start(0);
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            start(tile + 1);
            mg::cuda::cp_async_wait<1>();
        } else {
            mg::cuda::cp_async_wait<0>();
        }
        __syncthreads();
        sum += stages[tile % 2 * of_tile + (i + 1) % of_tile];
        __syncthreads();
    }
    out[i] = sum;
}

__global__ void scattered_atomics(float* out, unsigned* counter) {
    atomicAdd(out + threadIdx.x % 4, 1.0f);
    atomicMax(reinterpret_cast<int*>(out) + 8, static_cast<int>(threadIdx.x));
    if (atomicCAS(counter, 0u, 7u) == 0u) out[9] = 1.0f;
}

}  // namespace

const std::vector<Case>& correct_cases() {
    static const std::vector<Case> cases = {
        {"sum_last_block",
         [](Buffers& b) {
             for (int i = 0; i < 2; ++i)
                 MG_LAUNCH(sum_last_block, 3, 64, 0, b.stream, b.out, b.out + 64, b.in, 512, b.counter);
         }},
        {"warp_primitives", [](Buffers& b) { MG_LAUNCH(warp_primitives, 1, 32, 0, b.stream, b.out); }},
        {"block_votes", [](Buffers& b) { MG_LAUNCH(block_votes, 1, 128, 0, b.stream, b.out); }},
        {"product_of_rows", [](Buffers& b) { MG_LAUNCH(one_product, 1, 32, 0, b.stream, b.out, false); }},
        {"product_of_columns", [](Buffers& b) { MG_LAUNCH(one_product, 1, 32, 0, b.stream, b.out, true); }},
        {"staged_copy",
         [](Buffers& b) {
             const size_t most = 100 << 10;  // more than a kernel gets unasked
             SUCCEEDS(cudaFuncSetAttribute(staged_copy, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(most)));
             MG_LAUNCH(staged_copy, 1, 128, most, b.stream, b.out, b.in, 500);
         }},
        {"scattered_atomics", [](Buffers& b) { MG_LAUNCH(scattered_atomics, 2, 64, 0, b.stream, b.out, b.counter); }},
    };
    return cases;
}
