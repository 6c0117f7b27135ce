#include "model/tensors.h"

#include <cmath>

namespace mg {
namespace {

constexpr int64_t kAlignmentFloats = 16;  // every tensor starts on a 64-byte line

}  // namespace

TensorTable::TensorTable(const Config& c) {
    // Projections that add to the residual stream start smaller, so that its variance doesn't grow with depth (GPT-2).
    const float std = c.init_std;
    const float projection_std = c.scaled_init ? std / std::sqrt(2.0f * static_cast<float>(c.n_layer)) : std;
    wte = add("wte.weight", c.vocab_size, c.n_embd, Init::normal, std);
    wpe = add("wpe.weight", c.block_size, c.n_embd, Init::normal, std);
    // Not the last one: a product may read a few rows past a head's end, in memory that must be there.
    head = c.tie_embeddings ? wte : add("lm_head.weight", c.vocab_size, c.n_embd, Init::normal, std);
    if (c.embedding_norm) ln_emb = add_norm("ln_emb", c);
    for (int64_t i = 0; i < c.n_layer; ++i) {
        const std::string h = "h." + std::to_string(i) + ".";
        BlockTensors block;
        if (c.has_block_norms()) block.ln_1 = add_norm(h + "ln_1", c);
        block.c_attn = add_linear(h + "attn.c_attn", 3 * c.n_embd, c.n_embd, std, c.attn_bias);
        block.attn_proj = add_linear(h + "attn.c_proj", c.n_embd, c.n_embd, projection_std, c.attn_bias);
        if (c.has_block_norms()) block.ln_2 = add_norm(h + "ln_2", c);
        block.c_fc = add_linear(h + "mlp.c_fc", c.hidden_dim(), c.n_embd, std, c.mlp_bias);
        block.mlp_proj = add_linear(h + "mlp.c_proj", c.n_embd, c.mlp_dim, projection_std, c.mlp_bias);
        blocks.push_back(block);
    }
    if (c.final_norm) ln_f = add_norm("ln_f", c);
}

int TensorTable::add(const std::string& name, int64_t rows, int64_t columns, Init init, float std) {
    const Tensor tensor{name, rows, columns, init, std, memory_floats_};
    const int64_t end = memory_floats_ + (tensor.size() + kAlignmentFloats - 1) / kAlignmentFloats * kAlignmentFloats;
    // The padding between two tensors is 0 in every kind of memory and stays 0 under AdamW, so ranges may span it.
    if (!ranges_.empty() && ranges_.back().decays == tensor.decays())
        ranges_.back().end = end;
    else
        ranges_.push_back({memory_floats_, end, tensor.decays()});
    memory_floats_ = end;
    parameter_count_ += tensor.size();
    tensors_.push_back(tensor);
    return static_cast<int>(tensors_.size()) - 1;
}

Pair TensorTable::add_norm(const std::string& name, const Config& c) {
    Pair pair;
    if (!c.norm_affine) return pair;
    pair.weight = add(name + ".weight", c.n_embd, 0, Init::ones, 0.0f);
    if (c.norm == Norm::layernorm) pair.bias = add(name + ".bias", c.n_embd, 0, Init::zeros, 0.0f);
    return pair;
}

Pair TensorTable::add_linear(const std::string& name, int64_t outputs, int64_t inputs, float std, bool has_bias) {
    Pair pair;
    pair.weight = add(name + ".weight", outputs, inputs, Init::normal, std);
    if (has_bias) pair.bias = add(name + ".bias", outputs, 0, Init::zeros, 0.0f);
    return pair;
}

}  // namespace mg
