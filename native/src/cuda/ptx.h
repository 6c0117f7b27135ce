// The tensor cores and the asynchronous copies, which C++ has no words for: the only inline assembly of the engine.  Each wrapper
// is one instruction of PTX (sm_80 and later), named as there; in a simulator build native/sim has a twin of each.
//
// All but cp_async are collectives: the 32 lanes of a warp call them together, at the same place.  In what follows lane = threadIdx.x %
// 32, group = lane / 4, pair = lane % 4; two bfloat16 numbers share a register, the one of the lower index in the low half.
#pragma once

#if !defined(__CUDACC__)

#include "sim_ptx.h"

#else

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace mg::cuda {

// Where PTX instructions expect an address of shared memory.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Starts to copy 16 bytes of global memory into shared memory, past the registers; not valid: fills them with zeros, and `from`
// is not read.  Both addresses are 16-byte aligned.  What a thread has started is its own to wait for.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool valid = true) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

// Closes a group: the copies that this thread has started since the last one.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are under way.  Other threads see the data after a barrier that follows.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads 8x8 matrices of 16-bit numbers from shared memory.  Lane 8 m + r names row r of matrix m: 16 bytes, 16-byte aligned (of
// x2 only the first 16 lanes' rows count).  registers[m] gets columns 2 pair and 2 pair + 1 of row `group`; of a transposed load
// rows 2 pair and 2 pair + 1 of column `group`.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&registers)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&registers)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(unsigned (&registers)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(registers[0]), "=r"(registers[1])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&registers)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(registers[0]), "=r"(registers[1])
                 : "r"(shared_address(row))
                 : "memory");
}

// d += a b: a 16x16 and b 16x8 of bfloat16, d 16x8 of float32, spread over the warp like this (rows, columns):
//   a[0]  group,     2 pair + {0, 1}        b[0]  2 pair + {0, 1},     group
//   a[1]  group + 8, 2 pair + {0, 1}        b[1]  2 pair + 8 + {0, 1}, group
//   a[2]  group,     2 pair + 8 + {0, 1}    d[0], d[1]  group,     2 pair + {0, 1}
//   a[3]  group + 8, 2 pair + 8 + {0, 1}    d[2], d[3]  group + 8, 2 pair + {0, 1}
// So ldmatrix_x4 of a row-major a (lane l names row l % 16 from column l / 16 * 8 on) gives a; ldmatrix_x2 of a row-major b
// transposed, or ldmatrix_x2_trans of a row-major b, gives b.  A d, rounded to bfloat16 by pack_bf16(d[0], d[1]), ..., is half of
// an a: two neighbouring products make the a of the next.
__device__ __forceinline__ void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace mg::cuda

#endif

#include <cuda_bf16.h>

namespace mg::cuda {

// Two numbers rounded to bfloat16 (nearest, ties to even; one cvt.rn.bf16x2.f32), the first in the low half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return static_cast<unsigned>(__bfloat16_as_ushort(both.x)) | static_cast<unsigned>(__bfloat16_as_ushort(both.y))
                                                                     << 16;
}

// 2^x in one instruction: within 2^-22 of its size, and 0 where the result is no normal number.  For results that are rounded to
// bfloat16 anyway.
__device__ __forceinline__ float exp2_approx(float x) {
#if defined(__CUDACC__)
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#else
    return exp2f(x);
#endif
}

}  // namespace mg::cuda
