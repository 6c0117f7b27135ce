// The kernels as the host calls them, one block of declarations a .cu file.  Each call starts its kernels on the stream and
// returns; shapes and formulas are those of the op in backend.h.  Order: outputs, inputs, scratch, sizes.  E is float or Bf16.
// `scratch` is memory of the backend's, of the size that the function beside it tells; it was 0 before its first use.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "backend.h"
#include "cuda/bf16.h"

namespace mg::cuda {

using Stream = cudaStream_t;

// --- embedding.cu
void embedding_forward(Stream stream, float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                       const float* wpe, int64_t N, int64_t T, int64_t C);
void embedding_backward(Stream stream, float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N,
                        int64_t T, int64_t C);

// --- norm.cu, norm_backward.cu
template <typename E>
void norm_forward(Stream stream, E* out, float* mean, float* rstd, const float* x, const float* gamma,
                  const float* beta, int64_t N, int64_t C);
// elements may be null
template <typename E>
void stream_norm_forward(Stream stream, float* out, E* elements, float* mean, float* rstd, const float* x,
                         const float* gamma, const float* beta, int64_t N, int64_t C);
size_t norm_backward_scratch_bytes(int64_t N, int64_t C);
// dx_elements and out may be null
template <typename E>
void norm_backward(Stream stream, float* dx, E* dx_elements, E* out, float* dgamma, float* dbeta, const E* dout,
                   const float* x, const float* mean, const float* rstd, const float* gamma, const float* beta,
                   void* scratch, int64_t N, int64_t C);
template <typename E>
void stream_norm_backward(Stream stream, float* dx, E* dx_elements, float* dgamma, float* dbeta, const float* x,
                          const float* mean, const float* rstd, const float* gamma, void* scratch, int64_t N,
                          int64_t C);

// --- activation.cu: out[N, M] = f(hidden); out may be hidden where f is not gated
template <typename E>
void activation_forward(Stream stream, Activation f, E* out, const E* hidden, int64_t N, int64_t M);
// dhidden = dout f'(hidden), activated = f(hidden).  dhidden may be hidden or dout, and activated the other of them.
template <typename E>
void activation_backward(Stream stream, Activation f, E* dhidden, E* activated, const E* hidden, const E* dout,
                         int64_t N, int64_t M);

// --- elementwise.cu: small things around products
template <typename E>
void convert(Stream stream, E* out, const float* x, int64_t count);
template <typename E>
void add(Stream stream, float* y, E* elements, const E* x, int64_t count);  // y += x; elements = y, may be null
template <typename E>
void add_bias(Stream stream, E* x, const float* bias, int64_t N, int64_t columns);  // each row += bias
size_t column_sums_scratch_bytes(int64_t N, int64_t columns);
template <typename E>
void column_sums(Stream stream, float* out, const E* x, void* scratch, int64_t N, int64_t columns);  // out +=

// --- attention*.cu
template <typename E>
void attention_forward(Stream stream, E* out, float* log_sums, const E* qkv, int64_t B, int64_t T, int64_t C,
                       int64_t NH);
size_t attention_backward_scratch_bytes(int64_t B, int64_t T, int64_t NH);
template <typename E>
void attention_backward(Stream stream, E* dqkv, const E* dout, const E* qkv, const E* out, const float* log_sums,
                        void* scratch, int64_t B, int64_t T, int64_t C, int64_t NH);

// --- loss.cu: losses of rows of logits [rows, stride] floats, of which V count.  scale null: no gradient.  Else *scale times
// the gradient is written as E over the logits, from each row's first byte on, and is 0 in columns V to stride.
template <typename E>
void loss_rows(Stream stream, float* losses, float* logits, const int32_t* targets, const float* scale, int64_t rows,
               int64_t V, int64_t stride);

// --- reductions.cu
constexpr size_t kReductionScratchBytes = 64 + 8 * 1024;
void sum(Stream stream, float* result, const float* x, void* scratch, int64_t count);
void global_norm(Stream stream, float* result, const float* x, void* scratch, int64_t count);
void batch_loss(Stream stream, StepState* state, const float* losses, const BatchScale* scale, int64_t N);

// --- optimizer.cu: ranges on the device, one after the other from begin on; ends[count], decays[count].  prepared may be null.
void adamw(Stream stream, float* parameters, float* gradients, float* m, float* v, Bf16* prepared, StepState* state,
           const AdamW* options, const int64_t* ends, const uint8_t* decays, void* scratch, int64_t count,
           int64_t begin, int64_t end);

// --- batch.cu
void take_batch(Stream stream, int32_t* tokens, int32_t* targets, BatchScale* scale, const int32_t* from_tokens,
                const int32_t* from_targets, void* scratch, float loss_scale, int64_t N, int64_t V);

// --- cached_attention.cu: cache [sequence][k, v][head][capacity][head_dim]
size_t cached_attention_scratch_bytes(int64_t rows, int64_t capacity, int64_t C, int64_t NH);
template <typename E>
void cached_attention(Stream stream, E* out, E* cache, const E* qkv, const int32_t* sequences, const int32_t* positions,
                      void* scratch, int64_t rows, int64_t capacity, int64_t C, int64_t NH);

// --- limits.cu
template <typename E>
double peak_products(Stream stream, float* sink, int64_t rounds);  // returns the operations it starts
void read_memory(Stream stream, float* result, const void* memory, void* scratch, size_t bytes);

}  // namespace mg::cuda
