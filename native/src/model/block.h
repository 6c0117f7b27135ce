// The forward list of a block, for training and for decoding: they differ in what attention looks at, and in nothing else.
#pragma once

#include <cstdint>

#include "backend.h"
#include "model/activations.h"
#include "model/parameters.h"

namespace mg {

inline void norm_forward(Backend& backend, Parameters& p, Element* out, const NormStatistics& statistics,
                         const float* x, const Pair& tensors, int64_t N, int64_t C) {
    backend.norm_forward(out, statistics.mean, statistics.rstd, x, p.value(tensors.weight), p.value(tensors.bias), N,
                         C);
}

// a.x [N, C] -> x_next [N, C]; `normed` [N, C] and `wide` [N, 4C] are scratch.  attend() makes a.attention from a.qkv.
// x_next may be a.x.
template <typename Attend>
void block_forward(Backend& backend, Parameters& p, const BlockTensors& t, const BlockActivations& a, Element* normed,
                   Element* wide, float* x_next, int64_t N, int64_t C, const Attend& attend) {
    norm_forward(backend, p, normed, a.ln_1, a.x, t.ln_1, N, C);
    backend.linear_forward(a.qkv, normed, p.weight(t.c_attn.weight), p.bias(t.c_attn.bias), N);
    attend();
    backend.linear_residual_forward(a.x_middle, a.x, a.attention, p.weight(t.attn_proj.weight),
                                    p.bias(t.attn_proj.bias), N);
    norm_forward(backend, p, normed, a.ln_2, a.x_middle, t.ln_2, N, C);
    backend.linear_gelu_forward(a.hidden, wide, normed, p.weight(t.c_fc.weight), p.bias(t.c_fc.bias), N);
    backend.linear_residual_forward(x_next, a.x_middle, wide, p.weight(t.mlp_proj.weight), p.bias(t.mlp_proj.bias), N);
}

}  // namespace mg
