// The memory that ops work in, one piece for each use: uses never share, because a piece may hold counters that an op expects to
// find as it left them.  A piece grows when a larger shape comes and is zeroed when it is allocated, and only then.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "cuda/device.h"

namespace mg::cuda {

enum class Use : size_t {
    fixed,      // small pieces whose size is known from the start
    norm,       // partial sums of norm_backward
    bias,       // a bias gradient
    columns,    // partial sums of column_sums
    attention,  // of attention_backward
    head,       // a chunk of logits
    decode,     // parts of a long context
    weight,     // a weight whose copy in the backend's precision the caller didn't give
    weight_bias,
    count
};

class Scratch {
   public:
    // before_growth is called before a piece moves: what was recorded works in the old one.
    Scratch(Device& device, std::function<void()> before_growth)
        : device_(device), before_growth_(std::move(before_growth)) {}
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    void* at_least(Use use, size_t bytes);

    // What a piece of that many bytes takes: the runtime hands out units of 512.
    static constexpr size_t kUnit = 512;
    static size_t rounded(size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

   private:
    struct Piece {
        void* memory;
        size_t bytes;
    };

    Device& device_;
    std::function<void()> before_growth_;
    std::array<Piece, static_cast<size_t>(Use::count)> pieces_{};
};

}  // namespace mg::cuda
