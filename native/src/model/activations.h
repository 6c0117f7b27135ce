// Everything a step computes: what backward needs of each block, and the buffers that are used again and again.
// Outputs of norms and activations are not kept: backward computes them once more, which saves 6 of 16 rows of C a block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend.h"
#include "model/buffer.h"
#include "model/config.h"

namespace mg {

enum class Keep { for_backward, nothing };

struct KeptBytes {
    size_t kept;  // from forward to backward, or from token to token
    size_t workspace;
};

struct NormStatistics {
    float* mean = nullptr;  // [N]; null: RMSNorm has none
    float* rstd = nullptr;  // [N]
};

struct BlockActivations {
    float* x = nullptr;  // [N, C] the residual stream before the block
    NormStatistics ln_1;
    Element* qkv = nullptr;           // [N, 3C]
    void* attention_saved = nullptr;  // attention_saved_bytes
    Element* attention = nullptr;     // [N, C]
    float* attention_sum = nullptr;   // [N, C] what a post-norm reads; else null
    float* x_middle = nullptr;        // [N, C] the residual stream between the sublayers
    NormStatistics ln_2;
    Element* hidden = nullptr;  // [N, hidden_dim] the MLP before its activation
    float* mlp_sum = nullptr;   // [N, C] what a post-norm reads; else null
};

struct Activations {
    int32_t *tokens, *targets;  // [N]
    float* embeddings;          // [N, C] the sum that an embedding norm reads; else null
    NormStatistics ln_emb;
    std::vector<BlockActivations> blocks;  // one set that all share where nothing is kept
    float* x;                              // [N, C] the residual stream after the last block
    NormStatistics ln_f;
    float* losses;      // [N]
    BatchScale* scale;  // [1]

    Element* normed;  // [N, C] output of a norm
    Element* wide;    // output of the activation, [N, mlp_dim]; in backward its gradient, and dqkv [N, 3C]
    // for backward only, else null
    Element* narrow;       // [N, C] gradient of a norm's output, and of the attention's
    float* dx;             // [N, C] gradient of the residual stream
    Element* dx_elements;  // [N, C] dx in the backend's precision: dx itself where that is float32
};

// One kept activation as lessons and tests see it: float32, or Elements in the backend's precision.
struct NamedActivation {
    std::string name;
    const void* memory;
    bool is_element;
    std::vector<int64_t> shape;  // [B, T] or [B, T, width]
};

KeptBytes activation_bytes(const Backend& backend, const Config& config, int64_t B, int64_t T, Keep keep);

// Lays the activations of B x T out in `memory`, which grows as needed.
Activations arrange_activations(Backend& backend, Buffer& memory, const Config& config, int64_t B, int64_t T,
                                Keep keep);

// Those that a forward keeps for backward, in the order in which they are made.
std::vector<NamedActivation> name_activations(const Activations& a, const Config& config, int64_t B, int64_t T);

}  // namespace mg
