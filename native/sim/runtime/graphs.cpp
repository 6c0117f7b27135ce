// Capture of a stream into a graph, and its replay.  A graph keeps tasks with the arguments they were recorded with.

#include <algorithm>

#include "runtime/runtime.h"

using mgsim::Lock;
using mgsim::report;
using mgsim::runtime_mutex;

extern "C" {

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    const Lock lock(runtime_mutex());
    const CUstream_st* const stream = mgsim::find_stream(handle);
    if (stream == nullptr || status == nullptr) return report(cudaErrorInvalidValue);
    *status = !stream->recording ? cudaStreamCaptureStatusNone
              : stream->spoiled  ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    const Lock lock(runtime_mutex());
    CUstream_st* const stream = mgsim::find_stream(handle);
    if (stream == nullptr) return report(cudaErrorInvalidResourceHandle);
    if (stream == mgsim::all_streams().front()) return report(cudaErrorStreamCaptureUnsupported);
    if (stream->recording) return report(cudaErrorInvalidValue);
    stream->recording = std::make_unique<CUgraph_st>();
    stream->spoiled = false;
    stream->mode = mode;
    stream->recorder = std::this_thread::get_id();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    const Lock lock(runtime_mutex());
    CUstream_st* const stream = mgsim::find_stream(handle);
    if (stream == nullptr || graph == nullptr) return report(cudaErrorInvalidValue);
    *graph = nullptr;
    if (!stream->recording) return report(cudaErrorInvalidValue);
    if (stream->mode != cudaStreamCaptureModeRelaxed && stream->recorder != std::this_thread::get_id())
        return report(cudaErrorStreamCaptureWrongThread);
    const std::unique_ptr<CUgraph_st> recording = std::move(stream->recording);
    if (stream->spoiled) return report(cudaErrorStreamCaptureInvalidated);
    *graph = new CUgraph_st(*recording);
    return cudaSuccess;
}

// Names no nodes, for nobody can do anything with them here: counts them.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    const Lock lock(runtime_mutex());
    if (graph == nullptr || count == nullptr) return report(cudaErrorInvalidValue);
    if (nodes != nullptr) return report(cudaErrorNotSupported);
    const auto is_node = [](const mgsim::Task& task) { return task.node; };
    *count = static_cast<size_t>(std::count_if(graph->tasks.begin(), graph->tasks.end(), is_node));
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    const Lock lock(runtime_mutex());
    if (executable == nullptr || graph == nullptr) return report(cudaErrorInvalidValue);
    *executable = new CUgraphExec_st{graph->tasks};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t) {
    return report(executable == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
    const Lock lock(runtime_mutex());
    if (executable == nullptr) return report(cudaErrorInvalidValue);
    for (const mgsim::Task& task : executable->tasks)
        if (const cudaError_t error = mgsim::enqueue(handle, task)) return error;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    const Lock lock(runtime_mutex());
    if (graph == nullptr) return report(cudaErrorInvalidValue);
    delete graph;
    return cudaSuccess;
}

// Replays that are queued keep the tasks they need.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    const Lock lock(runtime_mutex());
    if (executable == nullptr) return report(cudaErrorInvalidValue);
    delete executable;
    return cudaSuccess;
}
}
