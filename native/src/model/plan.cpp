#include "model/plan.h"

#include <algorithm>

#include "model/activations.h"
#include "model/decoder.h"
#include "model/tensors.h"

namespace mg {

mg_memory_plan plan_memory(const Config& config, const Backend& backend, int64_t B, int64_t T, Purpose purpose) {
    const bool trains = purpose == Purpose::training, decodes = purpose == Purpose::decoding;
    const TensorTable table(config);
    const int64_t values = table.memory_floats() * static_cast<int64_t>(sizeof(float));
    const int64_t prepared = static_cast<int64_t>(backend.prepared_bytes(table.memory_floats()));
    const KeptBytes model = decodes ? Decoder::bytes(backend, config, B, B * T)
                                    : activation_bytes(backend, config, B, T, Keep::for_backward);
    const int64_t positions = decodes ? config.block_size : T;
    const int64_t C = config.n_embd, hidden = config.hidden_dim();
    const int64_t biased = std::max(config.attn_bias ? 3 * C : 0, config.mlp_bias ? std::max(hidden, C) : 0);
    const WorkShape shape{purpose, B * T,          B,      positions,         C, config.n_head, config.vocab_size,
                          hidden,  config.mlp_dim, biased, config.has_norms()};
    mg_memory_plan plan;
    plan.parameters = values + (decodes || backend.trains_prepared() ? prepared : 0);
    plan.gradients = trains ? values : 0;
    plan.moments = trains ? 2 * values : 0;
    plan.activations = static_cast<int64_t>(model.kept);
    plan.workspace = static_cast<int64_t>(model.workspace + backend.scratch_bytes(shape));
    plan.total = plan.parameters + plan.gradients + plan.moments + plan.activations + plan.workspace;
    return plan;
}

}  // namespace mg
