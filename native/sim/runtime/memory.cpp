// Allocation: device memory within the device's size, page-locked host memory, and what a pointer points to.

#include "runtime/memory.h"

#include <stdlib.h>
#include <string.h>

#include "engine/failure.h"
#include "runtime/runtime.h"
#include "engine/settings.h"

namespace mgsim {

namespace {

std::map<uintptr_t, Allocation>& live() {
    static auto& all = *new std::map<uintptr_t, Allocation>;
    return all;
}

uint64_t next_id = 1;
size_t used = 0;

size_t rounded(size_t bytes) { return (bytes + 511) / 512 * 512; }  // as the device counts

cudaError_t allocate(void** memory, size_t bytes, bool on_device) {
    if (memory == nullptr) return report(cudaErrorInvalidValue);
    *memory = nullptr;
    const Lock lock(runtime_mutex());
    if (settings().devices == 0 || settings().driver == 0) return report(cudaErrorNoDevice);
    if (const cudaError_t error = refuse_while_capturing()) return error;
    if (bytes == 0) return cudaSuccess;
    if (on_device) {
        if (bytes > settings().memory - used || rounded(bytes) > settings().memory - used)
            return report(cudaErrorMemoryAllocation);
        *memory = map_device_memory(bytes);
    } else if (posix_memalign(memory, 4096, bytes) == 0) {
        memset(*memory, 0xff, bytes);
    }
    if (*memory == nullptr) return report(cudaErrorMemoryAllocation);
    if (on_device) used += rounded(bytes);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(*memory);
    live()[begin] = {begin, bytes, on_device, next_id++};
    return cudaSuccess;
}

cudaError_t release(void* memory, bool on_device) {
    if (memory == nullptr) return cudaSuccess;
    const Lock lock(runtime_mutex());
    if (const cudaError_t error = refuse_while_capturing()) return error;
    const auto found = live().find(reinterpret_cast<uintptr_t>(memory));
    if (found == live().end() || found->second.on_device != on_device) return report(cudaErrorInvalidValue);
    if (on_device) run_everything();  // cudaFree waits for the device; freeing host memory does not promise to
    const Allocation allocation = found->second;
    live().erase(found);
    if (on_device) {
        used -= rounded(allocation.bytes);
        unmap_device_memory(allocation);
    } else {
        free(memory);
    }
    return cudaSuccess;
}

}  // namespace

const std::map<uintptr_t, Allocation>& allocations() { return live(); }

const Allocation* find_allocation(const void* pointer) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    auto next = live().upper_bound(address);
    if (next == live().begin()) return nullptr;
    const Allocation& allocation = (--next)->second;
    return address - allocation.begin <= allocation.bytes ? &allocation : nullptr;
}

Reference::Reference(const void* pointer) : pointer_(pointer) {
    if (const Allocation* allocation = find_allocation(pointer)) id_ = allocation->id;
}

void Reference::check(const char* what) const {
    if (id_ == 0) return;
    const Allocation* const allocation = find_allocation(pointer_);
    if (allocation == nullptr || allocation->id != id_)
        fail("%s uses memory that was freed after it had been queued or recorded", what);
}

}  // namespace mgsim

extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) { return mgsim::allocate(memory, bytes, true); }
cudaError_t cudaFree(void* memory) { return mgsim::release(memory, true); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return mgsim::allocate(memory, bytes, false); }
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return mgsim::allocate(memory, bytes, false); }
cudaError_t cudaFreeHost(void* memory) { return mgsim::release(memory, false); }

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    const mgsim::Lock lock(mgsim::runtime_mutex());
    if (mgsim::settings().devices == 0) return mgsim::report(cudaErrorNoDevice);
    *total = mgsim::settings().memory;
    *available = *total - mgsim::used;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
    if (attributes == nullptr) return mgsim::report(cudaErrorInvalidValue);
    const mgsim::Lock lock(mgsim::runtime_mutex());
    void* const address = const_cast<void*>(pointer);
    const mgsim::Allocation* const found = mgsim::find_allocation(pointer);
    if (found == nullptr || reinterpret_cast<uintptr_t>(pointer) == found->begin + found->bytes)
        *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, address};
    else if (found->on_device)
        *attributes = {cudaMemoryTypeDevice, 0, address, nullptr};
    else
        *attributes = {cudaMemoryTypeHost, 0, address, address};
    return cudaSuccess;
}
}
