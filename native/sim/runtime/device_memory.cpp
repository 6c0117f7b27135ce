// Where the simulated device's memory is, and how the host is kept out of it: pages that are closed while no task runs, or, under
// ASan, memory that is poisoned meanwhile (there it comes from malloc, so that ASan knows its bounds).  TSan builds keep it open.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

void set_open(const Allocation& allocation, bool open) {
    void* const memory = reinterpret_cast<void*>(allocation.begin);
    if (by_pages())
        mprotect(memory, pages(allocation.bytes), open ? PROT_READ | PROT_WRITE : PROT_NONE);
    else if (__asan_poison_memory_region)
        (open ? __asan_unpoison_memory_region : __asan_poison_memory_region)(memory, allocation.bytes);
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
    if (accesses++ != 0) return;
    for (const auto& entry : allocations())
        if (entry.second.on_device) set_open(entry.second, true);
}

DeviceAccess::~DeviceAccess() {
    if (--accesses != 0) return;
    for (const auto& entry : allocations())
        if (entry.second.on_device) set_open(entry.second, false);
}

void* map_device_memory(size_t bytes) {
    void* memory = nullptr;
    if (by_pages()) {
        watch_faults();
        // One closed page follows the memory, so that what runs far past its end faults here too.
        const size_t whole = pages(bytes) + kPage;
        memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return nullptr;
        mprotect(static_cast<char*>(memory) + whole - kPage, kPage, PROT_NONE);
        memset(memory, 0xff, bytes);
    } else {
        if (posix_memalign(&memory, kAlignment, bytes) != 0) return nullptr;
        memset(memory, 0xff, bytes);
    }
    if (accesses == 0) set_open({reinterpret_cast<uintptr_t>(memory), bytes, true, 0}, false);
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
