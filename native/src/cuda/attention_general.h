// Attention in float arithmetic, for every shape: what float32 takes, and bfloat16 where the tensor cores' kernels don't.
#pragma once

#include "cuda/launchers.h"

namespace mg::cuda {

template <typename E>
void general_attention_forward(Stream stream, E* out, float* log_sums, const E* qkv, int64_t B, int64_t T, int64_t C,
                               int64_t NH);
// deltas [B, NH, T] is scratch
template <typename E>
void general_attention_backward(Stream stream, E* dqkv, float* deltas, const E* dout, const E* qkv, const E* out,
                                const float* log_sums, int64_t B, int64_t T, int64_t C, int64_t NH);

}  // namespace mg::cuda
