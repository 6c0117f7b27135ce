// The model's sizes, checked once.
#pragma once

#include <cstdint>

namespace mg {

struct Config {
    int64_t vocab_size;
    int64_t block_size;
    int64_t n_layer;
    int64_t n_head;
    int64_t n_embd;

    int64_t mlp_dim() const { return 4 * n_embd; }

    void check() const;                                              // raises MG_ERROR_ARGUMENT
    void check_batch(const char* call, int64_t B, int64_t T) const;  // the same, of a batch's sizes
};

}  // namespace mg
