// The CPU backend in precision E (float, Bf16): shares each op's work out over the threads and calls the kernels of the chosen
// instruction set.  Weights are packed as products need them, by all threads together: a step uses each twice, so a copy would cost its memory and save next
// to nothing.  prepare() makes what decoding reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "cpu/kernels.h"
#include "cpu/memory.h"

namespace mg::cpu {

template <typename E>
class CpuBackend final : public Backend {
   public:
    CpuBackend();

    const char* device() const override { return "cpu"; }
    const char* precision() const override { return sizeof(E) == sizeof(float) ? "fp32" : "bf16"; }
    std::string description() const override;

    void* allocate(size_t bytes) override;
    void release(void* memory) override;
    void zero(void* memory, size_t bytes) override;
    void copy_in(void* device, const void* host, size_t bytes) override;
    void copy_out(void* host, const void* device, size_t bytes) override;
    void synchronize() override {}
    bool host_readable() const override { return true; }
    bool on_device(const void*) const override { return false; }
    uintptr_t stream() const override { return 0; }
    void wait_for(uintptr_t) override {}
    size_t element_bytes() const override { return sizeof(E); }
    size_t scratch_bytes(const WorkShape& shape) const override;

    void repeat(const RepeatKey&, const std::function<void()>& ops) override { ops(); }
    int64_t launches() const override { return 0; }

    size_t prepared_bytes(int64_t floats) const override;
    bool trains_prepared() const override { return false; }
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
    // Which way a weight [rows, columns] is multiplied: x weight^T, or dout weight.
    enum class Side { forward, backward };
    void multiply_weight(Product<E> product, const Weight& weight, Side side);
    template <typename Pack>
    void multiply(Product<E> product, const Pack& pack);
    void multiply_few_rows(const Product<E>& product, const Weight& weight);
    void weight_gradient(float* dweight, float* dbias, const E* dout, int64_t dout_row, const E* x, int64_t N,
                         int64_t rows, int64_t columns);
    void head_losses(float* losses, E* dx, float* dwte, const E* x, const Weight& wte, const int32_t* targets,
                     float scale, int64_t N);

    // Scratch of `bytes` for each thread, or one block for all.
    struct ThreadScratch {
        char* memory;
        size_t stride;
        int threads;  // to share the work among

        void* of(int worker) const { return memory + static_cast<size_t>(worker) * stride; }
    };
    ThreadScratch thread_scratch(size_t bytes);
    float* shared_scratch(size_t bytes);

    void attend(E* out, float* saved, const E* qkv, int64_t B, int64_t T, int64_t C, int64_t NH);
    template <typename Rows>
    void sum_norm_gradients(float* dgamma, float* dbeta, int64_t N, int64_t C, const Rows& rows);

    const Kernels<E>& kernels_;
    Scratch thread_scratch_, shared_scratch_, packed_;
};

// precision: "fp32", "bf16", or "auto": bf16 where the CPU multiplies it natively.
std::unique_ptr<Backend> create_cpu_backend(const std::string& precision);

}  // namespace mg::cpu
