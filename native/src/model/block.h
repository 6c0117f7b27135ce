// The forward list of a block, for training and for decoding: they differ in what attention looks at, and in nothing else.
#pragma once

#include <cstdint>

#include "backend.h"
#include "model/activations.h"
#include "model/parameters.h"

namespace mg {

// What a layer reads of the residual stream x [N, C]: normed, or as it is.
inline void read_stream(Backend& backend, Parameters& p, Element* out, const NormStatistics& s, const float* x,
                        bool normed, const Pair& tensors, int64_t N, int64_t C) {
    if (normed)
        backend.norm_forward(out, s.mean, s.rstd, x, p.value(tensors.weight), p.value(tensors.bias), N, C);
    else
        backend.read_stream(out, x, N * C);
}

// A norm on the residual stream itself; out may be x.  elements: what the next layer reads of it; null where it reads it otherwise.
inline void norm_stream(Backend& backend, Parameters& p, float* out, Element* elements, const NormStatistics& s,
                        const float* x, const Pair& tensors, int64_t N, int64_t C) {
    backend.stream_norm_forward(out, elements, s.mean, s.rstd, x, p.value(tensors.weight), p.value(tensors.bias), N, C);
}

// What comes before the first block.
inline void begin_blocks(Backend& backend, const Config& config, Element* normed, const float* x, int64_t N) {
    if (config.norm_position == NormPosition::post) backend.read_stream(normed, x, N * config.n_embd);
}

// a.x [N, C] -> x_next [N, C]; `normed` [N, C] and `wide` [N, mlp_dim] are scratch.  attend() makes a.attention from a.qkv.
// x_next may be a.x.  Post-norm: `normed` holds a.x as Elements where the block begins, and x_next where it ends.
template <typename Attend>
void block_forward(Backend& backend, Parameters& p, const Config& config, const BlockTensors& t,
                   const BlockActivations& a, Element* normed, Element* wide, float* x_next, int64_t N,
                   const Attend& attend) {
    const int64_t C = config.n_embd;
    const bool pre = config.norm_position == NormPosition::pre, post = config.norm_position == NormPosition::post;
    // x_out = residual + layer(in), and that normed where the dialect is post-norm: `sum` keeps what the norm reads.
    const auto add = [&](float* x_out, float* sum, const float* x_in, const Element* in, const Pair& layer,
                         const NormStatistics& s, const Pair& norm) {
        if (sum == nullptr) sum = x_out;
        backend.linear_residual_forward(sum, config.residual ? x_in : nullptr, in, p.weight(layer.weight),
                                        p.bias(layer.bias), N);
        if (post) norm_stream(backend, p, x_out, normed, s, sum, norm, N, C);
    };

    if (!post) read_stream(backend, p, normed, a.ln_1, a.x, pre, t.ln_1, N, C);
    backend.linear_forward(a.qkv, normed, p.weight(t.c_attn.weight), p.bias(t.c_attn.bias), N);
    attend();
    add(a.x_middle, a.attention_sum, a.x, a.attention, t.attn_proj, a.ln_1, t.ln_1);

    if (!post) read_stream(backend, p, normed, a.ln_2, a.x_middle, pre, t.ln_2, N, C);
    const Weight c_fc = p.weight(t.c_fc.weight);
    const Bias bias = p.bias(t.c_fc.bias);
    if (config.activation == Activation::gelu) {
        backend.linear_gelu_forward(a.hidden, wide, normed, c_fc, bias, N);
    } else {
        backend.linear_forward(a.hidden, normed, c_fc, bias, N);
        backend.activation_forward(config.activation, wide, a.hidden, N, config.mlp_dim);
    }
    add(x_next, a.mlp_sum, a.x_middle, wide, t.mlp_proj, a.ln_2, t.ln_2);
}

}  // namespace mg
