#include "engine/shared_memory.h"

#include <stdint.h>
#include <stdlib.h>

#include <vector>

#include "engine/failure.h"
#include "engine/sanitizers.h"
#include "engine/scheduler.h"

namespace mgsim {

namespace {

constexpr size_t kStaticLimit = 48 << 10, kLimit = 227 << 10, kAlignment = 128;

struct Array {
    const void* key;
    void* memory;
    size_t bytes;
};

struct SharedMemory {
    std::vector<Array> arrays;
    void* dynamic = nullptr;
    size_t dynamic_bytes = 0;
};
SharedMemory& shared = *new SharedMemory;

// Under TSan each block has its shared memory at new addresses of static storage: to use an address again, or one that malloc
// hands out, would need an order between the blocks, and that would hide races between them.
constexpr size_t kArena = size_t{64} << 20;
char arena[kArena];
size_t arena_used = 0;

// malloc elsewhere, so that ASan knows the bounds of every array.
void* new_array(size_t bytes) {
    void* memory = nullptr;
    if (under_tsan()) {
        memory = arena + arena_used;
        arena_used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
        if (arena_used > kArena) fail("out of shared memory (TSan build)");
    } else if (posix_memalign(&memory, kAlignment, bytes == 0 ? 1 : bytes) != 0) {
        fail("no memory for shared memory");
    }
    fill_bytes(memory, 0xff, bytes);  // NaN in every floating-point type
    return memory;
}

void drop(void* memory) {
    if (!under_tsan()) free(memory);
}

}  // namespace

void begin_shared_memory(size_t dynamic_bytes) {
    shared.dynamic_bytes = dynamic_bytes;
    shared.arrays.reserve(64);
    if (!under_tsan()) shared.dynamic = new_array(dynamic_bytes);
}

void renew_shared_memory() {
    if (under_tsan()) {
        if (arena_used > kArena / 2) {  // now and then: all blocks so far come before all later ones
            __tsan_acquire(&scheduler.end_token);
            __tsan_write_range(arena, arena_used);
            __tsan_release(&scheduler.start_token);
            arena_used = 0;
        }
        shared.arrays.clear();
        shared.dynamic = new_array(shared.dynamic_bytes);
        return;
    }
    for (const Array& array : shared.arrays) fill_bytes(array.memory, 0xff, array.bytes);
    fill_bytes(shared.dynamic, 0xff, shared.dynamic_bytes);
}

void end_shared_memory() {
    drop(shared.dynamic);
    for (const Array& array : shared.arrays) drop(array.memory);
    shared.arrays.clear();
}

bool is_shared(const void* pointer) {
    const auto within = [pointer](const void* begin, size_t bytes) {
        return reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(begin) < bytes;
    };
    for (const Array& array : shared.arrays)
        if (within(array.memory, array.bytes)) return true;
    return within(shared.dynamic, shared.dynamic_bytes);
}

void* shared_array(const void* key, size_t bytes) {
    size_t sum = bytes;
    for (const Array& array : shared.arrays) {
        if (array.key == key) return array.memory;
        sum += array.bytes;
    }
    if (sum > kStaticLimit) fail("%zu bytes of static shared memory, the limit is 48 KiB", sum);
    if (sum + shared.dynamic_bytes > kLimit)
        fail("%zu bytes of shared memory, the limit is 227 KiB", sum + shared.dynamic_bytes);
    void* const memory = new_array(bytes);
    shared.arrays.push_back({key, memory, bytes});
    return memory;
}

void* dynamic_shared_memory() { return shared.dynamic; }

}  // namespace mgsim
