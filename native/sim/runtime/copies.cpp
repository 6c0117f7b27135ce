// Copies and fills.  An asynchronous copy between the device and page-locked memory reads its source when it runs; pageable memory
// CUDA copies aside, or waits for, before it returns.

#include <string.h>

#include "runtime/memory.h"
#include "runtime/runtime.h"

namespace mgsim {

namespace {

enum class Place { kDevice, kPinned, kPageable, kBeyond };

Place place_of(const void* memory, size_t bytes) {
    const Allocation* const found = find_allocation(memory);
    if (found == nullptr || reinterpret_cast<uintptr_t>(memory) == found->begin + found->bytes) return Place::kPageable;
    if (reinterpret_cast<uintptr_t>(memory) - found->begin + bytes > found->bytes) return Place::kBeyond;
    return found->on_device ? Place::kDevice : Place::kPinned;
}

bool fits(cudaMemcpyKind kind, Place to, Place from) {
    if (to == Place::kBeyond || from == Place::kBeyond) return false;
    if (kind == cudaMemcpyDefault) return true;
    // Page-locked memory has an address on the device too.
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    const auto is = [](Place place, bool device) {
        return place == Place::kPinned || (place == Place::kDevice) == device;
    };
    return is(to, to_device) && is(from, from_device);
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle, bool wait) {
    const Lock lock(runtime_mutex());
    CUstream_st* const stream = find_stream(handle);
    if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
    if (bytes == 0) return cudaSuccess;
    const Place to_place = place_of(to, bytes), from_place = place_of(from, bytes);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return report(cudaErrorInvalidMemcpyDirection);
    if (!fits(kind, to_place, from_place)) return report(cudaErrorInvalidValue);
    const bool pageable = to_place == Place::kPageable || from_place == Place::kPageable;
    if (stream->recording && pageable) {
        stream->spoiled = true;
        return report(cudaErrorStreamCaptureUnsupported);
    }
    const Reference target(to), source(from);
    std::shared_ptr<char[]> aside;
    if (from_place == Place::kPageable && !wait) {
        aside.reset(new char[bytes]);
        memcpy(aside.get(), from, bytes);
    }
    const auto run = [=] {
        target.check("a copy");
        source.check("a copy");
        memmove(to, aside ? aside.get() : from, bytes);
    };
    if (const cudaError_t error = enqueue(*stream, {run, true})) return error;
    if (wait || to_place == Place::kPageable) run_all(*stream);
    return cudaSuccess;
}

cudaError_t fill(void* memory, int value, size_t bytes, cudaStream_t handle) {
    const Lock lock(runtime_mutex());
    if (bytes == 0) return cudaSuccess;
    const Place place = place_of(memory, bytes);
    if (place == Place::kPageable || place == Place::kBeyond) return report(cudaErrorInvalidValue);
    const Reference target(memory);
    const auto run = [=] {
        target.check("a memset");
        memset(memory, value, bytes);
    };
    return enqueue(handle, {run, true});
}

}  // namespace

}  // namespace mgsim

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return mgsim::copy(to, from, bytes, kind, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return mgsim::copy(to, from, bytes, kind, stream, false);
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return mgsim::fill(memory, value, bytes, nullptr); }
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
    return mgsim::fill(memory, value, bytes, stream);
}
}
