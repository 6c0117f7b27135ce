// Statistics of memory access, for reading: for every load and store in a kernel's source how many 32-byte sectors of global memory
// a warp touches (coalescing), and in how many passes its shared-memory access goes (bank conflicts).
//
// Kernels are compiled with -fsanitize=thread, so that the compiler calls a function at every access, and linked with this file in
// place of TSan's library.  MGSIM_TRACE=1 prints the table when the program ends.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "engine/settings.h"
#include "engine/shared_memory.h"
#include "runtime/memory.h"

namespace mgsim {

namespace {

// One access of a warp: those of its lanes that come here for the same time.
struct WarpAccess {
    unsigned lanes = 0;
    uintptr_t addresses[32];
};

struct Place {  // in the code
    unsigned bytes = 0;
    bool writes = false, shared = false;
    uint64_t accesses = 0, lanes = 0, cost = 0, ideal = 0;
    std::vector<uint32_t> times;                               // by thread: how often it was here in this block
    std::map<std::pair<unsigned, unsigned>, WarpAccess> open;  // by warp and time
};

std::map<uintptr_t, Place>& places() {
    static auto& all = *new std::map<uintptr_t, Place>;
    return all;
}

// A warp's accesses of up to 4 bytes go together, of 8 bytes by halves of the warp, of 16 by quarters; in each of these groups a bank
// (4 bytes wide, 32 of them) gives one word at a time.
void add_shared(Place& place, const WarpAccess& access) {
    const unsigned group = place.bytes <= 4 ? 32 : place.bytes == 8 ? 16 : 8;
    for (unsigned first = 0; first < 32; first += group) {
        std::map<uintptr_t, std::set<uintptr_t>> words_of_bank;
        for (unsigned lane = first; lane < first + group; ++lane) {
            if ((access.lanes >> lane & 1u) == 0) continue;
            const uintptr_t begin = access.addresses[lane] / 4, end = (access.addresses[lane] + place.bytes + 3) / 4;
            for (uintptr_t word = begin; word < end; ++word) words_of_bank[word % 32].insert(word);
        }
        size_t passes = 0;
        for (const auto& bank : words_of_bank) passes = std::max(passes, bank.second.size());
        place.cost += passes;
        place.ideal += words_of_bank.empty() ? 0 : 1;
    }
}

void add_global(Place& place, const WarpAccess& access) {
    std::set<uintptr_t> sectors, addresses;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if ((access.lanes >> lane & 1u) == 0) continue;
        const uintptr_t address = access.addresses[lane];
        addresses.insert(address);
        for (uintptr_t sector = address / 32; sector <= (address + place.bytes - 1) / 32; ++sector)
            sectors.insert(sector);
    }
    place.cost += sectors.size();
    place.ideal += (addresses.size() * place.bytes + 31) / 32;
}

void close_access(Place& place, const WarpAccess& access) {
    place.shared ? add_shared(place, access) : add_global(place, access);
    ++place.accesses;
    place.lanes += static_cast<unsigned>(__builtin_popcount(access.lanes));
}

void end_block() {
    for (auto& entry : places()) {
        for (const auto& access : entry.second.open) close_access(entry.second, access.second);
        entry.second.open.clear();
        entry.second.times.assign(entry.second.times.size(), 0);
    }
}

std::string file_and_line(char* text) {
    text[strcspn(text, " \n")] = '\0';
    const char* const name = strrchr(text, '/');
    return name != nullptr ? name + 1 : text;
}

// Where in the kernel the code is, and, if that is a call of something inline, where in what is called.
std::string source_of(uintptr_t code) {
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(code), &info) == 0) return "?";
    char command[600], line[600];
    snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%zx", info.dli_fname,
             static_cast<size_t>(code - 1 - reinterpret_cast<uintptr_t>(info.dli_fbase)));
    std::string inner, outer;
    if (FILE* const output = popen(command, "r")) {
        while (fgets(line, sizeof line, output) != nullptr) {
            outer = file_and_line(line);
            if (inner.empty()) inner = outer;
        }
        pclose(output);
    }
    return inner == outer ? outer : outer + " (" + inner + ")";
}

void print_table() {
    printf("%-44s %-14s %5s %10s %6s %8s %8s  cost: sectors (global) or passes (shared) of an access\n", "place", "",
           "bytes", "accesses", "lanes", "cost", "ideal");
    for (const auto& entry : places()) {
        const Place& p = entry.second;
        if (p.accesses == 0) continue;
        const double accesses = static_cast<double>(p.accesses);
        printf("%-44s %-6s %-7s %5u %10lu %6.1f %8.2f %8.2f%s\n", source_of(entry.first).c_str(),
               p.writes ? "writes" : "reads", p.shared ? "shared" : "global", p.bytes,
               static_cast<unsigned long>(p.accesses), static_cast<double>(p.lanes) / accesses,
               static_cast<double>(p.cost) / accesses, static_cast<double>(p.ideal) / accesses,
               static_cast<double>(p.cost) > 1.3 * static_cast<double>(p.ideal) ? "   <--" : "");
    }
    fflush(stdout);
}

bool start() {
    if (!settings().trace) return false;
    after_block = end_block;
    atexit(print_table);
    return true;
}

void note(const void* pointer, unsigned bytes, bool writes, const void* code) {
    static const bool on = start();
    if (!on || current.thread == nullptr) return;
    const bool shared = is_shared(pointer);
    if (!shared && find_allocation(pointer) == nullptr) return;  // the thread's own stack, or the simulator's affairs
    Place& place = places()[reinterpret_cast<uintptr_t>(code)];
    place.bytes = bytes;
    place.writes = writes;
    place.shared = shared;
    if (place.times.empty()) place.times.resize(1024);
    const unsigned warp = current.thread->warp, lane = current.thread->lane;
    const std::pair<unsigned, unsigned> key(warp, place.times[warp * 32 + lane]++);
    WarpAccess& access = place.open[key];
    access.lanes |= 1u << lane;
    access.addresses[lane] = reinterpret_cast<uintptr_t>(pointer);
    if (access.lanes == ~0u) {
        close_access(place, access);
        place.open.erase(key);
    }
}

}  // namespace

}  // namespace mgsim

// What the compiler calls.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

#define MGSIM_ACCESS(name, bytes, writes) \
    void name(void* p) { mgsim::note(p, bytes, writes, __builtin_return_address(0)); }
#define MGSIM_ACCESSES(bytes)                                \
    MGSIM_ACCESS(__tsan_read##bytes, bytes, false)           \
    MGSIM_ACCESS(__tsan_write##bytes, bytes, true)           \
    MGSIM_ACCESS(__tsan_unaligned_read##bytes, bytes, false) \
    MGSIM_ACCESS(__tsan_unaligned_write##bytes, bytes, true) \
    MGSIM_ACCESS(__tsan_volatile_read##bytes, bytes, false)  \
    MGSIM_ACCESS(__tsan_volatile_write##bytes, bytes, true)
MGSIM_ACCESSES(1)
MGSIM_ACCESSES(2)
MGSIM_ACCESSES(4)
MGSIM_ACCESSES(8)
MGSIM_ACCESSES(16)
void __tsan_read_range(void* p, unsigned long bytes) {
    mgsim::note(p, static_cast<unsigned>(bytes), false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long bytes) {
    mgsim::note(p, static_cast<unsigned>(bytes), true, __builtin_return_address(0));
}

#define MGSIM_ATOMICS(bits, T)                                                                                        \
    T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }           \
    void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }           \
    T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
    T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
    T __tsan_atomic##bits##_fetch_sub(volatile T* p, T v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); } \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) {                           \
        return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                       \
    }                                                                                                                 \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* e, T v, int, int) {                             \
        return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                       \
    }
MGSIM_ATOMICS(8, uint8_t)
MGSIM_ATOMICS(16, uint16_t)
MGSIM_ATOMICS(32, uint32_t)
MGSIM_ATOMICS(64, uint64_t)
void __tsan_atomic_thread_fence(int) {}
}
