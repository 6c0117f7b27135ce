#include "cpu/memory.h"

#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace mg::cpu {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void* allocate_memory(size_t bytes) {
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

void release_memory(void* memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    std::free(memory);
#endif
}

}  // namespace mg::cpu
