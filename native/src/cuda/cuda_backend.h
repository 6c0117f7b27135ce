// The CUDA backend in precision E (float, Bf16): one GPU, one stream.  Each op starts its kernels and returns; products go through
// cuBLASLt, everything else through the launchers of launchers.h.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "backend.h"
#include "cuda/bf16.h"
#include "cuda/device.h"
#include "cuda/gemm.h"
#include "cuda/graphs.h"
#include "cuda/launchers.h"
#include "cuda/scratch.h"

namespace mg::cuda {

template <typename E>
class CudaBackend final : public Backend {
   public:
    CudaBackend(int device, const char* why_precision);

    const char* device() const override { return "cuda"; }
    const char* precision() const override { return kIsFloat ? "fp32" : "bf16"; }
    std::string description() const override;

    void* allocate(size_t bytes) override { return device_.allocate(bytes); }
    void release(void* memory) override;
    void zero(void* memory, size_t bytes) override { device_.zero(memory, bytes); }
    void copy_in(void* device, const void* host, size_t bytes) override { device_.copy_in(device, host, bytes); }
    void copy_out(void* host, const void* device, size_t bytes) override { device_.copy_out(host, device, bytes); }
    void synchronize() override { device_.synchronize(); }
    bool host_readable() const override { return false; }
    bool on_device(const void* memory) const override { return device_.owns(memory); }
    uintptr_t stream() const override { return reinterpret_cast<uintptr_t>(device_.stream()); }
    void wait_for(uintptr_t stream) override;
    size_t element_bytes() const override { return sizeof(E); }
    size_t scratch_bytes(const WorkShape& shape) const override;

    void repeat(const RepeatKey& key, const std::function<void()>& ops) override { graphs_.repeat(key, ops); }
    int64_t launches() const override;

    size_t prepared_bytes(int64_t floats) const override;
    bool trains_prepared() const override { return !kIsFloat; }
    void prepare(void* prepared, const float* masters, int64_t floats) override;
    void take_batch(int32_t* tokens, int32_t* targets, BatchScale* scale, const int32_t* from_tokens,
                    const int32_t* from_targets, float weight, int64_t N, int64_t V) override;

    void embedding_forward(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                           const float* wpe, int64_t N, int64_t T, int64_t C) override;
    void embedding_backward(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N, int64_t T,
                            int64_t C) override;
    void norm_forward(Element* out, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                      int64_t N, int64_t C) override;
    void norm_backward(float* dx, Element* dx_elements, Element* out, float* dgamma, float* dbeta, const Element* dout,
                       const float* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                       int64_t N, int64_t C) override;
    void stream_norm_forward(float* out, Element* elements, float* mean, float* rstd, const float* x,
                             const float* gamma, const float* beta, int64_t N, int64_t C) override;
    void stream_norm_backward(float* dx, Element* dx_elements, float* dgamma, float* dbeta, const float* x,
                              const float* mean, const float* rstd, const float* gamma, int64_t N, int64_t C) override;
    void read_stream(Element* out, const float* x, int64_t count) override;
    void add_to_stream(float* dx, Element* dx_elements, const Element* dout, int64_t count) override;
    void linear_forward(Element* out, const Element* x, const Weight& weight, const Bias& bias, int64_t N) override;
    void linear_gelu_forward(Element* hidden, Element* out, const Element* x, const Weight& weight, const Bias& bias,
                             int64_t N) override;
    void linear_residual_forward(float* out, const float* residual, const Element* x, const Weight& weight,
                                 const Bias& bias, int64_t N) override;
    void linear_backward_input(Element* dx, const Element* dout, const Weight& weight, int64_t N) override;
    void linear_gelu_backward_input(Element* dhidden, Element* hidden, const Element* dout, const Weight& weight,
                                    int64_t N) override;
    void linear_backward_weight(float* dweight, float* dbias, const Element* dout, const Element* x, int64_t N,
                                int64_t rows, int64_t columns) override;
    void activation_forward(Activation f, Element* out, const Element* hidden, int64_t N, int64_t M) override;
    void activation_backward(Activation f, Element* hidden, Element* dout, int64_t N, int64_t M) override;
    size_t attention_saved_bytes(int64_t B, int64_t T, int64_t NH) const override;
    void attention_forward(Element* out, void* saved, const Element* qkv, int64_t B, int64_t T, int64_t C,
                           int64_t NH) override;
    void attention_backward(Element* dqkv, const Element* dout, const Element* qkv, const Element* out,
                            const void* saved, int64_t B, int64_t T, int64_t C, int64_t NH) override;
    void head_loss_forward(float* losses, const Element* x, const Weight& wte, const int32_t* targets,
                           int64_t N) override;
    void head_loss_backward(float* losses, Element* dx, float* dwte, const Element* x, const Weight& wte,
                            const int32_t* targets, const float* scale, int64_t N) override;
    void head_forward(float* logits, const Element* x, const Weight& wte, int64_t N) override;
    void sum(float* result, const float* x, int64_t count) override;
    void global_norm(float* result, const float* x, int64_t count) override;
    void batch_loss(StepState* state, const float* losses, const BatchScale* scale, int64_t N) override;
    void adamw(float* parameters, float* gradients, float* m, float* v, void* prepared, StepState* state,
               const std::vector<ParameterRange>& ranges, const AdamW* options) override;
    size_t cache_bytes(int64_t sequences, int64_t capacity, int64_t C) const override;
    void cached_attention_forward(Element* out, void* cache, const Element* qkv, const int32_t* sequences,
                                  const int32_t* positions, int64_t rows, int64_t capacity, int64_t C,
                                  int64_t NH) override;
    double peak_products(int64_t rounds) override;
    void read(float* result, const void* memory, size_t bytes) override;

   private:
    static constexpr bool kIsFloat = std::is_same_v<E, float>;
    static constexpr NumberType kType = kIsFloat ? NumberType::fp32 : NumberType::bf16;

    static E* numbers(Element* x) { return reinterpret_cast<E*>(x); }
    static const E* numbers(const Element* x) { return reinterpret_cast<const E*>(x); }
    // Elements beside the same numbers as floats: null where they are those floats.
    static E* beside(Element* x, const float* floats) {
        return static_cast<const void*>(x) == floats ? nullptr : numbers(x);
    }

    // A place in the one piece of scratch memory that is there from the start.
    template <typename T>
    T* fixed(size_t offset) {
        return reinterpret_cast<T*>(static_cast<char*>(fixed_) + offset);
    }
    static size_t fixed_bytes();
    void set_ranges(const std::vector<ParameterRange>& ranges);

    // cuda_products.cpp
    const E* weight_numbers(const Weight& weight, int64_t rows);
    const void* bias_numbers(const Bias& bias, int64_t count);
    MatrixProduct forward_product(void* out, NumberType out_type, const Element* x, const Weight& weight, int64_t N);
    MatrixProduct input_product(void* dx, const Element* dout, const Weight& weight, int64_t N);
    void multiply(const MatrixProduct& product);
    bool multiply_fused(const MatrixProduct& product);
    int64_t head_rows(int64_t N, int64_t V) const;
    void head_losses(float* losses, E* dx, float* dwte, const E* x, const Weight& wte, const int32_t* targets,
                     const float* scale, int64_t N);

    Device device_;
    Graphs graphs_;
    Scratch scratch_;
    Gemm gemm_;
    std::string why_precision_;
    void* fixed_ = nullptr;
    uintptr_t callers_stream_ = 0;        // that the batch to come was made on
    std::vector<ParameterRange> ranges_;  // those that lie on the GPU
};

}  // namespace mg::cuda
