#include "model/gpt.h"

#include <cmath>
#include <utility>

#include "error.h"
#include "model/block.h"

namespace mg {

namespace {

// The kinds of a model's lists of ops that a backend may record.
enum Repeated : int64_t { kForward, kBackward, kForwardBackward, kUpdate, kUpdatePrepared };

}  // namespace

Gpt::Gpt(const Config& config, std::unique_ptr<Backend> backend, uint64_t seed)
    : config_(config),
      backend_(std::move(backend)),
      parameters_(*backend_, config),
      activation_memory_(*backend_),
      state_memory_(*backend_),
      options_memory_(*backend_) {
    state_memory_.reserve(sizeof(StepState));
    options_memory_.reserve(sizeof(AdamW));
    state_ = state_memory_.as<StepState>();
    options_ = options_memory_.as<AdamW>();
    reset(seed);
}

// ---- forward

void Gpt::trunk_forward() {
    const TensorTable& t = parameters_.table();
    const int64_t N = B_ * T_, C = config_.n_embd;
    float* embeddings = a_.embeddings != nullptr ? a_.embeddings : a_.blocks[0].x;
    backend_->embedding_forward(embeddings, a_.tokens, nullptr, parameters_.value(t.wte), parameters_.value(t.wpe), N,
                                T_, C);
    if (config_.embedding_norm)
        norm_stream(*backend_, parameters_, a_.blocks[0].x, nullptr, a_.ln_emb, embeddings, t.ln_emb, N, C);
    begin_blocks(*backend_, config_, a_.normed, a_.blocks[0].x, N);
    for (size_t i = 0; i < t.blocks.size(); ++i) {
        const BlockActivations& a = a_.blocks[i];
        float* x_next = i + 1 < t.blocks.size() ? a_.blocks[i + 1].x : a_.x;
        block_forward(*backend_, parameters_, config_, t.blocks[i], a, a_.normed, a_.wide, x_next, N, [&] {
            backend_->attention_forward(a.attention, a.attention_saved, a.qkv, B_, T_, C, config_.n_head);
        });
    }
    read_stream(*backend_, parameters_, a_.normed, a_.ln_f, a_.x, config_.final_norm, t.ln_f, N, C);
}

// ---- backward: the list of block.h, mirrored.  a_.dx holds the gradient of the residual stream from the end to the start, and
// a_.dx_elements the same as Elements, for products.

void Gpt::trunk_backward() {
    const TensorTable& t = parameters_.table();
    const int64_t N = B_ * T_, C = config_.n_embd;
    backend_->zero(a_.dx, static_cast<size_t>(N * C) * sizeof(float));
    stream_backward(nullptr, a_.narrow, a_.ln_f, a_.x, config_.final_norm, t.ln_f);
    for (size_t i = t.blocks.size(); i-- > 0;) block_backward(t.blocks[i], a_.blocks[i]);
    if (config_.embedding_norm) norm_stream_backward(a_.ln_emb, a_.embeddings, t.ln_emb);
    backend_->embedding_backward(parameters_.gradient(t.wte), parameters_.gradient(t.wpe), a_.dx, a_.tokens, N, T_, C);
}

void Gpt::block_backward(const BlockTensors& t, const BlockActivations& a) {
    Parameters& p = parameters_;
    const int64_t N = B_ * T_, C = config_.n_embd, M = config_.mlp_dim, H = config_.hidden_dim();
    const bool pre = config_.norm_position == NormPosition::pre, post = config_.norm_position == NormPosition::post;

    // MLP: x_next = x_middle + c_proj(f(c_fc(ln_2(x_middle)))).  Of hidden and wide, one ends as the output of f, for the
    // weight's gradient, and the other as the gradient of hidden.
    if (post) norm_stream_backward(a.ln_2, a.mlp_sum, t.ln_2);
    Element *dhidden = a_.wide, *activated = a.hidden;
    if (config_.activation == Activation::gelu) {
        backend_->linear_gelu_backward_input(dhidden, a.hidden, a_.dx_elements, p.weight(t.mlp_proj.weight), N);
    } else {
        std::swap(dhidden, activated);
        backend_->linear_backward_input(a_.wide, a_.dx_elements, p.weight(t.mlp_proj.weight), N);
        backend_->activation_backward(config_.activation, a.hidden, a_.wide, N, M);
    }
    backend_->linear_backward_weight(p.gradient(t.mlp_proj.weight), p.gradient(t.mlp_proj.bias), a_.dx_elements,
                                     activated, N, C, M);
    backend_->linear_backward_input(a_.narrow, dhidden, p.weight(t.c_fc.weight), N);
    if (!config_.residual) drop_residual();
    stream_backward(a_.normed, a_.narrow, a.ln_2, a.x_middle, pre, t.ln_2);
    backend_->linear_backward_weight(p.gradient(t.c_fc.weight), p.gradient(t.c_fc.bias), dhidden, a_.normed, N, H, C);

    // Attention: x_middle = x + c_proj(attention(c_attn(ln_1(x)))).
    if (post) norm_stream_backward(a.ln_1, a.attention_sum, t.ln_1);
    Element* dqkv = a_.wide;
    backend_->linear_backward_weight(p.gradient(t.attn_proj.weight), p.gradient(t.attn_proj.bias), a_.dx_elements,
                                     a.attention, N, C, C);
    backend_->linear_backward_input(a_.narrow, a_.dx_elements, p.weight(t.attn_proj.weight), N);
    backend_->attention_backward(dqkv, a_.narrow, a.qkv, a.attention, a.attention_saved, B_, T_, C, config_.n_head);
    backend_->linear_backward_input(a_.narrow, dqkv, p.weight(t.c_attn.weight), N);
    if (!config_.residual) drop_residual();
    stream_backward(a_.normed, a_.narrow, a.ln_1, a.x, pre, t.ln_1);
    backend_->linear_backward_weight(p.gradient(t.c_attn.weight), p.gradient(t.c_attn.bias), dqkv, a_.normed, N, 3 * C,
                                     C);
}

// Without residual connections nothing comes back beside the sublayer.
void Gpt::drop_residual() { backend_->zero(a_.dx, static_cast<size_t>(B_ * T_ * config_.n_embd) * sizeof(float)); }

// Adds to dx what comes back from a layer that read the stream, normed or not; out, where wanted, is what it read once more.
void Gpt::stream_backward(Element* out, const Element* dout, const NormStatistics& s, const float* x, bool normed,
                          const Pair& t) {
    const int64_t N = B_ * T_, C = config_.n_embd;
    if (normed) {
        backend_->norm_backward(a_.dx, a_.dx_elements, out, parameters_.gradient(t.weight),
                                parameters_.gradient(t.bias), dout, x, s.mean, s.rstd, parameters_.value(t.weight),
                                parameters_.value(t.bias), N, C);
    } else {
        backend_->add_to_stream(a_.dx, a_.dx_elements, dout, N * C);
        if (out != nullptr) backend_->read_stream(out, x, N * C);
    }
}

// dx becomes what comes back through a norm of the stream itself.
void Gpt::norm_stream_backward(const NormStatistics& s, const float* x, const Pair& t) {
    backend_->stream_norm_backward(a_.dx, a_.dx_elements, parameters_.gradient(t.weight), parameters_.gradient(t.bias),
                                   x, s.mean, s.rstd, parameters_.value(t.weight), B_ * T_, config_.n_embd);
}

// ---- head and loss: forward alone computes losses; with backward to follow at once, losses and gradient in one pass

void Gpt::head_backward() {
    const TensorTable& t = parameters_.table();
    backend_->head_loss_backward(a_.losses, a_.narrow, parameters_.gradient(t.head), a_.normed,
                                 parameters_.weight(t.head), a_.targets, &a_.scale->gradient, B_ * T_);
    backend_->batch_loss(state_, a_.losses, a_.scale, B_ * T_);
}

// ---- calls: what varies is copied in first, and what repeats may be recorded

RepeatKey Gpt::key(int64_t kind) const { return {activation_memory_.get(), kind, B_, T_}; }

void Gpt::forward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T) {
    take("forward", tokens, targets, B, T, 0.0f);
    backend_->repeat(key(kForward), [&] {
        trunk_forward();
        backend_->head_loss_forward(a_.losses, a_.normed, parameters_.weight(parameters_.table().head), a_.targets,
                                    B_ * T_);
        backend_->batch_loss(state_, a_.losses, a_.scale, B_ * T_);
    });
    ready_for_backward_ = true;
}

void Gpt::backward(float loss_scale) {
    check_state(ready_for_backward_,
                "backward: there is no forward to go back through; call forward first, once for each backward");
    ready_for_backward_ = false;
    BatchScale scale;
    backend_->copy_out(&scale, a_.scale, sizeof scale);
    scale.weight = loss_scale;
    scale.gradient = loss_scale * scale.loss;
    backend_->copy_in(a_.scale, &scale, sizeof scale);
    parameters_.gradients();
    backend_->repeat(key(kBackward), [&] {
        head_backward();
        trunk_backward();
    });
}

void Gpt::forward_backward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T, float loss_scale) {
    take("forward_backward", tokens, targets, B, T, loss_scale);
    parameters_.gradients();
    backend_->repeat(key(kForwardBackward), [&] {
        trunk_forward();
        head_backward();
        trunk_backward();
    });
}

void Gpt::logits(const int32_t* tokens, int64_t B, int64_t T, float* logits) {
    take_tokens("logits", tokens, B, T);
    trunk_forward();
    const size_t bytes = static_cast<size_t>(B * T * config_.vocab_size) * sizeof(float);
    const bool in_place = backend_->on_device(logits);
    Buffer own(*backend_);
    if (!in_place) own.reserve(bytes);
    backend_->head_forward(in_place ? logits : own.as<float>(), a_.normed, parameters_.weight(parameters_.table().head),
                           B * T);
    if (!in_place) backend_->copy_out(logits, own.get(), bytes);
}

void Gpt::step(const AdamW& options) {
    ready_for_backward_ = false;
    backend_->copy_in(options_, &options, sizeof options);
    float *gradients = parameters_.gradients(), *m = parameters_.moment_1(), *v = parameters_.moment_2();
    const int64_t kind = parameters_.prepared() == nullptr ? kUpdate : kUpdatePrepared;
    backend_->repeat({state_, kind, 0, 0}, [&] {
        backend_->global_norm(&state_->norm, gradients, parameters_.table().memory_floats());
        backend_->adamw(parameters_.values(), gradients, m, v, parameters_.prepared(), state_,
                        parameters_.table().ranges(), options_);
    });
}

void Gpt::zero_gradients() {
    ready_for_backward_ = false;
    const size_t bytes = static_cast<size_t>(parameters_.table().memory_floats()) * sizeof(float);
    backend_->zero(parameters_.gradients(), bytes);
    backend_->zero(&state_->total_loss, sizeof state_->total_loss);
}

void Gpt::reset(uint64_t seed) {
    ready_for_backward_ = false;
    backend_->zero(state_, sizeof(StepState));
    parameters_.initialise(seed);
}

// ---- what a step leaves behind

StepState Gpt::read_state() {
    StepState state;
    backend_->copy_out(&state, state_, sizeof state);
    return state;
}

float Gpt::loss() {
    const float loss = read_state().loss;
    if (!std::isfinite(loss) && batch_was_on_device_) check_batch_on_device();
    return loss;
}

// What the device found wrong with its batch, it told by the scale.
void Gpt::check_batch_on_device() {
    BatchScale scale;
    backend_->copy_out(&scale, a_.scale, sizeof scale);
    check_argument(std::isfinite(scale.loss),
                   "the batch on the device has a token or target outside the vocabulary of %lld, or no target but -1",
                   static_cast<long long>(config_.vocab_size));
}

float Gpt::gradient_norm() { return read_state().norm; }

float Gpt::update_loss() { return read_state().update_loss; }

int64_t Gpt::step_count() { return read_state().steps; }

void Gpt::set_step_count(int64_t count) {
    check_argument(count >= 0, "step count is %lld but must not be negative", static_cast<long long>(count));
    backend_->copy_in(&state_->steps, &count, sizeof count);
}

std::vector<NamedActivation> Gpt::named_activations() const {
    check_state(ready_for_backward_,
                "activations: call forward first; they are what it keeps, until backward uses them");
    return name_activations(a_, config_, B_, T_);
}

// ---- checks and memory

void Gpt::take_tokens(const char* call, const int32_t* tokens, int64_t B, int64_t T) {
    config_.check_batch(call, B, T);
    batch_was_on_device_ = backend_->on_device(tokens);
    if (!batch_was_on_device_) check_tokens(call, tokens, B, T);
    arrange(B, T, Keep::nothing);
    if (!batch_was_on_device_) {
        backend_->copy_in(a_.tokens, tokens, static_cast<size_t>(B * T) * sizeof(int32_t));
        return;
    }
    backend_->take_batch(a_.tokens, a_.targets, a_.scale, tokens, nullptr, 0.0f, B * T, config_.vocab_size);
    check_batch_on_device();
}

void Gpt::take(const char* call, const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T, float weight) {
    const int64_t N = B * T;
    config_.check_batch(call, B, T);
    batch_was_on_device_ = backend_->on_device(tokens);
    check_argument(batch_was_on_device_ == backend_->on_device(targets),
                   "%s: tokens and targets must both be on the host or both on the device", call);
    if (batch_was_on_device_) {
        arrange(B, T, Keep::for_backward);
        backend_->take_batch(a_.tokens, a_.targets, a_.scale, tokens, targets, weight, N, config_.vocab_size);
        return;
    }
    check_tokens(call, tokens, B, T);
    const float share = 1.0f / static_cast<float>(count_targets(call, targets, N));
    const BatchScale scale{share, weight * share, weight};
    arrange(B, T, Keep::for_backward);
    const size_t bytes = static_cast<size_t>(N) * sizeof(int32_t);
    backend_->copy_in(a_.tokens, tokens, bytes);
    backend_->copy_in(a_.targets, targets, bytes);
    backend_->copy_in(a_.scale, &scale, sizeof scale);
}

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

}  // namespace mg
