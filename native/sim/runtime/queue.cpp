// The order in which tasks run.  A stream's run as queued; those of the legacy default stream come after all that the blocking
// streams hold when they are queued, and before what they get later.

#include <limits>

#include "engine/settings.h"
#include "runtime/memory.h"
#include "runtime/runtime.h"

namespace mgsim {

namespace {

uint64_t queued = 0;
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

CUstream_st& legacy() { return *all_streams().front(); }

// What is put on the legacy stream would have to wait for a blocking stream whose work is not done but recorded.
bool spoils_a_recording() {
    for (CUstream_st* other : all_streams()) {
        if (!other->recording || !other->blocking || other->mode == cudaStreamCaptureModeRelaxed) continue;
        other->spoiled = true;
        return true;
    }
    return false;
}

}  // namespace

// Never shrinks, for an event may name a stream that is gone.  The first is the legacy default stream, the second stands for the
// default streams of all threads.
std::vector<CUstream_st*>& all_streams() {
    static std::vector<CUstream_st*>& streams = *new std::vector<CUstream_st*>{new CUstream_st, new CUstream_st};
    return streams;
}

CUstream_st* find_stream(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy) return &legacy();
    if (handle == cudaStreamPerThread) return all_streams()[1];
    for (CUstream_st* stream : all_streams())
        if (stream == handle && stream->alive) return stream;
    return nullptr;
}

cudaError_t enqueue(cudaStream_t handle, Task task) {
    CUstream_st* const stream = find_stream(handle);
    return stream == nullptr ? report(cudaErrorInvalidResourceHandle) : enqueue(*stream, std::move(task));
}

cudaError_t enqueue(CUstream_st& stream, Task task) {
    if (stream.recording) {
        if (settings().neighbour) spoils_a_recording();
        if (stream.spoiled) return report(cudaErrorStreamCaptureInvalidated);
        stream.recording->tasks.push_back(std::move(task));
        return cudaSuccess;
    }
    if (&stream == &legacy() && spoils_a_recording()) return report(cudaErrorStreamCaptureImplicit);
    task.sequence = ++queued;
    stream.queue.push_back(std::move(task));
    return cudaSuccess;
}

bool has_run(const CUstream_st& stream, uint64_t sequence) {
    return stream.queue.empty() || stream.queue.front().sequence > sequence;
}

void run_until(CUstream_st& stream, uint64_t sequence) {
    if (has_run(stream, sequence)) return;
    const DeviceAccess access;
    while (!has_run(stream, sequence)) {
        const Task task = std::move(stream.queue.front());
        stream.queue.pop_front();
        if (&stream == &legacy()) {
            for (CUstream_st* other : all_streams())
                if (other != &stream && other->blocking) run_until(*other, task.sequence - 1);
        } else if (stream.blocking) {
            run_until(legacy(), task.sequence - 1);
        }
        if (task.wait_stream != nullptr) run_until(*task.wait_stream, task.wait_sequence);
        task.run();
    }
}

// Waiting on the legacy stream waits for all blocking ones.
void run_all(CUstream_st& stream) {
    run_until(stream, kAll);
    if (&stream != &legacy()) return;
    for (CUstream_st* other : all_streams())
        if (other->blocking) run_until(*other, kAll);
}

void run_everything() {
    for (CUstream_st* stream : all_streams()) run_until(*stream, kAll);
}

cudaError_t refuse_while_capturing() {
    for (CUstream_st* stream : all_streams()) {
        if (!stream->recording || stream->mode == cudaStreamCaptureModeRelaxed) continue;
        if (stream->mode == cudaStreamCaptureModeThreadLocal && stream->recorder != std::this_thread::get_id())
            continue;
        stream->spoiled = true;
        return report(cudaErrorStreamCaptureUnsupported);
    }
    return cudaSuccess;
}

}  // namespace mgsim
