#include "cuda/graphs.h"

#include <algorithm>

#include "cuda/check.h"
#include "cuda/launch_count.h"
#include "error.h"

namespace mg::cuda {
namespace {

void destroy(cudaGraphExec_t graph) {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
}

}  // namespace

void Graphs::drop() noexcept {
    for (const Record& record : records_) destroy(record.graph);
    records_.clear();
}

Graphs::Record* Graphs::find(const RepeatKey& key) {
    const auto found = std::find_if(records_.begin(), records_.end(), [&](const Record& r) { return r.key == key; });
    if (found == records_.end()) return nullptr;
    std::rotate(found, found + 1, records_.end());
    return &records_.back();
}

void Graphs::record(Record* record, const std::function<void()>& ops) {
    const int64_t launches_before = launch_count();
    device_.begin_capture();
    cudaGraph_t graph = nullptr;
    try {
        ops();
    } catch (...) {
        graph = device_.end_capture();
        if (graph != nullptr) cudaGraphDestroy(graph);
        throw;
    }
    graph = device_.end_capture();
    if (graph == nullptr)
        throw Error(MG_ERROR_DEVICE, "the ops of a step could not be recorded as a CUDA graph: one of them can't be");
    const cudaError_t code = cudaGraphInstantiate(&record->graph, graph, 0);
    cudaGraphDestroy(graph);
    if (code != cudaSuccess) record->graph = nullptr;
    check(code, "cudaGraphInstantiate");
    record->launches = launch_count() - launches_before;
}

void Graphs::repeat(const RepeatKey& key, const std::function<void()>& ops) {
    Record* known = find(key);
    if (known == nullptr) {
        ops();
        if (records_.size() == kMostRecords) {
            destroy(records_.front().graph);
            records_.erase(records_.begin());
        }
        records_.push_back({key, nullptr, 0});
        return;
    }
    // The launches of a record count once when it is made, and again each time it is replayed.
    if (known->graph == nullptr)
        record(known, ops);
    else
        add_launches(known->launches);
    check(cudaGraphLaunch(known->graph, device_.stream()), "cudaGraphLaunch");
}

}  // namespace mg::cuda
