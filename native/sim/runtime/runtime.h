// What the files of the stand-in runtime share: tasks, streams, and the one lock.  Work is put on a stream and runs only when somebody
// waits for it (or asks whether it is done), on the thread that does.  So whatever the host changes or reads too early is seen.
#pragma once

#include <stdint.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda_runtime_api.h"

namespace mgsim {

struct Task {
    std::function<void()> run;
    bool node;                           // a graph counts it: a kernel, a product, a copy; not an event
    CUstream_st* wait_stream = nullptr;  // first, what is on this stream up to wait_sequence
    uint64_t wait_sequence = 0;
    uint64_t sequence = 0;  // when it was queued, over all streams
};

std::mutex& runtime_mutex();
using Lock = std::lock_guard<std::mutex>;

// Keeps the error for cudaGetLastError, and returns it.
cudaError_t report(cudaError_t error);

// Refuses (and spoils the recording, as CUDA does) what must not be called while this thread records a stream.
cudaError_t refuse_while_capturing();

// The stream behind a handle (0 and 1: the legacy default stream; 2: the thread's own), or null.
CUstream_st* find_stream(cudaStream_t handle);
std::vector<CUstream_st*>& all_streams();

// Queues or records.  Call with the lock held.
cudaError_t enqueue(cudaStream_t stream, Task task);
cudaError_t enqueue(CUstream_st& stream, Task task);

// Runs what is on the stream up to that task, and what must come before it.
void run_until(CUstream_st& stream, uint64_t sequence);
void run_all(CUstream_st& stream);
void run_everything();
bool has_run(const CUstream_st& stream, uint64_t sequence);

}  // namespace mgsim

struct CUgraph_st {
    std::vector<mgsim::Task> tasks;
};
struct CUgraphExec_st {
    std::vector<mgsim::Task> tasks;
};

struct CUstream_st {
    bool blocking = true;  // ordered against the legacy default stream
    bool alive = true;
    std::deque<mgsim::Task> queue;

    std::unique_ptr<CUgraph_st> recording;  // null: not capturing
    bool spoiled = false;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id recorder;
};
