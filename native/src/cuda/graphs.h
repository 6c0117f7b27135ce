// Lists of ops that come again and again, each recorded as one CUDA graph: starting it costs the host one call, not hundreds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "backend.h"
#include "cuda/device.h"

namespace mg::cuda {

class Graphs {
   public:
    explicit Graphs(Device& device) : device_(device) {}
    ~Graphs() { drop(); }
    Graphs(const Graphs&) = delete;
    Graphs& operator=(const Graphs&) = delete;

    // A key's first call does ops() as they are: that is when scratch grows and products are planned.  Its second records them;
    // that call and all later ones start the record.
    void repeat(const RepeatKey& key, const std::function<void()>& ops);

    // Forgets all keys: memory that a record works in is gone, or about to go.
    void drop() noexcept;

   private:
    struct Record {
        RepeatKey key;
        cudaGraphExec_t graph;  // null: done once, not recorded yet
        int64_t launches;       // of kernels and products in it
    };
    static constexpr size_t kMostRecords = 16;  // then the one that was used longest ago goes

    Record* find(const RepeatKey& key);  // and makes it the newest
    void record(Record* record, const std::function<void()>& ops);

    Device& device_;
    std::vector<Record> records_;  // oldest use first
};

}  // namespace mg::cuda
