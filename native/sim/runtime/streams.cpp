// Streams and events.

#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/runtime.h"

struct CUevent_st {
    CUstream_st* stream = nullptr;  // where it was recorded last; null: never
    uint64_t sequence = 0;
    bool captured = false;  // recorded into a graph: it never happens outside
    bool timed = true;
    std::chrono::steady_clock::time_point when;
};

namespace mgsim {

namespace {

std::vector<CUevent_st*>& events() {
    static auto& all = *new std::vector<CUevent_st*>;
    return all;
}

bool known(const CUevent_st* event) { return std::find(events().begin(), events().end(), event) != events().end(); }

// Asking whether work is done lets a little of it happen, so that a loop that asks ends.
cudaError_t query(CUstream_st& stream, uint64_t sequence) {
    if (has_run(stream, sequence)) return cudaSuccess;
    run_until(stream, stream.queue.front().sequence);
    return cudaErrorNotReady;
}

cudaError_t refuse_own_capture(CUstream_st& stream) {
    if (!stream.recording) return cudaSuccess;
    stream.spoiled = true;
    return report(cudaErrorStreamCaptureUnsupported);
}

}  // namespace

}  // namespace mgsim

using mgsim::Lock;
using mgsim::report;
using mgsim::runtime_mutex;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    const Lock lock(runtime_mutex());
    if (stream == nullptr || flags > cudaStreamNonBlocking) return report(cudaErrorInvalidValue);
    *stream = new CUstream_st;
    (*stream)->blocking = flags == cudaStreamDefault;
    mgsim::all_streams().push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    const Lock lock(runtime_mutex());
    CUstream_st* const stream = mgsim::find_stream(handle);
    if (stream == nullptr || stream == mgsim::all_streams()[0] || stream == mgsim::all_streams()[1])
        return report(cudaErrorInvalidResourceHandle);
    mgsim::run_all(*stream);  // the work goes on without the handle
    stream->alive = false;
    stream->recording.reset();
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    const Lock lock(runtime_mutex());
    CUstream_st* const stream = mgsim::find_stream(handle);
    if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
    if (const cudaError_t error = mgsim::refuse_own_capture(*stream)) return error;
    mgsim::run_all(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    const Lock lock(runtime_mutex());
    CUstream_st* const stream = mgsim::find_stream(handle);
    if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
    if (const cudaError_t error = mgsim::refuse_own_capture(*stream)) return error;
    return stream->queue.empty() ? cudaSuccess : mgsim::query(*stream, stream->queue.back().sequence);
}

cudaError_t cudaDeviceSynchronize(void) {
    const Lock lock(runtime_mutex());
    if (const cudaError_t error = mgsim::refuse_while_capturing()) return error;
    mgsim::run_everything();
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    const Lock lock(runtime_mutex());
    if (event == nullptr) return report(cudaErrorInvalidValue);
    *event = new CUevent_st;
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    mgsim::events().push_back(*event);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const Lock lock(runtime_mutex());
    if (!mgsim::known(event)) return report(cudaErrorInvalidResourceHandle);
    if (event->stream != nullptr && !event->captured)
        mgsim::run_until(*event->stream, event->sequence);  // a task writes into it
    mgsim::events().erase(std::find(mgsim::events().begin(), mgsim::events().end(), event));
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    const Lock lock(runtime_mutex());
    CUstream_st* const stream = mgsim::find_stream(handle);
    if (stream == nullptr || !mgsim::known(event)) return report(cudaErrorInvalidResourceHandle);
    if (stream->recording) {
        if (stream->spoiled) return report(cudaErrorStreamCaptureInvalidated);
        event->stream = stream;
        event->captured = true;
        return cudaSuccess;
    }
    if (const cudaError_t error =
            mgsim::enqueue(*stream, {[event] { event->when = std::chrono::steady_clock::now(); }, false}))
        return error;
    event->stream = stream;
    event->captured = false;
    event->sequence = stream->queue.back().sequence;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
    const Lock lock(runtime_mutex());
    CUstream_st* const stream = mgsim::find_stream(handle);
    if (stream == nullptr || !mgsim::known(event)) return report(cudaErrorInvalidResourceHandle);
    if (event->stream == nullptr) return cudaSuccess;
    if (event->captured ||
        stream->recording)  // within one stream it changes nothing; graphs of several are not modelled
        return event->captured && event->stream == stream ? cudaSuccess : report(cudaErrorNotSupported);
    mgsim::Task task{[] {}, false};
    task.wait_stream = event->stream;
    task.wait_sequence = event->sequence;
    return mgsim::enqueue(*stream, std::move(task));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    const Lock lock(runtime_mutex());
    if (!mgsim::known(event)) return report(cudaErrorInvalidResourceHandle);
    if (event->captured) return report(cudaErrorCapturedEvent);
    if (event->stream != nullptr) mgsim::run_until(*event->stream, event->sequence);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    const Lock lock(runtime_mutex());
    if (!mgsim::known(event)) return report(cudaErrorInvalidResourceHandle);
    if (event->captured) return report(cudaErrorCapturedEvent);
    return event->stream == nullptr ? cudaSuccess : mgsim::query(*event->stream, event->sequence);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    const Lock lock(runtime_mutex());
    for (const CUevent_st* event : {start, end}) {
        if (!mgsim::known(event) || event->stream == nullptr || !event->timed)
            return report(cudaErrorInvalidResourceHandle);
        if (event->captured) return report(cudaErrorCapturedEvent);
        if (!mgsim::has_run(*event->stream, event->sequence)) return cudaErrorNotReady;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(end->when - start->when).count();
    return cudaSuccess;
}
}
