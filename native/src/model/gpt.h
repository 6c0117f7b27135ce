// The model: forward and backward as mirrored lists of ops, and the optimizer step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend.h"
#include "microgpt_cuda.h"
#include "model/activations.h"
#include "model/config.h"
#include "model/parameters.h"

namespace mg {

class Gpt {
   public:
    Gpt(const Config& config, std::unique_ptr<Backend> backend, uint64_t seed);
    Gpt(const Gpt&) = delete;
    Gpt& operator=(const Gpt&) = delete;

    const Config& config() const { return config_; }
    Backend& backend() { return *backend_; }
    const Backend& backend() const { return *backend_; }
    Parameters& parameters() { return parameters_; }
    const Parameters& parameters() const { return parameters_; }
    int64_t step_count();
    void set_step_count(int64_t count);

    void reset(uint64_t seed);

    // tokens and targets [B, T] are on the host, or on the device; work is queued there, and loss() waits for it.
    void forward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T);
    void backward(float loss_scale);
    void forward_backward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T, float loss_scale);
    // Mean loss of the last batch over the positions whose target is not -1.
    float loss();
    // logits [B, T, V] on the host, or on the device
    void logits(const int32_t* tokens, int64_t B, int64_t T, float* logits);
    // One update; gradient_norm() waits for it and tells the norm before clipping.
    void step(const AdamW& options);
    float gradient_norm();
    float update_loss();
    // Gradients of batches since the last update are forgotten.
    void zero_gradients();

    // What the last forward keeps for backward; raises MG_ERROR_STATE where there is nothing.
    std::vector<NamedActivation> named_activations() const;

   private:
    void check_tokens(const char* call, const int32_t* tokens, int64_t B, int64_t T) const;
    int64_t count_targets(const char* call, const int32_t* targets, int64_t N) const;
    void take(const char* call, const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T, float weight);
    void take_tokens(const char* call, const int32_t* tokens, int64_t B, int64_t T);
    void check_batch_on_device();
    void arrange(int64_t B, int64_t T, Keep keep);
    RepeatKey key(int64_t kind) const;
    void trunk_forward();
    void block_backward(const BlockTensors& block, const BlockActivations& a);
    void drop_residual();
    void trunk_backward();
    void head_backward();
    StepState read_state();

    void stream_backward(Element* out, const Element* dout, const NormStatistics& statistics, const float* x,
                         bool normed, const Pair& tensors);
    void norm_stream_backward(const NormStatistics& statistics, const float* x, const Pair& tensors);

    Config config_;
    std::unique_ptr<Backend> backend_;
    Parameters parameters_;
    Buffer activation_memory_, state_memory_, options_memory_;
    StepState* state_;  // in the backend's memory, as the options are
    AdamW* options_;
    Activations a_;
    int64_t B_ = 0, T_ = 0;
    bool batch_was_on_device_ = false;
    bool ready_for_backward_ = false;
};

}  // namespace mg
