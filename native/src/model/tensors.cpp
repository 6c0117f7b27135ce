#include "model/tensors.h"

#include <cmath>

namespace mg {
namespace {

constexpr float kStd = 0.02f;             // GPT-2's initialisation
constexpr int64_t kAlignmentFloats = 16;  // every tensor starts on a 64-byte line

}  // namespace

TensorTable::TensorTable(const Config& c) {
    // Projections that add to the residual stream start smaller, so that its variance doesn't grow with depth (GPT-2).
    const float residual_std = kStd / std::sqrt(2.0f * static_cast<float>(c.n_layer));
    wte = add("wte.weight", c.vocab_size, c.n_embd, Init::normal, kStd);
    wpe = add("wpe.weight", c.block_size, c.n_embd, Init::normal, kStd);
    for (int64_t i = 0; i < c.n_layer; ++i) {
        const std::string h = "h." + std::to_string(i) + ".";
        BlockTensors block;
        block.ln_1 = add_norm(h + "ln_1", c.n_embd);
        block.c_attn = add_linear(h + "attn.c_attn", 3 * c.n_embd, c.n_embd, kStd);
        block.attn_proj = add_linear(h + "attn.c_proj", c.n_embd, c.n_embd, residual_std);
        block.ln_2 = add_norm(h + "ln_2", c.n_embd);
        block.c_fc = add_linear(h + "mlp.c_fc", c.mlp_dim(), c.n_embd, kStd);
        block.mlp_proj = add_linear(h + "mlp.c_proj", c.n_embd, c.mlp_dim(), residual_std);
        blocks.push_back(block);
    }
    ln_f = add_norm("ln_f", c.n_embd);
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

Pair TensorTable::add_norm(const std::string& name, int64_t width) {
    const int weight = add(name + ".weight", width, 0, Init::ones, 0.0f);
    return {weight, add(name + ".bias", width, 0, Init::zeros, 0.0f)};
}

Pair TensorTable::add_linear(const std::string& name, int64_t outputs, int64_t inputs, float std) {
    const int weight = add(name + ".weight", outputs, inputs, Init::normal, std);
    return {weight, add(name + ".bias", outputs, 0, Init::zeros, 0.0f)};
}

}  // namespace mg
