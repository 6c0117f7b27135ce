// extern "C" bodies of microgpt_cuda.h: a model's memory by its tensors, and what a forward keeps.
#include <cstring>
#include <vector>

#include "backend.h"
#include "model_handle.h"
#include "guard.h"

namespace mg {
namespace {

float* memory_of(Gpt& gpt, mg_memory kind) {
    Parameters& parameters = gpt.parameters();
    switch (kind) {
        case MG_PARAMETERS: return parameters.values();
        case MG_GRADIENTS: return parameters.gradients();
        case MG_MOMENT_1: return parameters.moment_1();
        case MG_MOMENT_2: return parameters.moment_2();
    }
    check_argument(false, "memory: kind is %d but must be 0 to 3", static_cast<int>(kind));
    return nullptr;
}

// The start of `count` numbers at `offset`, which must lie inside.
float* checked_range(Gpt& gpt, const char* call, mg_memory kind, int64_t offset, int64_t count) {
    const int64_t floats = gpt.parameters().table().memory_floats();
    check_argument(offset >= 0 && count >= 0 && offset <= floats && count <= floats - offset,
                   "%s: numbers %lld to %lld are outside the model's %lld", call, static_cast<long long>(offset),
                   static_cast<long long>(offset + count), static_cast<long long>(floats));
    return memory_of(gpt, kind) + offset;
}

}  // namespace
}  // namespace mg

using mg::check_argument;
using mg::check_pointer;
using mg::guarded;

extern "C" {

// ---- tensors

int32_t mg_model_tensor_count(const mg_model* model) {
    return model == nullptr ? 0 : static_cast<int32_t>(model->gpt->parameters().table().tensors().size());
}

mg_status mg_model_tensor(const mg_model* model, int32_t index, mg_tensor* tensor) {
    return guarded([&] {
        check_pointer(model, "tensor", "model");
        check_pointer(tensor, "tensor", "tensor");
        check_argument(index >= 0 && index < mg_model_tensor_count(model),
                       "tensor: index is %d but there are %d tensors", index, mg_model_tensor_count(model));
        const mg::Tensor& from = model->gpt->parameters().table()[index];
        *tensor = {};
        std::strncpy(tensor->name, from.name.c_str(), sizeof tensor->name - 1);
        tensor->n_dims = from.is_matrix() ? 2 : 1;
        tensor->shape[0] = from.rows;
        tensor->shape[1] = from.is_matrix() ? from.columns : 1;
        tensor->offset = from.offset;
        tensor->size = from.size();
        tensor->decays = from.decays() ? 1 : 0;
    });
}

int64_t mg_model_parameter_count(const mg_model* model) {
    return model == nullptr ? 0 : model->gpt->parameters().table().parameter_count();
}

mg_status mg_model_memory(mg_model* model, mg_memory kind, float** memory) {
    return guarded([&] {
        check_pointer(model, "memory", "model");
        check_pointer(memory, "memory", "memory");
        *memory = mg::memory_of(*model->gpt, kind);
        if (model->gpt->backend().host_readable()) model->gpt->backend().synchronize();
    });
}

mg_status mg_model_read(mg_model* model, mg_memory kind, int64_t offset, int64_t count, float* values) {
    return guarded([&] {
        check_pointer(model, "model_read", "model");
        check_pointer(values, "model_read", "values");
        const float* memory = mg::checked_range(*model->gpt, "model_read", kind, offset, count);
        model->gpt->backend().copy_out(values, memory, static_cast<size_t>(count) * sizeof(float));
    });
}

mg_status mg_model_write(mg_model* model, mg_memory kind, int64_t offset, int64_t count, const float* values) {
    return guarded([&] {
        check_pointer(model, "model_write", "model");
        check_pointer(values, "model_write", "values");
        float* memory = mg::checked_range(*model->gpt, "model_write", kind, offset, count);
        model->gpt->backend().copy_in(memory, values, static_cast<size_t>(count) * sizeof(float));
    });
}

mg_status mg_model_activation_count(mg_model* model, int32_t* count) {
    return guarded([&] {
        check_pointer(model, "activation_count", "model");
        check_pointer(count, "activation_count", "count");
        *count = static_cast<int32_t>(model->gpt->named_activations().size());
    });
}

mg_status mg_model_activation(mg_model* model, int32_t index, mg_activation* activation) {
    return guarded([&] {
        check_pointer(model, "activation", "model");
        check_pointer(activation, "activation", "activation");
        const std::vector<mg::NamedActivation> all = model->gpt->named_activations();
        check_argument(index >= 0 && index < static_cast<int32_t>(all.size()),
                       "activation: index is %d but there are %zu", index, all.size());
        const mg::NamedActivation& from = all[static_cast<size_t>(index)];
        mg::Backend& backend = model->gpt->backend();
        *activation = {};
        std::strncpy(activation->name, from.name.c_str(), sizeof activation->name - 1);
        activation->is_bf16 = from.is_element && backend.element_bytes() != sizeof(float) ? 1 : 0;
        activation->n_dims = static_cast<int32_t>(from.shape.size());
        for (size_t i = 0; i < from.shape.size(); ++i) activation->shape[i] = from.shape[i];
        activation->memory = from.memory;
        if (backend.host_readable()) backend.synchronize();
    });
}

mg_status mg_model_refresh(mg_model* model) {
    return guarded([&] {
        check_pointer(model, "refresh", "model");
        model->gpt->parameters().prepare();
    });
}

}  // extern "C"
