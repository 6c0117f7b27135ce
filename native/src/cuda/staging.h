// Pinned memory that copies to the GPU go through: the caller's buffer is free again at once, and the GPU fetches the data when
// its turn comes.  Four slots in a ring, each filled by one copy after another; a slot is used again once the GPU is past it.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

namespace mg::cuda {

class Staging {
   public:
    Staging() = default;
    ~Staging();
    Staging(const Staging&) = delete;
    Staging& operator=(const Staging&) = delete;

    // Queues a copy of host memory on the stream, in pieces where it is long.
    void copy_in(cudaStream_t stream, void* device, const void* host, size_t bytes);

   private:
    static constexpr size_t kSlots = 4;
    static constexpr size_t kSlotBytes = size_t{4} << 20;

    void open();
    void next_slot(cudaStream_t stream);

    char* memory_ = nullptr;
    std::array<cudaEvent_t, kSlots> passed_{};  // the GPU is past what the slot held
    std::array<bool, kSlots> recorded_{};
    size_t slot_ = 0, used_ = 0;
};

}  // namespace mg::cuda
