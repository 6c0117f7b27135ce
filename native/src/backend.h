// All that the model knows of a device: memory, and the ops in pairs.  One object is one device, one stream and one
// precision.  A backend knows nothing of the model; model/ names neither device nor precision.
//
// Sizes:   B sequences of a batch, T tokens of a sequence, N = B*T rows, C = n_embd, NH heads, V = vocab_size.
// Layout:  matrices are row-major; the weight of a linear layer is [outputs, inputs].
// Order:   outputs, inputs, sizes.  `out` and gradients of activations are written (=), gradients of parameters
//          and of the residual stream are added to (+=).
// Types:   parameters, their gradients, the residual stream and its gradient, and statistics are float32 in every
//          precision.  Element is one number of any other activation: float32 or bfloat16, asked of the backend.
// State:   numbers that vary from step to step (BatchScale, StepState, AdamW) lie in the device's memory too, so that a step's
//          ops are the same calls each time and can be recorded once.
// Calls may return before the work is done; copy_out and synchronize wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "activation.h"

struct mg_cuda_info;

namespace mg {

struct Element;  // opaque: a number in the backend's precision

// A weight matrix [rows, columns]: the float32 master, and its copy in the backend's precision.
struct Weight {
    const float* master;
    const void* prepared;  // the matrix' part of what prepare() fills; null: the master is read instead
    int64_t rows;
    int64_t columns;
};

// The bias of a linear layer, [rows] of its weight; null: it has none.
struct Bias {
    const float* master;
    const void* prepared;
};

// AdamW with decoupled weight decay (Loshchilov & Hutter 2019) and clipping by the global gradient norm.
struct AdamW {
    float learning_rate;
    float beta1;
    float beta2;
    float epsilon;
    float weight_decay;  // applied to the ranges that decay
    float max_norm;      // gradients are scaled by max_norm / norm where norm > max_norm; 0: never
    // No update where the total loss or the norm is above; 0: whatever it is.
    float skip_loss_above;
    float skip_norm_above;
};

// What a batch's losses are multiplied by.
struct BatchScale {
    float loss;      // 1 / positions with a target: sum of losses -> mean loss
    float gradient;  // weight / positions with a target: of the losses' gradients
    float weight;    // of this batch among those of an update; 0: forward alone
};

// What a step leaves behind.
struct StepState {
    float loss;         // mean of the last batch
    float total_loss;   // of the batches since the last update, each times its weight
    float norm;         // of all gradients, before clipping
    float update_loss;  // total_loss of the last update
    int64_t steps;      // updates done: AdamW's bias correction is 1 - beta^steps
};

// What a plan of memory is for; the values are those of mg_use.
enum class Purpose { decoding, training, forward };

// The sizes that a backend's own memory depends on, of a step or of what a decoder is fed at once.
struct WorkShape {
    Purpose purpose;
    int64_t N, sequences, T, C, NH, V;  // T: in decoding the positions of the cache
    int64_t hidden, mlp;                // widths of the MLP's first layer's output and of its second layer's input
    int64_t biased;                     // the widest output of a layer that has a bias; 0 where none has
    bool has_norms;
};

// Names a list of ops that repeat() may record: calls with equal keys must be equal calls, for as long as no memory is released.
struct RepeatKey {
    const void* owner;  // memory that they work in
    int64_t kind, B, T;

    bool operator==(const RepeatKey& other) const {
        return owner == other.owner && kind == other.kind && B == other.B && T == other.T;
    }
};

// Consecutive parameters that are treated alike.
struct ParameterRange {
    int64_t begin;
    int64_t end;
    bool decays;  // matrices yes; biases and norms no
};

class Backend {
   public:
    virtual ~Backend() = default;

    virtual const char* device() const = 0;       // "cpu", "cuda"
    virtual const char* precision() const = 0;    // "fp32", "bf16"
    virtual std::string description() const = 0;  // one line: which device and why this precision

    // --- memory: pointers are to the device's memory, aligned to 64 bytes at least
    virtual void* allocate(size_t bytes) = 0;  // raises MG_ERROR_MEMORY; contents undefined
    virtual void release(void* memory) = 0;
    virtual void zero(void* memory, size_t bytes) = 0;
    virtual void copy_in(void* device, const void* host, size_t bytes) = 0;  // `host` is free again on return
    virtual void copy_out(void* host, const void* device, size_t bytes) = 0;
    virtual void synchronize() = 0;
    virtual bool host_readable() const = 0;                // whether the host may use pointers to the device's memory
    virtual bool on_device(const void* memory) const = 0;  // whether that is memory of a device other than the host
    virtual uintptr_t stream() const = 0;                  // that work is queued on, as a number; 0: there is none
    virtual void wait_for(uintptr_t stream) = 0;           // lets what follows wait for work queued on that stream
    virtual size_t element_bytes() const = 0;
    // What the backend itself holds beside the caller's buffers once it did such work.
    virtual size_t scratch_bytes(const WorkShape& shape) const = 0;

    // Does ops(): calls of this backend that depend on nothing but the key and the contents of memory.  A backend may record
    // them and replay its record when the key comes again.
    virtual void repeat(const RepeatKey& key, const std::function<void()>& ops) = 0;
    virtual int64_t launches() const = 0;  // kernels and products that were started on a device so far

    // --- weights: a copy of consecutive masters in the backend's precision, laid out alike; 0 bytes where masters serve.
    virtual size_t prepared_bytes(int64_t floats) const = 0;
    virtual bool trains_prepared() const = 0;  // whether training reads the copies, or decoding alone
    virtual void prepare(void* prepared, const float* masters, int64_t floats) = 0;

    // --- batch: tokens and targets that are on the device already are copied, checked and counted there.  An id out of range
    // becomes 0, a target -1, and the scales NaN; so they do where no position has a target.  from_targets may be null: then the
    // scales are 0, or NaN.
    virtual void take_batch(int32_t* tokens, int32_t* targets, BatchScale* scale, const int32_t* from_tokens,
                            const int32_t* from_targets, float weight, int64_t N, int64_t V) = 0;

    // --- embedding: out[row] = wte[tokens[row]] + wpe[positions[row]]; null positions mean row % T
    virtual void embedding_forward(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                                   const float* wpe, int64_t N, int64_t T, int64_t C) = 0;
    // dwte[tokens[row]] += dout[row]; dwpe[row % T] += dout[row]; rows in ascending order, so the sum is one sum
    virtual void embedding_backward(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N,
                                    int64_t T, int64_t C) = 0;

    // --- norms: out = gamma * (x - mean) * rstd + beta over C, per row; eps 1e-5.  Null: mean, for RMSNorm, which takes it to be
    // 0; gamma and beta, for 1 and 0, and their gradients.
    virtual void norm_forward(Element* out, float* mean, float* rstd, const float* x, const float* gamma,
                              const float* beta, int64_t N, int64_t C) = 0;
    // dx += , dgamma +=, dbeta +=; dx_elements = dx, and out = the norm's output once more, for the weights' gradients.
    // Null: not wanted.  dx_elements may be dx where an Element is a float32.
    virtual void norm_backward(float* dx, Element* dx_elements, Element* out, float* dgamma, float* dbeta,
                               const Element* dout, const float* x, const float* mean, const float* rstd,
                               const float* gamma, const float* beta, int64_t N, int64_t C) = 0;
    // The same on the residual stream itself; out may be x.  elements = out, for the layer that reads it next; null: not wanted.
    virtual void stream_norm_forward(float* out, Element* elements, float* mean, float* rstd, const float* x,
                                     const float* gamma, const float* beta, int64_t N, int64_t C) = 0;
    // dx, the gradient of the output, becomes that of x; dx_elements = dx as above.
    virtual void stream_norm_backward(float* dx, Element* dx_elements, float* dgamma, float* dbeta, const float* x,
                                      const float* mean, const float* rstd, const float* gamma, int64_t N,
                                      int64_t C) = 0;
    // The residual stream where a layer reads it without a norm: out = x, and dx += dout, dx_elements = dx as above.
    virtual void read_stream(Element* out, const float* x, int64_t count) = 0;
    virtual void add_to_stream(float* dx, Element* dx_elements, const Element* dout, int64_t count) = 0;

    // --- linear: out[N, rows] = x[N, columns] weight^T + bias
    virtual void linear_forward(Element* out, const Element* x, const Weight& weight, const Bias& bias, int64_t N) = 0;
    // hidden = x weight^T + bias; out = gelu(hidden)
    virtual void linear_gelu_forward(Element* hidden, Element* out, const Element* x, const Weight& weight,
                                     const Bias& bias, int64_t N) = 0;
    // out = residual + x weight^T + bias; out may be residual; null: 0
    virtual void linear_residual_forward(float* out, const float* residual, const Element* x, const Weight& weight,
                                         const Bias& bias, int64_t N) = 0;
    // dx[N, columns] = dout[N, rows] weight
    virtual void linear_backward_input(Element* dx, const Element* dout, const Weight& weight, int64_t N) = 0;
    // dhidden = (dout weight) * gelu'(hidden); then hidden [N, columns] becomes gelu(hidden), for the weight's gradient
    virtual void linear_gelu_backward_input(Element* dhidden, Element* hidden, const Element* dout,
                                            const Weight& weight, int64_t N) = 0;
    // dweight[rows, columns] += dout^T x; dbias[rows] += column sums of dout; dbias may be null
    virtual void linear_backward_weight(float* dweight, float* dbias, const Element* dout, const Element* x, int64_t N,
                                        int64_t rows, int64_t columns) = 0;

    // --- activations that no product is fused with: out[N, M] = f(hidden[N, M, or 2 M where it is gated])
    virtual void activation_forward(Activation f, Element* out, const Element* hidden, int64_t N, int64_t M) = 0;
    // hidden becomes its gradient, and dout[N, M] becomes f(hidden), for the weight's gradient
    virtual void activation_backward(Activation f, Element* hidden, Element* dout, int64_t N, int64_t M) = 0;

    // --- causal attention: qkv[N, 3C] holds q, k, v of all heads; out[N, C]; scores are never stored whole
    virtual size_t attention_saved_bytes(int64_t B, int64_t T, int64_t NH) const = 0;
    virtual void attention_forward(Element* out, void* saved, const Element* qkv, int64_t B, int64_t T, int64_t C,
                                   int64_t NH) = 0;
    virtual void attention_backward(Element* dqkv, const Element* dout, const Element* qkv, const Element* out,
                                    const void* saved, int64_t B, int64_t T, int64_t C, int64_t NH) = 0;

    // --- head and loss, in chunks of rows: losses[row] = -log softmax(x wte^T)[targets[row]], 0 where the target is -1
    virtual void head_loss_forward(float* losses, const Element* x, const Weight& wte, const int32_t* targets,
                                   int64_t N) = 0;
    // the same losses, and dx = , dwte += of *scale * sum(losses)
    virtual void head_loss_backward(float* losses, Element* dx, float* dwte, const Element* x, const Weight& wte,
                                    const int32_t* targets, const float* scale, int64_t N) = 0;
    virtual void head_forward(float* logits, const Element* x, const Weight& wte, int64_t N) = 0;

    // --- reductions and the optimizer: results stay on the device
    virtual void sum(float* result, const float* x, int64_t count) = 0;          // in double, in a fixed order
    virtual void global_norm(float* result, const float* x, int64_t count) = 0;  // sqrt of the sum of squares
    // state->loss = scale->loss * sum of losses[N]; state->total_loss += that times the batch's weight, where it has one
    virtual void batch_loss(StepState* state, const float* losses, const BatchScale* scale, int64_t N) = 0;
    // All parameters in one pass.  Where the norm or the total loss is not finite nothing is updated, and the norm then says so;
    // nor where one of them is above its limit.  Else state->steps grows, and prepared (may be null) is renewed.  Either way
    // gradients end as 0, and the total loss moves to state->update_loss.
    virtual void adamw(float* parameters, float* gradients, float* m, float* v, void* prepared, StepState* state,
                       const std::vector<ParameterRange>& ranges, const AdamW* options) = 0;

    // --- decode: rows of new tokens, each of one sequence at one position; a cache holds k and v of one layer
    virtual size_t cache_bytes(int64_t sequences, int64_t capacity, int64_t C) const = 0;
    // Stores k and v of all rows, then lets each row attend to positions 0..positions[row] of its sequence.
    virtual void cached_attention_forward(Element* out, void* cache, const Element* qkv, const int32_t* sequences,
                                          const int32_t* positions, int64_t rows, int64_t capacity, int64_t C,
                                          int64_t NH) = 0;

    // --- limits of the device, for benchmarks: every thread does `rounds` rounds of independent multiply-adds in registers;
    // returns the operations of all together.  And a plain read of memory, whose sum goes to *result.
    virtual double peak_products(int64_t rounds) = 0;
    virtual void read(float* result, const void* memory, size_t bytes) = 0;
};

// device: "cpu", "cuda", "cuda:1", or "auto": a GPU where one can be used.  precision: "fp32", "bf16" or "auto".
// Raises MG_ERROR_DEVICE where one isn't to be had.
std::unique_ptr<Backend> create_backend(const std::string& device, const std::string& precision);

// What this build and machine have for GPUs, and switches of the GPU backend (microgpt_cuda.h, microgpt_cuda_ops.h).
void cuda_info(mg_cuda_info* info);
void set_cublaslt_path(const char* path);
void set_fused_epilogues(bool fused);

// The CPU's instruction set in use, those that could be, and the threads all CPU backends share (microgpt_cuda.h).
const char* cpu_isa();
const char* available_cpu_isas();
int cpu_threads();
void set_cpu_threads(int count);  // raises MG_ERROR_ARGUMENT

// Work that is the host's on every device, on those threads: body(task) for each task in [0, count); it must not throw.
void parallel_on_host(int64_t count, const std::function<void(int64_t task)>& body);

}  // namespace mg
