// The one table of the model's tensors.  Sizes, offsets, initialisation, weight decay, AdamW, views and checkpoints all
// walk it; nothing else knows which tensors there are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend.h"
#include "model/config.h"

namespace mg {

enum class Init { zeros, ones, normal };

struct Tensor {
    std::string name;  // GPT-2's
    int64_t rows;      // [rows, columns], or [rows] where columns is 0
    int64_t columns;
    Init init;
    float std;       // of Init::normal
    int64_t offset;  // in floats from the start of each kind of memory

    bool is_matrix() const { return columns > 0; }
    bool decays() const { return is_matrix(); }
    int64_t size() const { return is_matrix() ? rows * columns : rows; }
};

constexpr int kNoTensor = -1;

// A linear layer's or norm's pair of tensors, as indices into the table; a dialect may have one of them, or none.
struct Pair {
    int weight = kNoTensor;
    int bias = kNoTensor;
};

struct BlockTensors {
    Pair ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj;
};

class TensorTable {
   public:
    explicit TensorTable(const Config& config);

    const std::vector<Tensor>& tensors() const { return tensors_; }
    const Tensor& operator[](int index) const { return tensors_[static_cast<size_t>(index)]; }
    int64_t memory_floats() const { return memory_floats_; }      // of one kind of memory, padding included
    int64_t parameter_count() const { return parameter_count_; }  // without padding
    const std::vector<ParameterRange>& ranges() const { return ranges_; }

    int wte, wpe, head;  // head is wte where they are tied
    Pair ln_emb;
    std::vector<BlockTensors> blocks;
    Pair ln_f;

   private:
    int add(const std::string& name, int64_t rows, int64_t columns, Init init, float std);
    Pair add_norm(const std::string& name, const Config& config);
    Pair add_linear(const std::string& name, int64_t outputs, int64_t inputs, float std, bool has_bias);

    std::vector<Tensor> tensors_;
    std::vector<ParameterRange> ranges_;
    int64_t memory_floats_ = 0;
    int64_t parameter_count_ = 0;
};

}  // namespace mg
