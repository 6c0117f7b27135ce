// The words of the kernel language: __global__ and its kin, threadIdx and its kin, shared memory, barriers.
#pragma once

#include <stddef.h>

#include "vector_types.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

namespace mgsim {

// Where a collective is called from, so that a mismatch can be named.
struct Site {
    const char* file;
    int line;
    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
};

// What a kernel may ask of the CUDA thread that runs; the scheduler's own part of a thread lies behind it.
struct Thread {
    uint3 index;
    unsigned lane, warp;
};

struct Current {
    Thread* thread;  // null: no kernel runs, this is host code
    uint3 block;
    dim3 block_size, grid_size;
};
extern Current current;

enum class Vote { kNone, kCount, kAnd, kOr };
int block_barrier(Vote vote, int value, Site site);
void* shared_array(const void* key, size_t bytes);  // of the running block; the key names the declaration
void* dynamic_shared_memory();
void fence();  // __threadfence

}  // namespace mgsim

#define threadIdx (mgsim::current.thread->index)
#define blockIdx (mgsim::current.block)
#define blockDim (mgsim::current.block_size)
#define gridDim (mgsim::current.grid_size)
constexpr int warpSize = 32;

// One array for each declaration, as in CUDA, where a shared array in a device function exists once however often it is called.
#define MG_SHARED(type, name, count)    \
    static char name##_declaration = 0; \
    type* const name = static_cast<type*>(mgsim::shared_array(&name##_declaration, sizeof(type) * (count)))
#define MG_DYN_SHARED(type, name) type* const name = static_cast<type*>(mgsim::dynamic_shared_memory())

inline void __syncthreads(mgsim::Site site = mgsim::Site::here()) { mgsim::block_barrier(mgsim::Vote::kNone, 0, site); }
inline int __syncthreads_count(int value, mgsim::Site site = mgsim::Site::here()) {
    return mgsim::block_barrier(mgsim::Vote::kCount, value, site);
}
inline int __syncthreads_and(int value, mgsim::Site site = mgsim::Site::here()) {
    return mgsim::block_barrier(mgsim::Vote::kAnd, value, site);
}
inline int __syncthreads_or(int value, mgsim::Site site = mgsim::Site::here()) {
    return mgsim::block_barrier(mgsim::Vote::kOr, value, site);
}
inline void __threadfence() { mgsim::fence(); }
inline void __threadfence_block() { mgsim::fence(); }
inline void __threadfence_system() { mgsim::fence(); }
