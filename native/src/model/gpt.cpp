#include "model/gpt.h"

#include <algorithm>
#include <cmath>

#include "error.h"
#include "model/block.h"

namespace mg {

Gpt::Gpt(const Config& config, std::unique_ptr<Backend> backend, uint64_t seed)
    : config_(config),
      backend_(std::move(backend)),
      parameters_(*backend_, config),
      activation_memory_(*backend_),
      norm_memory_(*backend_) {
    parameters_.initialise(seed);
}

// ---- forward

void Gpt::trunk_forward(const int32_t* tokens) {
    const TensorTable& t = parameters_.table();
    const int64_t N = B_ * T_, C = config_.n_embd;
    backend_->copy_in(a_.tokens, tokens, static_cast<size_t>(N) * sizeof(int32_t));
    backend_->embedding_forward(a_.blocks[0].x, a_.tokens, nullptr, parameters_.value(t.wte), parameters_.value(t.wpe),
                                N, T_, C);
    for (size_t i = 0; i < t.blocks.size(); ++i) {
        const BlockActivations& a = a_.blocks[i];
        float* x_next = i + 1 < t.blocks.size() ? a_.blocks[i + 1].x : a_.x;
        block_forward(*backend_, parameters_, t.blocks[i], a, a_.normed, a_.wide, x_next, N, C, [&] {
            backend_->attention_forward(a.attention, a.attention_saved, a.qkv, B_, T_, C, config_.n_head);
        });
    }
    norm(a_.normed, a_.ln_f, a_.x, t.ln_f);
}

// ---- backward: the list of block.h, mirrored.  a_.dx holds the gradient of the residual stream from the end to the start.

void Gpt::trunk_backward() {
    const TensorTable& t = parameters_.table();
    const int64_t N = B_ * T_, C = config_.n_embd;
    backend_->zero(a_.dx, static_cast<size_t>(N * C) * sizeof(float));
    norm_backward(a_.narrow, a_.ln_f, a_.x, t.ln_f);
    for (size_t i = t.blocks.size(); i-- > 0;) block_backward(t.blocks[i], a_.blocks[i]);
    backend_->embedding_backward(parameters_.gradient(t.wte), parameters_.gradient(t.wpe), a_.dx, a_.tokens, N, T_, C);
}

void Gpt::block_backward(const BlockTensors& t, const BlockActivations& a) {
    Parameters& p = parameters_;
    const int64_t N = B_ * T_, C = config_.n_embd, M = config_.mlp_dim();

    // MLP: x_next = x_middle + c_proj(gelu(c_fc(ln_2(x_middle)))).  dhidden replaces hidden.
    const Element* dout = backend_->as_elements(a_.dx_elements, a_.dx, N * C);
    backend_->linear_gelu_backward_input(a.hidden, a_.wide, dout, a.hidden, p.weight(t.mlp_proj.weight), N);
    backend_->linear_backward_weight(p.gradient(t.mlp_proj.weight), p.gradient(t.mlp_proj.bias), dout, a_.wide, N, C,
                                     M);
    norm(a_.normed, a.ln_2, a.x_middle, t.ln_2);
    backend_->linear_backward_weight(p.gradient(t.c_fc.weight), p.gradient(t.c_fc.bias), a.hidden, a_.normed, N, M, C);
    backend_->linear_backward_input(a_.narrow, a.hidden, p.weight(t.c_fc.weight), N);
    norm_backward(a_.narrow, a.ln_2, a.x_middle, t.ln_2);

    // Attention: x_middle = x + c_proj(attention(c_attn(ln_1(x)))).
    Element* dqkv = a_.wide;
    dout = backend_->as_elements(a_.dx_elements, a_.dx, N * C);
    backend_->linear_backward_weight(p.gradient(t.attn_proj.weight), p.gradient(t.attn_proj.bias), dout, a.attention, N,
                                     C, C);
    backend_->linear_backward_input(a_.narrow, dout, p.weight(t.attn_proj.weight), N);
    backend_->attention_backward(dqkv, a_.narrow, a.qkv, a.attention, a.attention_saved, B_, T_, C, config_.n_head);
    norm(a_.normed, a.ln_1, a.x, t.ln_1);
    backend_->linear_backward_weight(p.gradient(t.c_attn.weight), p.gradient(t.c_attn.bias), dqkv, a_.normed, N, 3 * C,
                                     C);
    backend_->linear_backward_input(a_.narrow, dqkv, p.weight(t.c_attn.weight), N);
    norm_backward(a_.narrow, a.ln_1, a.x, t.ln_1);
}

void Gpt::norm(Element* out, const NormStatistics& s, const float* x, const Pair& t) {
    norm_forward(*backend_, parameters_, out, s, x, t, B_ * T_, config_.n_embd);
}

void Gpt::norm_backward(const Element* dout, const NormStatistics& s, const float* x, const Pair& t) {
    backend_->norm_backward(a_.dx, parameters_.gradient(t.weight), parameters_.gradient(t.bias), dout, x, s.mean,
                            s.rstd, parameters_.value(t.weight), B_ * T_, config_.n_embd);
}

// ---- head and loss: forward alone computes losses; with backward to follow at once, losses and gradient in one pass

void Gpt::head_backward(float loss_scale) {
    const TensorTable& t = parameters_.table();
    const float scale = loss_scale / static_cast<float>(counted_targets_);
    backend_->head_loss_backward(a_.losses, a_.narrow, parameters_.gradient(t.wte), a_.normed,
                                 parameters_.weight(t.wte), a_.targets, scale, B_ * T_);
}

float Gpt::mean_loss() {
    float sum;
    backend_->sum(a_.loss, a_.losses, B_ * T_);
    backend_->copy_out(&sum, a_.loss, sizeof sum);
    return sum / static_cast<float>(counted_targets_);
}

// ---- calls

float Gpt::forward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T) {
    check_tokens("forward", tokens, B, T);
    counted_targets_ = count_targets("forward", targets, B * T);
    arrange(B, T, Keep::for_backward);
    trunk_forward(tokens);
    backend_->copy_in(a_.targets, targets, static_cast<size_t>(B * T) * sizeof(int32_t));
    backend_->head_loss_forward(a_.losses, a_.normed, parameters_.weight(parameters_.table().wte), a_.targets, B * T);
    const float loss = mean_loss();
    ready_for_backward_ = true;
    return loss;
}

void Gpt::backward(float loss_scale) {
    check_state(ready_for_backward_,
                "backward: there is no forward to go back through; call forward first, once for each backward");
    ready_for_backward_ = false;
    head_backward(loss_scale);
    trunk_backward();
}

float Gpt::forward_backward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T, float loss_scale) {
    check_tokens("forward_backward", tokens, B, T);
    counted_targets_ = count_targets("forward_backward", targets, B * T);
    arrange(B, T, Keep::for_backward);
    trunk_forward(tokens);
    backend_->copy_in(a_.targets, targets, static_cast<size_t>(B * T) * sizeof(int32_t));
    head_backward(loss_scale);
    const float loss = mean_loss();
    trunk_backward();
    return loss;
}

void Gpt::logits(const int32_t* tokens, int64_t B, int64_t T, float* logits) {
    check_tokens("logits", tokens, B, T);
    arrange(B, T, Keep::nothing);
    trunk_forward(tokens);
    const size_t bytes = static_cast<size_t>(B * T * config_.vocab_size) * sizeof(float);
    Buffer on_device(*backend_);
    on_device.reserve(bytes);
    backend_->head_forward(on_device.as<float>(), a_.normed, parameters_.weight(parameters_.table().wte), B * T);
    backend_->copy_out(logits, on_device.get(), bytes);
}

float Gpt::step(AdamW options) {
    ready_for_backward_ = false;
    norm_memory_.reserve(sizeof(float));
    backend_->global_norm(norm_memory_.as<float>(), parameters_.gradients(), parameters_.table().memory_floats());
    options.step = step_count_ + 1;
    backend_->adamw(parameters_.values(), parameters_.gradients(), parameters_.moment_1(), parameters_.moment_2(),
                    norm_memory_.as<float>(), parameters_.table().ranges(), options);
    float norm;
    backend_->copy_out(&norm, norm_memory_.get(), sizeof norm);
    if (std::isfinite(norm)) {
        ++step_count_;
        parameters_.prepare();
    }
    return norm;
}

void Gpt::reset(uint64_t seed) {
    ready_for_backward_ = false;
    step_count_ = 0;
    parameters_.initialise(seed);
}

void Gpt::set_step_count(int64_t count) {
    check_argument(count >= 0, "step count is %lld but must not be negative", static_cast<long long>(count));
    step_count_ = count;
}

// ---- checks and memory

void Gpt::check_tokens(const char* call, const int32_t* tokens, int64_t B, int64_t T) const {
    config_.check_batch(call, B, T);
    for (int64_t i = 0; i < B * T; ++i)
        check_argument(tokens[i] >= 0 && tokens[i] < config_.vocab_size,
                       "%s: token %d at position (%lld, %lld) is outside the vocabulary of %lld", call, tokens[i],
                       static_cast<long long>(i / T), static_cast<long long>(i % T),
                       static_cast<long long>(config_.vocab_size));
}

int64_t Gpt::count_targets(const char* call, const int32_t* targets, int64_t N) const {
    int64_t counted = 0;
    for (int64_t i = 0; i < N; ++i) {
        check_argument(targets[i] >= MG_IGNORED_TARGET && targets[i] < config_.vocab_size,
                       "%s: target %d is outside the vocabulary of %lld (-1 ignores a position)", call, targets[i],
                       static_cast<long long>(config_.vocab_size));
        if (targets[i] != MG_IGNORED_TARGET) ++counted;
    }
    check_argument(counted > 0, "%s: every target is -1, so there is no loss", call);
    return counted;
}

void Gpt::arrange(int64_t B, int64_t T, Keep keep) {
    ready_for_backward_ = false;
    a_ = arrange_activations(*backend_, activation_memory_, config_, B, T, keep);
    B_ = B;
    T_ = T;
}

mg_memory_plan Gpt::plan(const Config& config, const Backend& backend, int64_t B, int64_t T, bool training) {
    const TensorTable table(config);
    const int64_t values = table.memory_floats() * static_cast<int64_t>(sizeof(float));
    int64_t prepared = 0;
    for (const Tensor& tensor : table.tensors())
        if (tensor.is_matrix()) prepared += static_cast<int64_t>(backend.prepared_bytes(tensor.rows, tensor.columns));
    const ActivationBytes activations =
        activation_bytes(backend, config, B, T, training ? Keep::for_backward : Keep::nothing);
    const int64_t widest = std::max(config.mlp_dim(), 3 * config.n_embd);
    const StepShape shape{B * T, T, config.n_embd, config.n_head, config.vocab_size, widest, training};
    mg_memory_plan plan;
    plan.parameters = values + (training ? 0 : prepared);  // weights are prepared for decoding only
    plan.gradients = training ? values : 0;
    plan.moments = training ? 2 * values : 0;
    plan.activations = static_cast<int64_t>(activations.kept);
    plan.workspace = static_cast<int64_t>(activations.workspace + backend.scratch_bytes(shape));
    plan.total = plan.parameters + plan.gradients + plan.moments + plan.activations + plan.workspace;
    return plan;
}

}  // namespace mg
