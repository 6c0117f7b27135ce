/* The ops of one backend, one by one: for parity tests and benchmarks.  The model is in microgpt_cuda.h.
 *
 * Pointers are to memory of the backend's device (mg_backend_allocate).  Shapes and formulas are those of the ops of the same
 * name in src/backend.h; sizes N rows, C width, NH heads, V vocabulary.  Elements are float32 for "fp32".
 * Copies of weights in the backend's precision are made inside each call, so callers pass the float32 master only; mg_backend_keep_copies
 * lets them stay.
 */
#ifndef MICROGPT_CUDA_OPS_H
#define MICROGPT_CUDA_OPS_H

#include "microgpt_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mg_backend mg_backend;

MG_API mg_status mg_backend_create(const char* device, const char* precision, mg_backend** backend);
MG_API void mg_backend_free(mg_backend* backend);
MG_API mg_status mg_backend_allocate(mg_backend* backend, size_t bytes, void** memory);
MG_API void mg_backend_release(mg_backend* backend, void* memory);
MG_API mg_status mg_backend_copy_in(mg_backend* backend, void* device, const void* host, size_t bytes);
MG_API mg_status mg_backend_copy_out(mg_backend* backend, void* host, const void* device, size_t bytes);
MG_API size_t mg_backend_element_bytes(const mg_backend* backend);
/* 1: copies of weights that ops make from now on are kept, and serve later calls with the same pointer and sizes.  So calls on a GPU
 * do nothing but start the op, and can be timed; the weights must not change meanwhile.  0: forgets them. */
MG_API mg_status mg_backend_keep_copies(mg_backend* backend, int32_t keep);
/* Kernels and products that this process has started on GPUs so far. */
MG_API int64_t mg_backend_launches(const mg_backend* backend);
/* 0: products on a GPU use own kernels for bias, GELU and bias gradients, as they do where cuBLASLt has no epilogue for them. */
MG_API void mg_set_fused_epilogues(int32_t fused);

MG_API mg_status mg_op_embedding_forward(mg_backend* backend, float* out, const int32_t* tokens,
                                         const int32_t* positions, const float* wte, const float* wpe, int64_t N,
                                         int64_t T, int64_t C);
MG_API mg_status mg_op_embedding_backward(mg_backend* backend, float* dwte, float* dwpe, const float* dout,
                                          const int32_t* tokens, int64_t N, int64_t T, int64_t C);
/* Null: mean, for RMSNorm; gamma and dgamma, or beta and dbeta, where the norm has none. */
MG_API mg_status mg_op_norm_forward(mg_backend* backend, void* out, float* mean, float* rstd, const float* x,
                                    const float* gamma, const float* beta, int64_t N, int64_t C);
/* dx_elements and out may be null, too */
MG_API mg_status mg_op_norm_backward(mg_backend* backend, float* dx, void* dx_elements, void* out, float* dgamma,
                                     float* dbeta, const void* dout, const float* x, const float* mean,
                                     const float* rstd, const float* gamma, const float* beta, int64_t N, int64_t C);
/* The same on the residual stream, float32 in and out.  Backward: dx holds the gradient of the output, and becomes that of x. */
MG_API mg_status mg_op_stream_norm_forward(mg_backend* backend, float* out, float* mean, float* rstd, const float* x,
                                           const float* gamma, const float* beta, int64_t N, int64_t C);
MG_API mg_status mg_op_stream_norm_backward(mg_backend* backend, float* dx, void* dx_elements, float* dgamma,
                                            float* dbeta, const float* x, const float* mean, const float* rstd,
                                            const float* gamma, int64_t N, int64_t C);
MG_API mg_status mg_op_read_stream(mg_backend* backend, void* out, const float* x, int64_t count);
/* dx_elements may be null */
MG_API mg_status mg_op_add_to_stream(mg_backend* backend, float* dx, void* dx_elements, const void* dout,
                                     int64_t count);
/* bias, dbias and residual may be null: there is none then */
MG_API mg_status mg_op_linear_forward(mg_backend* backend, void* out, const void* x, const float* weight,
                                      const float* bias, int64_t N, int64_t rows, int64_t columns);
MG_API mg_status mg_op_linear_gelu_forward(mg_backend* backend, void* hidden, void* out, const void* x,
                                           const float* weight, const float* bias, int64_t N, int64_t rows,
                                           int64_t columns);
MG_API mg_status mg_op_linear_residual_forward(mg_backend* backend, float* out, const float* residual, const void* x,
                                               const float* weight, const float* bias, int64_t N, int64_t rows,
                                               int64_t columns);
MG_API mg_status mg_op_linear_backward_input(mg_backend* backend, void* dx, const void* dout, const float* weight,
                                             int64_t N, int64_t rows, int64_t columns);
/* hidden becomes gelu(hidden) */
MG_API mg_status mg_op_linear_gelu_backward_input(mg_backend* backend, void* dhidden, void* hidden, const void* dout,
                                                  const float* weight, int64_t N, int64_t rows, int64_t columns);
MG_API mg_status mg_op_linear_backward_weight(mg_backend* backend, float* dweight, float* dbias, const void* dout,
                                              const void* x, int64_t N, int64_t rows, int64_t columns);
/* activation: an mg_activation_function; M outputs a row */
MG_API mg_status mg_op_activation_forward(mg_backend* backend, int32_t activation, void* out, const void* hidden,
                                          int64_t N, int64_t M);
MG_API mg_status mg_op_activation_backward(mg_backend* backend, int32_t activation, void* hidden, void* dout, int64_t N,
                                           int64_t M);
MG_API size_t mg_op_attention_saved_bytes(const mg_backend* backend, int64_t B, int64_t T, int64_t NH);
MG_API mg_status mg_op_attention_forward(mg_backend* backend, void* out, void* saved, const void* qkv, int64_t B,
                                         int64_t T, int64_t C, int64_t NH);
MG_API mg_status mg_op_attention_backward(mg_backend* backend, void* dqkv, const void* dout, const void* qkv,
                                          const void* out, const void* saved, int64_t B, int64_t T, int64_t C,
                                          int64_t NH);
MG_API mg_status mg_op_head_loss_forward(mg_backend* backend, float* losses, const void* x, const float* wte,
                                         const int32_t* targets, int64_t N, int64_t C, int64_t V);
MG_API mg_status mg_op_head_loss_backward(mg_backend* backend, float* losses, void* dx, float* dwte, const void* x,
                                          const float* wte, const int32_t* targets, float scale, int64_t N, int64_t C,
                                          int64_t V);
MG_API mg_status mg_op_head_forward(mg_backend* backend, float* logits, const void* x, const float* wte, int64_t N,
                                    int64_t C, int64_t V);
MG_API mg_status mg_op_sum(mg_backend* backend, float* result, const float* x, int64_t count);
MG_API mg_status mg_op_global_norm(mg_backend* backend, float* result, const float* x, int64_t count);
/* One range; options->struct_size as in mg_step; step counts from 1. */
MG_API mg_status mg_op_adamw(mg_backend* backend, float* parameters, float* gradients, float* m, float* v,
                             const float* norm, int64_t count, int32_t decays, int64_t step,
                             const mg_step_options* options);
MG_API size_t mg_op_cache_bytes(const mg_backend* backend, int64_t sequences, int64_t capacity, int64_t C);
MG_API mg_status mg_op_cached_attention_forward(mg_backend* backend, void* out, void* cache, const void* qkv,
                                                const int32_t* sequences, const int32_t* positions, int64_t rows,
                                                int64_t capacity, int64_t C, int64_t NH);

/* Limits of the device, to measure speed against; the caller takes the time.  Every thread does `rounds` rounds of independent
   multiply-adds in registers, in the backend's precision; *operations = floating-point operations of all threads together.
   And a read of `bytes` bytes of device memory; *result = a sum over them, of no use but to make the reads happen. */
MG_API mg_status mg_op_peak_products(mg_backend* backend, int64_t rounds, double* operations);
MG_API mg_status mg_op_read(mg_backend* backend, float* result, const void* memory, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
