#include "cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "cuda/check.h"

namespace mg::cuda {

Staging::~Staging() {
    // Errors are of no use here: the process may be ending, or the GPU be lost.
    for (cudaEvent_t event : passed_)
        if (event != nullptr) cudaEventDestroy(event);
    if (memory_ != nullptr) cudaFreeHost(memory_);
}

void Staging::open() {
    for (cudaEvent_t& event : passed_)
        if (event == nullptr)
            check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    void* memory;
    check(cudaHostAlloc(&memory, kSlots * kSlotBytes, cudaHostAllocDefault), "cudaHostAlloc");
    memory_ = static_cast<char*>(memory);
}

void Staging::next_slot(cudaStream_t stream) {
    check(cudaEventRecord(passed_[slot_], stream), "cudaEventRecord");
    recorded_[slot_] = true;
    slot_ = (slot_ + 1) % kSlots;
    used_ = 0;
    if (recorded_[slot_]) check(cudaEventSynchronize(passed_[slot_]), "cudaEventSynchronize");
}

void Staging::copy_in(cudaStream_t stream, void* device, const void* host, size_t bytes) {
    if (memory_ == nullptr) open();
    constexpr size_t kAlignment = 64;
    for (size_t done = 0; done < bytes;) {
        if (used_ == kSlotBytes) next_slot(stream);
        const size_t piece = std::min(bytes - done, kSlotBytes - used_);
        char* staged = memory_ + slot_ * kSlotBytes + used_;
        std::memcpy(staged, static_cast<const char*>(host) + done, piece);
        check(cudaMemcpyAsync(static_cast<char*>(device) + done, staged, piece, cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
        used_ = std::min(kSlotBytes, (used_ + piece + kAlignment - 1) / kAlignment * kAlignment);
        done += piece;
    }
}

}  // namespace mg::cuda
