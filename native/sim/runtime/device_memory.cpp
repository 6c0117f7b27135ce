// Where the simulated device's memory is, and how the host is kept out of it while no task runs: by a protection key, which opens
// and closes all of it in one instruction; where the processor has none, by closing the pages; under ASan by poisoning (there memory
// comes from malloc, so that ASan knows its bounds).  TSan builds keep it open.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "engine/failure.h"
#include "runtime/memory.h"

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* address, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, size_t bytes);
__attribute__((weak)) void* __tsan_create_fiber(unsigned flags);
}

namespace mgsim {

namespace {

constexpr size_t kAlignment = 256, kPage = 4096;
int accesses = 0;

bool by_pages() { return !__asan_poison_memory_region && !__tsan_create_fiber; }

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Negative: there are no keys.
int protection_key() {
    static const int key = by_pages() ? pkey_alloc(0, PKEY_DISABLE_ACCESS) : -1;
    return key;
}

void set_open(const Allocation& allocation, bool open) {
    void* const memory = reinterpret_cast<void*>(allocation.begin);
    if (by_pages())
        mprotect(memory, pages(allocation.bytes), open ? PROT_READ | PROT_WRITE : PROT_NONE);
    else if (__asan_poison_memory_region)
        (open ? __asan_unpoison_memory_region : __asan_poison_memory_region)(memory, allocation.bytes);
}

// The calling thread's access: keys are each thread's own, and new to one that has not run a task.
void set_all_open(bool open) {
    if (protection_key() >= 0) {
        pkey_set(protection_key(), open ? 0 : PKEY_DISABLE_ACCESS);
        return;
    }
    for (const auto& entry : allocations())
        if (entry.second.on_device) set_open(entry.second, open);
}

// A file of 0xff, mapped again and again: pages that nobody writes then cost no memory, and no time to fill, open and close.
constexpr size_t kPiece = size_t{4} << 20;
int nan_file() {
    static const int file = [] {
        const int made = memfd_create("mgsim", MFD_CLOEXEC);
        const std::vector<char> piece(kPiece, static_cast<char>(0xff));
        if (made < 0 || write(made, piece.data(), kPiece) != static_cast<ssize_t>(kPiece))
            fail("no memory for device memory");
        return made;
    }();
    return file;
}

void fill_with_nan(char* memory, size_t bytes) {
    constexpr int kOpen = PROT_READ | PROT_WRITE;
    if (bytes < kPiece) {
        mprotect(memory, pages(bytes), kOpen);
        memset(memory, 0xff, bytes);
        return;
    }
    for (size_t at = 0; at < bytes; at += kPiece) {
        const size_t length = pages(std::min(kPiece, bytes - at));
        if (mmap(memory + at, length, kOpen, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, nan_file(), 0) == MAP_FAILED)
            fail("no memory for device memory");
    }
}

struct sigaction earlier;

// A fault in device memory is the host's: say so.  Any other goes to whoever handled faults before.
void on_fault(int, siginfo_t* info, void*) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    for (const auto& entry : allocations()) {
        const Allocation& allocation = entry.second;
        if (!allocation.on_device || address - allocation.begin >= pages(allocation.bytes) + kPage) continue;
        if (accesses != 0)
            fail("access %zu bytes into device memory of %zu bytes", address - allocation.begin, allocation.bytes);
        fail("host code touches device memory (byte %zu of an allocation of %zu)", address - allocation.begin,
             allocation.bytes);
    }
    sigaction(SIGSEGV, &earlier, nullptr);
}

void watch_faults() {
    static bool watching = false;
    if (watching) return;
    watching = true;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &earlier);
}

}  // namespace

DeviceAccess::DeviceAccess() {
    if (accesses++ == 0) set_all_open(true);
}

DeviceAccess::~DeviceAccess() {
    if (--accesses == 0) set_all_open(false);
}

void* map_device_memory(size_t bytes) {
    void* memory = nullptr;
    if (by_pages()) {
        watch_faults();
        // One closed page follows the memory, so that what runs far past its end faults here too.
        memory = mmap(nullptr, pages(bytes) + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
        fill_with_nan(static_cast<char*>(memory), bytes);
    } else {
        if (posix_memalign(&memory, kAlignment, bytes) != 0) return nullptr;
        memset(memory, 0xff, bytes);
    }
    if (protection_key() >= 0)
        pkey_mprotect(memory, pages(bytes), PROT_READ | PROT_WRITE, protection_key());
    else if (accesses == 0)
        set_open({reinterpret_cast<uintptr_t>(memory), bytes, true, 0}, false);
    return memory;
}

void unmap_device_memory(const Allocation& allocation) {
    void* const memory = reinterpret_cast<void*>(allocation.begin);
    if (by_pages()) {
        munmap(memory, pages(allocation.bytes) + kPage);
    } else {
        set_open(allocation, true);
        free(memory);
    }
}

}  // namespace mgsim
