// The model: forward and backward as mirrored lists of ops, and the optimizer step.
#pragma once

#include <cstdint>
#include <memory>

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
    int64_t step_count() const { return step_count_; }
    void set_step_count(int64_t count);

    void reset(uint64_t seed);

    // Mean loss over the positions whose target is not -1; tokens and targets [B, T] on the host.
    float forward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T);
    void backward(float loss_scale);
    float forward_backward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T, float loss_scale);
    // logits [B, T, V] on the host
    void logits(const int32_t* tokens, int64_t B, int64_t T, float* logits);
    // One update; returns the gradient norm before clipping.
    float step(AdamW options);

    // What mg_plan_memory tells, in bytes.
    static mg_memory_plan plan(const Config& config, const Backend& backend, int64_t B, int64_t T, bool training);

   private:
    void check_tokens(const char* call, const int32_t* tokens, int64_t B, int64_t T) const;
    int64_t count_targets(const char* call, const int32_t* targets, int64_t N) const;
    void arrange(int64_t B, int64_t T, Keep keep);
    void trunk_forward(const int32_t* tokens);
    void block_backward(const BlockTensors& block, const BlockActivations& a);
    void trunk_backward();
    void head_backward(float loss_scale);
    float mean_loss();

    void norm(Element* out, const NormStatistics& statistics, const float* x, const Pair& tensors);
    void norm_backward(const Element* dout, const NormStatistics& statistics, const float* x, const Pair& tensors);

    Config config_;
    std::unique_ptr<Backend> backend_;
    Parameters parameters_;
    Buffer activation_memory_, norm_memory_;
    Activations a_;
    int64_t B_ = 0, T_ = 0;
    int64_t counted_targets_ = 0;
    bool ready_for_backward_ = false;
    int64_t step_count_ = 0;
};

}  // namespace mg
