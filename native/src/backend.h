// All that the model knows of a device: memory, and the ops in pairs.  One object is one device, one stream and one
// precision.  A backend knows nothing of the model; model/ names neither device nor precision.
//
// Sizes:   B sequences of a batch, T tokens of a sequence, N = B*T rows, C = n_embd, NH heads, V = vocab_size.
// Layout:  matrices are row-major; the weight of a linear layer is [outputs, inputs].
// Order:   outputs, inputs, sizes.  `out` and gradients of activations are written (=), gradients of parameters
//          and of the residual stream are added to (+=).
// Types:   parameters, their gradients, the residual stream and its gradient, and statistics are float32 in every
//          precision.  Element is one number of any other activation: float32 or bfloat16, asked of the backend.
// Calls may return before the work is done; copy_out and synchronize wait for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mg {

struct Element;  // opaque: a number in the backend's precision

// A weight matrix [rows, columns]: the float32 master, and what the backend derives from it for decoding.
struct Weight {
    const float* master;
    void* prepared;  // prepared_bytes(rows, columns) bytes, filled by prepare(); null: the master is read instead
    int64_t rows;
    int64_t columns;
};

// AdamW with decoupled weight decay (Loshchilov & Hutter 2019) and clipping by the global gradient norm.
struct AdamW {
    float learning_rate;
    float beta1;
    float beta2;
    float epsilon;
    float weight_decay;  // applied to the ranges that decay
    float max_norm;      // gradients are scaled by max_norm / norm where norm > max_norm; 0: never
    int64_t step;        // 1 for the first update: the bias correction is 1 - beta^step
};

// The sizes of a step that a backend's own memory depends on; widest is the widest row of a linear layer.
struct StepShape {
    int64_t N, T, C, NH, V, widest;
    bool training;  // or forward alone
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

    virtual const char* device() const = 0;     // "cpu", "cuda"
    virtual const char* precision() const = 0;  // "fp32", "bf16"

    // --- memory: pointers are to the device's memory, aligned to 64 bytes at least
    virtual void* allocate(size_t bytes) = 0;  // raises MG_ERROR_MEMORY; contents undefined
    virtual void release(void* memory) = 0;
    virtual void zero(void* memory, size_t bytes) = 0;
    virtual void copy_in(void* device, const void* host, size_t bytes) = 0;
    virtual void copy_out(void* host, const void* device, size_t bytes) = 0;
    virtual void synchronize() = 0;
    virtual size_t element_bytes() const = 0;
    // What the backend itself holds beside the caller's buffers while it works on steps of this shape.
    virtual size_t scratch_bytes(const StepShape& shape) const = 0;

    // --- weights: a copy that is quick to read for a few rows, renewed after each update while something decodes.  Products
    // of many rows convert and pack the master as they go: a step uses each weight twice, so a copy would cost its memory and
    // save next to nothing.
    virtual size_t prepared_bytes(int64_t rows, int64_t columns) const = 0;
    virtual void prepare(const Weight& weight) = 0;

    // --- precision of the stream: x itself where an Element is a float32, else x converted into `converted`
    virtual const Element* as_elements(Element* converted, const float* x, int64_t count) = 0;

    // --- embedding: out[row] = wte[tokens[row]] + wpe[positions[row]]; null positions mean row % T
    virtual void embedding_forward(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                                   const float* wpe, int64_t N, int64_t T, int64_t C) = 0;
    // dwte[tokens[row]] += dout[row]; dwpe[row % T] += dout[row]; rows in ascending order, so the sum is one sum
    virtual void embedding_backward(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N,
                                    int64_t T, int64_t C) = 0;

    // --- layer norm: out = gamma * (x - mean) * rstd + beta over C, per row; eps 1e-5
    virtual void norm_forward(Element* out, float* mean, float* rstd, const float* x, const float* gamma,
                              const float* beta, int64_t N, int64_t C) = 0;
    // dx += , dgamma +=, dbeta +=
    virtual void norm_backward(float* dx, float* dgamma, float* dbeta, const Element* dout, const float* x,
                               const float* mean, const float* rstd, const float* gamma, int64_t N, int64_t C) = 0;

    // --- linear: out[N, rows] = x[N, columns] weight^T + bias
    virtual void linear_forward(Element* out, const Element* x, const Weight& weight, const float* bias, int64_t N) = 0;
    // hidden = x weight^T + bias; out = gelu(hidden)
    virtual void linear_gelu_forward(Element* hidden, Element* out, const Element* x, const Weight& weight,
                                     const float* bias, int64_t N) = 0;
    // out = residual + x weight^T + bias; out may be residual
    virtual void linear_residual_forward(float* out, const float* residual, const Element* x, const Weight& weight,
                                         const float* bias, int64_t N) = 0;
    // dx[N, columns] = dout[N, rows] weight
    virtual void linear_backward_input(Element* dx, const Element* dout, const Weight& weight, int64_t N) = 0;
    // dhidden = (dout weight) * gelu'(hidden), and out = gelu(hidden) once more, for the weight's gradient;
    // hidden and dhidden [N, columns] may be the same buffer
    virtual void linear_gelu_backward_input(Element* dhidden, Element* out, const Element* dout, const Element* hidden,
                                            const Weight& weight, int64_t N) = 0;
    // dweight[rows, columns] += dout^T x; dbias[rows] += column sums of dout; dbias may be null
    virtual void linear_backward_weight(float* dweight, float* dbias, const Element* dout, const Element* x, int64_t N,
                                        int64_t rows, int64_t columns) = 0;

    // --- causal attention: qkv[N, 3C] holds q, k, v of all heads; out[N, C]; scores are never stored whole
    virtual size_t attention_saved_bytes(int64_t B, int64_t T, int64_t NH) const = 0;
    virtual void attention_forward(Element* out, void* saved, const Element* qkv, int64_t B, int64_t T, int64_t C,
                                   int64_t NH) = 0;
    virtual void attention_backward(Element* dqkv, const Element* dout, const Element* qkv, const Element* out,
                                    const void* saved, int64_t B, int64_t T, int64_t C, int64_t NH) = 0;

    // --- head and loss, in chunks of rows: losses[row] = -log softmax(x wte^T)[targets[row]], 0 where the target is -1
    virtual void head_loss_forward(float* losses, const Element* x, const Weight& wte, const int32_t* targets,
                                   int64_t N) = 0;
    // the same losses, and dx = , dwte += of scale * sum(losses)
    virtual void head_loss_backward(float* losses, Element* dx, float* dwte, const Element* x, const Weight& wte,
                                    const int32_t* targets, float scale, int64_t N) = 0;
    virtual void head_forward(float* logits, const Element* x, const Weight& wte, int64_t N) = 0;

    // --- reductions and the optimizer: results stay on the device
    virtual void sum(float* result, const float* x, int64_t count) = 0;          // in double, in a fixed order
    virtual void global_norm(float* result, const float* x, int64_t count) = 0;  // sqrt of the sum of squares
    // All parameters in one pass.  Where *norm is not finite nothing is updated.  Gradients end as 0 either way.
    virtual void adamw(float* parameters, float* gradients, float* m, float* v, const float* norm,
                       const std::vector<ParameterRange>& ranges, const AdamW& options) = 0;

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

// device: "cpu" or "auto"; precision: "fp32", "bf16" or "auto".  Raises MG_ERROR_DEVICE where one isn't to be had.
std::unique_ptr<Backend> create_backend(const std::string& device, const std::string& precision);

// The CPU's instruction set in use, those that could be, and the threads all CPU backends share (microgpt_cuda.h).
const char* cpu_isa();
const char* available_cpu_isas();
int cpu_threads();
void set_cpu_threads(int count);  // raises MG_ERROR_ARGUMENT

// Work that is the host's on every device, on those threads: body(task) for each task in [0, count); it must not throw.
void parallel_on_host(int64_t count, const std::function<void(int64_t task)>& body);

}  // namespace mg
