// The model's sizes and dialect, checked once.
#pragma once

#include <cstdint>

#include "backend.h"

namespace mg {

enum class Norm { layernorm, rmsnorm };
enum class NormPosition {
    pre,   // x + sublayer(norm(x))
    post,  // norm(x + sublayer(x))
    none   // x + sublayer(x)
};

struct Config {
    int64_t vocab_size;
    int64_t block_size;
    int64_t n_layer;
    int64_t n_head;
    int64_t n_embd;
    int64_t mlp_dim;  // of the MLP's second layer's input
    Norm norm;
    bool norm_affine;  // norms have a gain, layer norms a bias too
    NormPosition norm_position;
    bool residual;  // a sublayer's input is added to its output
    Activation activation;
    bool attn_bias;
    bool mlp_bias;
    bool tie_embeddings;  // the head is wte
    bool final_norm;      // before the head
    bool embedding_norm;  // after the sum of the embeddings
    bool scaled_init;     // projections to the residual stream start smaller by sqrt(2 n_layer)
    float init_std;

    // Of the MLP's first layer's output: a gated activation takes two numbers for one.
    int64_t hidden_dim() const { return is_gated(activation) ? 2 * mlp_dim : mlp_dim; }
    bool has_block_norms() const { return norm_position != NormPosition::none; }
    bool has_norms() const { return has_block_norms() || final_norm || embedding_norm; }

    void check() const;                                               // raises MG_ERROR_ARGUMENT
    void check_batch(const char* call, int64_t B, int64_t T) const;   // the same, of a batch's sizes
    void check_sequences(const char* call, int64_t sequences) const;  // and of a decoder's
};

// What mlp_dim is where nobody says: 4 n_embd (GPT-2), and of gated activations the same number of weights, in whole 64s.
int64_t usual_mlp_dim(int64_t n_embd, Activation activation);

}  // namespace mg
