/* microgpt_cuda: GPT-2 style language models, forward, backward and AdamW, without a framework.
 *
 * Every function that can fail returns an mg_status; mg_last_error() then holds one line for this thread that says what
 * was wrong and what was seen.  Nothing here exits, aborts or prints.  A model and its decoders together may be used by one
 * thread at a time; different models by different threads, in which case their ops take turns on the shared thread pool.
 * The pool's threads leave the process's signals to the caller's.  After a fork the child may go on with models on the CPU.
 * On x86-64 the CPU backend rounds to nearest and takes numbers below 1.2e-38 (subnormal ones) to be 0, whatever the calling
 * thread's floating-point mode is, and leaves that as it was.
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
    MG_ABI_VERSION = 4, /* grows whenever a signature or a struct below changes */
    MG_MAX_NAME = 64,   /* bytes of a tensor's name, with the closing zero */
    MG_MAX_DIMS = 3,
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

/* What this library and machine have for GPUs.  Nothing here fails: where no GPU can be used, `usable` is 0 and `reason` says why. */
typedef struct mg_cuda_info {
    int32_t built;           /* 1: this library has the CUDA backend */
    int32_t usable;          /* 1: device "cuda" can be created */
    int32_t simulated;       /* 1: the library runs its kernels on a CPU, for tests */
    int32_t driver_version;  /* as CUDA counts: 13000 is 13.0; 0: there is no driver */
    int32_t runtime_version; /* that the library was built with; 0: built without CUDA */
    int32_t device_count;
    int32_t compute_major, compute_minor; /* of the first GPU */
    int64_t memory_total, memory_free;    /* of the first GPU, bytes */
    char device_name[128];
    char architectures[128]; /* that the library holds code for: "80 90a" */
    char cublaslt[256];      /* which cuBLASLt was loaded, or why none was; "" where that wasn't tried */
    char reason[256];        /* why `usable` is 0, and what to do */
} mg_cuda_info;

MG_API void mg_get_cuda_info(mg_cuda_info* info);
/* The file of cuBLASLt to load instead of looking for libcublasLt.so by its usual names; before the first use of a GPU. */
MG_API void mg_set_cublaslt_path(const char* path);

/* ---- model ------------------------------------------------------------------------------------------------------ */

/* The dialect's choices; 0 is GPT-2's everywhere. */
typedef enum mg_switch { MG_DEFAULT = 0, MG_ON = 1, MG_OFF = 2 } mg_switch;
/* Over the n_embd numbers of a row; g and b are .weight and .bias, or 1 and 0 where norm_affine is off. */
typedef enum mg_norm {
    MG_LAYERNORM = 0, /* g (x - mean(x)) / sqrt(mean((x - mean(x))^2) + 1e-5) + b   (Ba, Kiros & Hinton 2016) */
    MG_RMSNORM = 1    /* g x / sqrt(mean(x^2) + 1e-5)   (Zhang & Sennrich 2019) */
} mg_norm;
typedef enum mg_norm_position {
    MG_NORM_PRE = 0,  /* x + sublayer(norm(x)) */
    MG_NORM_POST = 1, /* norm(x + sublayer(x)) */
    MG_NORM_NONE = 2  /* x + sublayer(x) */
} mg_norm_position;
typedef enum mg_activation_function {
    MG_GELU = 0,     /* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))   (Hendrycks & Gimpel 2016) */
    MG_GELU_ERF = 1, /* x Phi(x), Phi the normal distribution's function   (the same) */
    MG_RELU = 2,     /* max(x, 0) */
    MG_RELU2 = 3,    /* max(x, 0)^2   (So et al. 2021) */
    MG_SWIGLU = 4    /* a / (1 + exp(-a)) b; c_fc has 2 mlp_dim outputs, a before b   (Shazeer 2020) */
} mg_activation_function;

/* Set struct_size to sizeof(mg_config).  n_head must divide n_embd.  What follows the sizes may stay 0: that is GPT-2. */
typedef struct mg_config {
    size_t struct_size;
    int32_t vocab_size;
    int32_t block_size;
    int32_t n_layer;
    int32_t n_head;
    int32_t n_embd;
    int32_t mlp_dim;       /* 0: 4 n_embd; for swiglu 8/3 n_embd, rounded up to a multiple of 64 */
    int32_t norm;          /* an mg_norm */
    int32_t norm_position; /* an mg_norm_position */
    int32_t activation;    /* an mg_activation_function */
    /* An mg_switch each; on by default, but for embedding_norm. */
    int32_t norm_affine;    /* norms have a gain, layer norms a bias too */
    int32_t residual;       /* a sublayer's input is added to its output */
    int32_t attn_bias;      /* of attn.c_attn and attn.c_proj */
    int32_t mlp_bias;       /* of mlp.c_fc and mlp.c_proj */
    int32_t tie_embeddings; /* the head is wte; else lm_head, a matrix of its own */
    int32_t final_norm;     /* before the head */
    int32_t embedding_norm; /* after the sum of the embeddings */
    int32_t scaled_init;    /* attn.c_proj and mlp.c_proj start smaller by sqrt(2 n_layer) */
    float init_std;         /* of matrices; 0: 0.02 */
} mg_config;

typedef struct mg_model mg_model;

/* device "cpu"; "cuda", the first NVIDIA GPU, or "cuda:1" and so on; or "auto": a GPU where one can be used, else the CPU.
 * precision "fp32"; "bf16": products of bfloat16 numbers summed in float32, and activations kept as bfloat16, while
 * parameters, gradients, moments, the residual stream and losses stay float32; or "auto": bf16 where the device multiplies it
 * natively (GPUs from sm_80 on, CPUs with AVX-512 BF16), else fp32.  Parameters are initialised from the seed by a counter-based
 * generator: the same seed gives the same bits on every machine. */
MG_API mg_status mg_model_create(const mg_config* config, const char* device, const char* precision, uint64_t seed,
                                 mg_model** model);
MG_API void mg_model_free(mg_model* model); /* null is fine */
/* The model's configuration with nothing left to defaults: mlp_dim and init_std are numbers, switches on or off.  Set
 * config->struct_size. */
MG_API mg_status mg_model_config(const mg_model* model, mg_config* config);
MG_API const char* mg_model_device(const mg_model* model);
MG_API const char* mg_model_precision(const mg_model* model);
/* One line: the device by name, and the precision.  Valid until this thread asks again. */
MG_API const char* mg_model_description(const mg_model* model);
/* 1: the host may read and write pointers to the model's memory; 0: they are a GPU's. */
MG_API int32_t mg_model_host_readable(const mg_model* model);
/* The stream that the model's work is queued on, as a number; 0 on the CPU.  mg_model_wait lets that work wait for what the
 * caller has queued so far on another stream of the device (a cudaStream_t as a number; 0: the default one). */
MG_API uintptr_t mg_model_stream(const mg_model* model);
MG_API mg_status mg_model_wait(mg_model* model, uintptr_t stream);
/* Waits until all of the model's work is done. */
MG_API mg_status mg_model_synchronize(mg_model* model);

/* Initialises again: parameters from the seed; gradients, moments and step count 0. */
MG_API mg_status mg_model_reset(mg_model* model, uint64_t seed);

/* tokens and targets: B*T ids in [0, vocab_size), both on the host or both in the model's device's memory; T at most block_size;
 * a target of -1 has no loss, but at least one must have.  loss: mean of -log softmax(logits)[target] over the positions with
 * a target, natural logarithm; with null the call returns when the work is queued, and mg_loss waits for it.
 * Keeps the activations that mg_backward needs.  What is wrong with ids on the device is told when the loss is asked for; a
 * batch with such ids has the loss NaN, and no update comes from it. */
MG_API mg_status mg_forward(mg_model* model, const int32_t* tokens, const int32_t* targets, int32_t B, int32_t T,
                            float* loss);
/* Adds loss_scale * d loss / d parameter of the last mg_forward to the gradients.  Once per forward. */
MG_API mg_status mg_backward(mg_model* model, float loss_scale);
/* mg_forward and mg_backward in one: the same bits, and the head's product is computed once instead of twice. */
MG_API mg_status mg_forward_backward(mg_model* model, const int32_t* tokens, const int32_t* targets, int32_t B,
                                     int32_t T, float loss_scale, float* loss);

/* The loss of the last mg_forward, mg_backward or mg_forward_backward. */
MG_API mg_status mg_loss(mg_model* model, float* loss);
/* Forgets the gradients that were added up since the last mg_step. */
MG_API mg_status mg_zero_gradients(mg_model* model);

/* Set struct_size to sizeof(mg_step_options).  AdamW (Loshchilov & Hutter 2019); g is the gradient after clipping, t counts from 1:
 *   p *= 1 - learning_rate weight_decay, of matrices; biases and norms don't decay
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *   p -= learning_rate (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
 * MG_ERROR_ARGUMENT where a number is outside its range. */
typedef struct mg_step_options {
    size_t struct_size;
    float learning_rate;   /* finite, at least 0 */
    float beta1;           /* 0 <= beta1 < 1 */
    float beta2;           /* 0 <= beta2 < 1 */
    float epsilon;         /* finite, at least 1.17549435e-38, float32's smallest normal number */
    float weight_decay;    /* finite, at least 0 */
    float max_norm;        /* clip the global gradient norm to this; 0: no clipping */
    float skip_loss_above; /* no update where mg_update_loss is above this; 0: whatever it is */
    float skip_norm_above; /* no update where the gradient norm, before clipping, is above this; 0: whatever it is */
} mg_step_options;

/* One update from the gradients, which end as 0.  gradient_norm: before clipping; where it is not finite, no parameter, moment
 * or step count was changed; it is NaN, too, where a loss since the last update was not finite.  Nor is anything changed where
 * one of the options' limits was passed; the norm is the true one then.  With null the call returns when the work is queued,
 * and mg_gradient_norm waits for it. */
MG_API mg_status mg_step(mg_model* model, const mg_step_options* options, float* gradient_norm);
MG_API mg_status mg_gradient_norm(mg_model* model, float* gradient_norm);
/* Of the last mg_step: the sum of its batches' losses, each times its loss_scale. */
MG_API mg_status mg_update_loss(mg_model* model, float* loss);

/* logits[B, T, V] of tokens[B, T], for small inputs; keeps nothing, nor what an earlier mg_forward kept for mg_backward.  Either may
 * be in the model's device's memory: ids there are looked at before the call returns, logits are there when their turn comes. */
MG_API mg_status mg_logits(mg_model* model, const int32_t* tokens, int32_t B, int32_t T, float* logits);

/* Updates done, for AdamW's bias correction; waits for those that are queued. */
MG_API mg_status mg_model_step_count(mg_model* model, int64_t* count);
MG_API mg_status mg_model_set_step_count(mg_model* model, int64_t count);

/* ---- tensors: one table that parameters, gradients and both moments share ------------------------------------------- */

typedef struct mg_tensor {
    char name[64];    /* GPT-2's: "h.0.attn.c_attn.weight" */
    int32_t n_dims;   /* 1 or 2 */
    int64_t shape[2]; /* of a layer's matrix [outputs, inputs]; shape[1] is 1 where n_dims is 1 */
    int64_t offset;   /* of the first float from the start of the memory */
    int64_t size;     /* floats */
    int32_t decays;   /* 1: weight decay applies */
} mg_tensor;

typedef enum mg_memory { MG_PARAMETERS = 0, MG_GRADIENTS = 1, MG_MOMENT_1 = 2, MG_MOMENT_2 = 3 } mg_memory;

MG_API int32_t mg_model_tensor_count(const mg_model* model);
MG_API mg_status mg_model_tensor(const mg_model* model, int32_t index, mg_tensor* tensor);
MG_API int64_t mg_model_parameter_count(const mg_model* model);
/* The float32 memory all tensors of that kind lie in, on the model's device; allocated and zeroed on first request.
 * Valid until mg_model_free.  After writing parameters, call mg_model_refresh.  Waits for queued work where the host may read
 * the memory. */
MG_API mg_status mg_model_memory(mg_model* model, mg_memory kind, float** memory);
/* Copies numbers [offset, offset + count) of that memory to the host, or from there; on any device. */
MG_API mg_status mg_model_read(mg_model* model, mg_memory kind, int64_t offset, int64_t count, float* values);
MG_API mg_status mg_model_write(mg_model* model, mg_memory kind, int64_t offset, int64_t count, const float* values);
MG_API mg_status mg_model_refresh(mg_model* model);

/* What mg_forward keeps for mg_backward: the residual stream before each block ("h.0.input"), statistics of norms, outputs of
 * layers.  To be read between the two calls; the memory is the model's and is written by the next call. */
typedef struct mg_activation {
    char name[64];
    int32_t is_bf16; /* 1: bfloat16 numbers, 0: float32 */
    int32_t n_dims;
    int64_t shape[3]; /* B, T, and the width where n_dims is 3 */
    const void* memory;
} mg_activation;

MG_API mg_status mg_model_activation_count(mg_model* model, int32_t* count);
MG_API mg_status mg_model_activation(mg_model* model, int32_t index, mg_activation* activation);

/* What memory is planned for: a decoder of B sequences that reads up to T tokens of each at once; training with batches of B x T;
 * or mg_forward alone with them. */
typedef enum mg_use { MG_USE_DECODING = 0, MG_USE_TRAINING = 1, MG_USE_FORWARD = 2 } mg_use;

/* Bytes by kind. */
typedef struct mg_memory_plan {
    int64_t parameters; /* with the copies that are computed with */
    int64_t gradients;
    int64_t moments;
    int64_t activations; /* kept from forward to backward; keys and values that a decoder keeps */
    int64_t workspace;   /* everything else that lives during a step */
    int64_t total;
} mg_memory_plan;

MG_API mg_status mg_plan_memory(const mg_config* config, const char* device, const char* precision, int32_t B,
                                int32_t T, int32_t use, mg_memory_plan* plan);

/* ---- decode: sequences that grow token by token, with cached keys and values --------------------------------------- */

typedef struct mg_decoder mg_decoder;

/* The decoder keeps what it needs of the model alive, so either may be freed first. */
MG_API mg_status mg_decoder_create(mg_model* model, int32_t sequences, mg_decoder** decoder);
MG_API void mg_decoder_free(mg_decoder* decoder); /* null is fine */
MG_API mg_status mg_decoder_reset(mg_decoder* decoder);
/* Empties one sequence; the others go on. */
MG_API mg_status mg_decoder_forget(mg_decoder* decoder, int32_t sequence);
/* Appends counts[s] tokens to each sequence s (0 is fine); tokens holds those of sequence 0, then 1, ...  logits[sequences, V]:
 * of the last token of each sequence that got some; other rows are left as they are.  A sequence that would pass
 * block_size keeps its last block_size / 2 tokens, reads them again from position 0, and goes on.  Where it fails for want of
 * memory, or of the device, all sequences are empty; a refused argument changes nothing. */
MG_API mg_status mg_decoder_feed(mg_decoder* decoder, const int32_t* tokens, const int32_t* counts, float* logits);
/* Tokens that sequence s attends to now. */
MG_API int32_t mg_decoder_length(const mg_decoder* decoder, int32_t sequence);

#ifdef __cplusplus
}
#endif
#endif
