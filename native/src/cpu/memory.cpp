#include "cpu/memory.h"

#include <cstdlib>

#include "error.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace mg::cpu {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

// Null when there is none.
void* try_to_allocate(size_t bytes) {
    const bool large = bytes >= 4 * kHugePage;
    const size_t alignment = large ? kHugePage : kLine;
    if (bytes > static_cast<size_t>(-1) - alignment) return nullptr;
    const size_t rounded = bytes == 0 ? kLine : (bytes + kLine - 1) / kLine * kLine;
#if defined(_WIN32)
    return _aligned_malloc(rounded, alignment);
#else
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, rounded) != 0) return nullptr;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (large) madvise(memory, rounded / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish: failure costs speed only
#endif
    return memory;
#endif
}

}  // namespace

void* allocate_memory(size_t bytes) {
    void* memory = try_to_allocate(bytes);
    if (memory == nullptr) throw Error(MG_ERROR_MEMORY, format("the CPU has no %zu bytes of memory left", bytes));
    return memory;
}

void* Scratch::at_least(size_t bytes) {
    if (bytes > bytes_) {
        release_memory(memory_);
        memory_ = nullptr;
        bytes_ = 0;
        memory_ = allocate_memory(bytes);
        bytes_ = bytes;
    }
    return memory_;
}

void release_memory(void* memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    std::free(memory);
#endif
}

}  // namespace mg::cpu
