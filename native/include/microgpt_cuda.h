/* microgpt_cuda: GPT-2 style language models, forward, backward and AdamW, without a framework.
 *
 * Every function that can fail returns an mg_status; mg_last_error() then holds one line for this thread that says what
 * was wrong and what was seen.  Nothing here exits, aborts or prints.  A model or decoder may be used by one
 * thread at a time; different models by different threads, in which case their ops take turns on the shared thread pool.
 * Arrays are row-major.  Names follow GPT-2: V vocab_size, C n_embd, T tokens of a sequence, B sequences.
 *
 * The Python package reads its declarations from this file, so it must parse without a preprocessor: constants are enums,
 * lines that start with # are dropped.
 */
#ifndef MICROGPT_CUDA_H
#define MICROGPT_CUDA_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MG_API __declspec(dllexport)
#else
#define MG_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MG_ABI_VERSION = 1, /* grows whenever a signature or a struct below changes */
    MG_MAX_NAME = 64,   /* bytes of a tensor's name, with the closing zero */
    MG_MAX_DIMS = 2,
    MG_IGNORED_TARGET = -1 /* a target with no loss */
};

typedef enum mg_status {
    MG_OK = 0,
    MG_ERROR_ARGUMENT = 1, /* a shape, range or pointer the call can't work with */
    MG_ERROR_STATE = 2,    /* a call at the wrong time, such as backward before forward */
    MG_ERROR_MEMORY = 3,   /* the device has no memory left */
    MG_ERROR_DEVICE = 4,   /* the device, precision or instruction set is not to be had here */
    MG_ERROR_INTERNAL = 5  /* a defect of this library */
} mg_status;

/* ---- library ---------------------------------------------------------------------------------------------------- */

MG_API int32_t mg_abi_version(void);      /* MG_ABI_VERSION of the loaded library */
MG_API const char* mg_version(void);      /* "0.1.0" */
MG_API size_t mg_config_size(void);       /* sizeof(mg_config) of the loaded library */
MG_API size_t mg_step_options_size(void); /* sizeof(mg_step_options) of the loaded library */
MG_API const char* mg_last_error(void);   /* this thread's newest error; "" if there was none */

/* The CPU's instruction set in use: "generic", "avx2", "avx512" or "avx512bf16".  The environment variable
 * MICROGPT_ISA forces one; MG_ERROR_DEVICE where it names one that this build or CPU doesn't have. */
MG_API mg_status mg_cpu_isa(const char** name);
/* Instruction sets that this build and CPU both have, separated by spaces, best last. */
MG_API const char* mg_cpu_isa_available(void);

/* Threads of the CPU backend, 1..1024; results are the same bits for any number.  0 restores the default: the CPUs this
 * process may use (affinity mask and cgroup quota) and at most OMP_NUM_THREADS. */
MG_API mg_status mg_set_num_threads(int32_t count);
MG_API int32_t mg_get_num_threads(void);

/* ---- model ------------------------------------------------------------------------------------------------------ */

/* Set struct_size to sizeof(mg_config).  n_head must divide n_embd. */
typedef struct mg_config {
    size_t struct_size;
    int32_t vocab_size;
    int32_t block_size;
    int32_t n_layer;
    int32_t n_head;
    int32_t n_embd;
} mg_config;

typedef struct mg_model mg_model;

/* device "cpu" or "auto".  precision "fp32"; "bf16": products of bfloat16 numbers summed in float32, and activations kept
 * as bfloat16, while parameters, gradients, moments, the residual stream and losses stay float32; or "auto": bf16 where
 * the CPU multiplies it natively (AVX-512 BF16), else fp32.  Parameters are initialised from the seed by a counter-based
 * generator: the same seed gives the same bits on every machine. */
MG_API mg_status mg_model_create(const mg_config* config, const char* device, const char* precision, uint64_t seed,
                                 mg_model** model);
MG_API void mg_model_free(mg_model* model); /* null is fine */
MG_API const char* mg_model_device(const mg_model* model);
MG_API const char* mg_model_precision(const mg_model* model);

/* Initialises again: parameters from the seed; gradients, moments and step count 0. */
MG_API mg_status mg_model_reset(mg_model* model, uint64_t seed);

/* tokens and targets: B*T ids in [0, vocab_size); T at most block_size; a target of -1 has no loss, but at least one
 * must have.  loss: mean of -log softmax(logits)[target] over the positions with a target, natural logarithm.
 * Keeps the activations that mg_backward needs. */
MG_API mg_status mg_forward(mg_model* model, const int32_t* tokens, const int32_t* targets, int32_t B, int32_t T,
                            float* loss);
/* Adds loss_scale * d loss / d parameter of the last mg_forward to the gradients.  Once per forward. */
MG_API mg_status mg_backward(mg_model* model, float loss_scale);
/* mg_forward and mg_backward in one: the same bits, and the head's product is computed once instead of twice. */
MG_API mg_status mg_forward_backward(mg_model* model, const int32_t* tokens, const int32_t* targets, int32_t B,
                                     int32_t T, float loss_scale, float* loss);

/* Set struct_size to sizeof(mg_step_options).  AdamW with decoupled decay of matrices; biases and norms don't decay. */
typedef struct mg_step_options {
    size_t struct_size;
    float learning_rate;
    float beta1;
    float beta2;
    float epsilon;
    float weight_decay;
    float max_norm; /* clip the global gradient norm to this; 0: no clipping */
} mg_step_options;

/* One update from the gradients, which end as 0.  gradient_norm (may be null): before clipping; where it is not finite, no
 * parameter, moment or step count was changed. */
MG_API mg_status mg_step(mg_model* model, const mg_step_options* options, float* gradient_norm);

/* logits[B, T, V] of tokens[B, T], for small inputs; keeps nothing. */
MG_API mg_status mg_logits(mg_model* model, const int32_t* tokens, int32_t B, int32_t T, float* logits);

MG_API int64_t mg_model_step_count(const mg_model* model);
MG_API mg_status mg_model_set_step_count(mg_model* model, int64_t count);

/* ---- tensors: one table that parameters, gradients and both moments share ------------------------------------------- */

typedef struct mg_tensor {
    char name[64];    /* GPT-2's: "h.0.attn.c_attn.weight" */
    int32_t n_dims;   /* 1 or 2 */
    int64_t shape[2]; /* shape[1] is 1 where n_dims is 1 */
    int64_t offset;   /* of the first float from the start of the memory */
    int64_t size;     /* floats */
    int32_t decays;   /* 1: weight decay applies */
} mg_tensor;

typedef enum mg_memory { MG_PARAMETERS = 0, MG_GRADIENTS = 1, MG_MOMENT_1 = 2, MG_MOMENT_2 = 3 } mg_memory;

MG_API int32_t mg_model_tensor_count(const mg_model* model);
MG_API mg_status mg_model_tensor(const mg_model* model, int32_t index, mg_tensor* tensor);
MG_API int64_t mg_model_parameter_count(const mg_model* model);
/* The float32 memory all tensors of that kind lie in, on the model's device; allocated and zeroed on first request.
 * Valid until mg_model_free.  After writing parameters, call mg_model_refresh. */
MG_API mg_status mg_model_memory(mg_model* model, mg_memory kind, float** memory);
MG_API mg_status mg_model_refresh(mg_model* model);

/* Bytes that training (or only sampling, training = 0) of a model takes with batches of B x T, by kind. */
typedef struct mg_memory_plan {
    int64_t parameters;
    int64_t gradients;
    int64_t moments;
    int64_t activations; /* kept from forward to backward */
    int64_t workspace;   /* everything else that lives during a step */
    int64_t total;
} mg_memory_plan;

MG_API mg_status mg_plan_memory(const mg_config* config, const char* device, const char* precision, int32_t B,
                                int32_t T, int32_t training, mg_memory_plan* plan);

/* ---- decode: sequences that grow token by token, with cached keys and values --------------------------------------- */

typedef struct mg_decoder mg_decoder;

/* The decoder keeps what it needs of the model alive, so either may be freed first. */
MG_API mg_status mg_decoder_create(mg_model* model, int32_t sequences, mg_decoder** decoder);
MG_API void mg_decoder_free(mg_decoder* decoder); /* null is fine */
MG_API mg_status mg_decoder_reset(mg_decoder* decoder);
/* Appends counts[s] tokens to each sequence s (0 is fine); tokens holds those of sequence 0, then 1, ...  logits[sequences, V]:
 * of the last token of each sequence that got some; other rows are left as they are.  A sequence that would pass
 * block_size keeps its last block_size / 2 tokens, reads them again from position 0, and goes on. */
MG_API mg_status mg_decoder_feed(mg_decoder* decoder, const int32_t* tokens, const int32_t* counts, float* logits);
/* Tokens that sequence s attends to now. */
MG_API int32_t mg_decoder_length(const mg_decoder* decoder, int32_t sequence);

#ifdef __cplusplus
}
#endif
#endif
