// The memory that kernels may use: the device's own and page-locked host memory, each allocation with its bounds.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <map>

namespace mgsim {

struct Allocation {
    uintptr_t begin;
    size_t bytes;
    bool on_device;
    uint64_t id;  // an address may be used again, an id never
};

// The allocation that holds the address, or ends there; null: none.
const Allocation* find_allocation(const void* pointer);

// An address as it was when work was queued: the work may run when the memory is gone.
class Reference {
   public:
    explicit Reference(const void* pointer);
    void check(const char* what) const;  // fails where the memory has been freed since

   private:
    const void* pointer_;
    uint64_t id_ = 0;  // 0: no allocation
};

// Host code that touches device memory must fault, as on a machine with a GPU.  While one of these exists it may.
class DeviceAccess {
   public:
    DeviceAccess();
    ~DeviceAccess();
    DeviceAccess(const DeviceAccess&) = delete;
    DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// The live allocations, by their first address.
const std::map<uintptr_t, Allocation>& allocations();

// Puts memory of the device aside, filled with NaN.
void* map_device_memory(size_t bytes);
void unmap_device_memory(const Allocation& allocation);

}  // namespace mgsim
