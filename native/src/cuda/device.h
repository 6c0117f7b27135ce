// One GPU with one stream, in whose order everything happens: memory, copies, and the recording of what goes through the stream.
// The stream is a blocking one, so that work on the legacy default stream, where others queue theirs, is ordered against it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/staging.h"

namespace mg::cuda {

class Device {
   public:
    explicit Device(int index);  // raises MG_ERROR_DEVICE: no such GPU, or one that this build's kernels don't run on
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    // The stream, with this GPU current in the calling thread: what starts work asks for it each time.  While work is recorded it is
    // the one that records.
    cudaStream_t stream() const;

    void* allocate(size_t bytes);  // aligned to 256 bytes; raises MG_ERROR_MEMORY with what is free
    void release(void* memory) noexcept;
    void zero(void* memory, size_t bytes);
    void copy_in(void* device, const void* host, size_t bytes);  // may return before the GPU has it
    void copy_out(void* host, const void* device, size_t bytes);
    void synchronize();

    bool owns(const void* memory) const;  // raises MG_ERROR_ARGUMENT where it is another GPU's
    // Another stream of the same GPU, as a number: what comes here from now on waits for what is queued there, and the other
    // way round.
    void wait_for(uintptr_t stream);
    void let_wait(uintptr_t stream);

    // What goes through the stream between the two becomes a graph, and isn't done.  Nothing may wait or allocate meanwhile.
    void begin_capture();
    cudaGraph_t end_capture();  // null where something in between didn't work
    bool capturing() const { return capturing_; }

    int index() const { return index_; }
    int major() const { return major_; }
    int minor() const { return minor_; }
    size_t memory_bytes() const { return memory_bytes_; }
    // "NVIDIA H200, sm_90, 139.8 GiB, driver 13.0, runtime 13.0"
    std::string description() const;

   private:
    void activate() const;
    void order(cudaStream_t first, cudaStream_t second);
    void check_not_capturing(const char* call) const;

    int index_;
    std::string name_;
    int major_ = 0, minor_ = 0, driver_ = 0, runtime_ = 0;
    size_t memory_bytes_ = 0;
    cudaStream_t stream_ = nullptr;
    // Records; not a blocking one: while a blocking stream records, nobody in the process may use the legacy default stream.
    cudaStream_t recorder_ = nullptr;
    cudaEvent_t order_ = nullptr;  // of two streams
    Staging staging_;
    bool capturing_ = false;
};

}  // namespace mg::cuda
