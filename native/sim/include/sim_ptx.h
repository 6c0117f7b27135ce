// Emulated twins of the wrappers in cuda/ptx.h; the layouts of registers are explained there.
#pragma once

#include <stdint.h>

#include "cuda_runtime.h"

// Declared as the compiler, which knows these functions, declares them.
#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_loadN(void*, long);
extern "C" void __asan_storeN(void*, long);
#elif defined(__SANITIZE_THREAD__)
extern "C" void __tsan_read_range(void*, long);
extern "C" void __tsan_write_range(void*, long);
#endif

namespace mgsim {

// The emulation is compiled without sanitizers, so what it reads and writes is told to them here, at the kernel's line.
inline __attribute__((always_inline)) void touch(const void* from, void* to, long bytes) {
#if defined(__SANITIZE_ADDRESS__)
    if (from != nullptr) __asan_loadN(const_cast<void*>(from), bytes);
    if (to != nullptr) __asan_storeN(to, bytes);
#elif defined(__SANITIZE_THREAD__)
    if (from != nullptr) __tsan_read_range(const_cast<void*>(from), bytes);
    if (to != nullptr) __tsan_write_range(to, bytes);
#endif
    (void)from, (void)to, (void)bytes;
}
// Whether reads by the lane that gets the numbers count too (TSan), not only those by the lane that names the row (a trace of banks).
bool detects_races();

[[noreturn]] void fail(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

struct MatrixPart {
    const void* row;  // of 8 numbers
    unsigned got[4];
    unsigned matrices;
    bool transposed;
    const void* rows[32];  // all lanes' rows, where detects_races()
};
struct MmaPart {
    const unsigned* a;  // 4 registers
    const unsigned* b;  // 2
    float* d;           // 4
};
void complete_matrices(void* const* parts, unsigned lanes, Site site);
void complete_mma(void* const* parts, unsigned lanes, Site site);

void async_copy(void* to, const void* from, unsigned bytes, bool valid);
void async_commit();
void async_wait(int pending);

inline void load_matrices(unsigned* registers, unsigned matrices, bool transposed, const void* row, Site site) {
    MatrixPart part;
    part.row = row;
    part.matrices = matrices;
    part.transposed = transposed;
    if (current.thread->lane < matrices * 8) {
        if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
            fail("ldmatrix of a row that is not 16-byte aligned at %s:%d", site.file, site.line);
        touch(row, nullptr, 16);
    }
    warp_collective(~0u, complete_matrices, &part, site);
    const unsigned own = current.thread->lane;
    for (unsigned m = 0; m < matrices; ++m) {
        registers[m] = part.got[m];
        if (!detects_races()) continue;
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned row_of = transposed ? own % 4 * 2 + half : own / 4,
                           column = transposed ? own / 4 : own % 4 * 2 + half;
            touch(static_cast<const uint16_t*>(part.rows[m * 8 + row_of]) + column, nullptr, 2);
        }
    }
}

}  // namespace mgsim

namespace mg::cuda {

inline void cp_async_16(void* to, const void* from, bool valid = true) {
    mgsim::touch(valid ? from : nullptr, to, 16);
    mgsim::async_copy(to, from, 16, valid);
}
inline void cp_async_commit() { mgsim::async_commit(); }
template <int kPending>
inline void cp_async_wait() {
    mgsim::async_wait(kPending);
}
inline void ldmatrix_x4(unsigned (&registers)[4], const void* row, mgsim::Site site = mgsim::Site::here()) {
    mgsim::load_matrices(registers, 4, false, row, site);
}
inline void ldmatrix_x4_trans(unsigned (&registers)[4], const void* row, mgsim::Site site = mgsim::Site::here()) {
    mgsim::load_matrices(registers, 4, true, row, site);
}
inline void ldmatrix_x2(unsigned (&registers)[2], const void* row, mgsim::Site site = mgsim::Site::here()) {
    mgsim::load_matrices(registers, 2, false, row, site);
}
inline void ldmatrix_x2_trans(unsigned (&registers)[2], const void* row, mgsim::Site site = mgsim::Site::here()) {
    mgsim::load_matrices(registers, 2, true, row, site);
}
inline void mma_bf16_16816(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                           mgsim::Site site = mgsim::Site::here()) {
    mgsim::MmaPart part{a, b, d};
    mgsim::warp_collective(~0u, mgsim::complete_mma, &part, site);
}

}  // namespace mg::cuda
