// The tables of functions that are compiled once per instruction set, for each precision E (float, Bf16).  Each function
// works on a range of rows, columns or tasks, so that the backend can share the work out; none allocates, throws or knows
// of threads.  Packed operands are words of 32 bits in the kernels' own layout (ops/words.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "activation.h"
#include "cpu/element.h"

namespace mg::cpu {

// What becomes of an element `sum` of the product, bias included.
enum class Epilogue {
    store,          // out = sum
    gelu,           // second = sum; out = gelu(sum)
    gelu_backward,  // out = sum * gelu'(hidden); second = gelu(hidden); second may be hidden
    store_sums,     // sums = sum
    add,            // sums = other + sum; sums may be other
};

// C[M, N] = A[M, K] B[K, N]: every product of the engine, forward, input gradient and weight gradient.
template <typename E>
struct Product {
    int64_t M, N, K;
    const E* a;
    int64_t a_row, a_depth;  // strides of A(row, depth); one of them is 1
    Epilogue epilogue;
    const float* bias;      // [N]; null means 0
    E *out, *second;        // [M, N], as the epilogue says
    const E* hidden;        // [M, N]
    float* sums;            // [M, N]
    const float* other;     // [M, N]
    float* row_sums;        // [M] += sums of A over the depth; null: not wanted
    const float* packed_b;  // columns from packed_from on
    int64_t packed_from;
};

struct AdamWStep {
    float keep;  // 1 - learning_rate * weight_decay
    float beta1, beta2;
    float step_size;        // learning_rate / (1 - beta1^step)
    float root_correction;  // 1 / sqrt(1 - beta2^step)
    float epsilon;
    float gradient_scale;  // of clipping
};

template <typename E>
struct Kernels {
    const char* isa;
    bool native;  // whether the CPU multiplies numbers of this precision as they are

    // --- products.  Granularity of tasks: rows [begin, end) and columns [begin, end) whose begins are multiples of these.
    int64_t row_tile, column_tile;
    int64_t row_block;                               // rows worth a task
    size_t (*product_scratch_bytes)(int64_t depth);  // per thread
    int64_t (*strip_words)(int64_t depth);           // packed words of column_tile columns of B
    // B(depth, column) = b[depth * b_depth + column * b_column], one of the strides 1: a weight, or activations
    void (*pack_weight)(float* packed, const float* b, int64_t b_depth, int64_t b_column, int64_t depth, int64_t begin,
                        int64_t end);
    void (*pack_activations)(float* packed, const E* b, int64_t b_depth, int64_t b_column, int64_t depth, int64_t begin,
                             int64_t end);
    void (*product)(const Product<E>& product, int64_t row_begin, int64_t row_end, int64_t column_begin,
                    int64_t column_end, void* scratch);
    // The same for at most few_rows rows and a weight [N, K]: reads each weight once, in place.
    int64_t few_rows;
    int64_t (*few_rows_words)(int64_t depth);  // words of one row of A
    void (*pack_few_rows)(float* words, const Product<E>& product);
    void (*few_rows_of_master)(const Product<E>& product, const float* words, const float* weight, int64_t column_begin,
                               int64_t column_end);
    void (*few_rows_of_prepared)(const Product<E>& product, const float* words, const E* weight, int64_t column_begin,
                                 int64_t column_end);
    void (*convert)(E* out, const float* x, int64_t count);

    void (*add_rows)(float* out, const float* x, int64_t rows, int64_t row_stride, int64_t columns);  // out += each row

    void (*embedding_forward)(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                              const float* wpe, int64_t row_begin, int64_t row_end, int64_t T, int64_t C);
    void (*embedding_backward)(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N, int64_t T,
                               int64_t C, int64_t column_begin, int64_t column_end);

    void (*norm_forward)(E* out, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                         int64_t row_begin, int64_t row_end, int64_t C);
    // The output once more, from statistics that are known.  Null: mean, where it is 0; gamma and beta, for 1 and 0.
    void (*norm_again)(E* out, const float* x, const float* mean, const float* rstd, const float* gamma,
                       const float* beta, int64_t row_begin, int64_t row_end, int64_t C);
    // dx += for the rows, or = where it doesn't add: dout may be dx then; partial[2C] = this range's dgamma, then dbeta
    void (*norm_backward)(float* dx, bool adds, float* partial, const E* dout, const float* x, const float* mean,
                          const float* rstd, const float* gamma, int64_t row_begin, int64_t row_end, int64_t C);
    void (*add_elements)(float* sums, const E* x, int64_t count);  // sums += x

    // M outputs a row
    void (*activation_forward)(Activation f, E* out, const E* hidden, int64_t row_begin, int64_t row_end, int64_t M);
    void (*activation_backward)(Activation f, E* hidden, E* dout, int64_t row_begin, int64_t row_end, int64_t M);

    // One (sequence, head) each; scratch as asked for T and head_dim.
    size_t (*attention_scratch_bytes)(int64_t T, int64_t head_dim);
    void (*attention_forward)(E* out, float* log_sums, const E* qkv, int64_t T, int64_t C, int64_t NH, int64_t sequence,
                              int64_t head, void* scratch);
    void (*attention_backward)(E* dqkv, const E* dout, const E* qkv, const E* out, const float* log_sums, int64_t T,
                               int64_t C, int64_t NH, int64_t sequence, int64_t head, void* scratch);
    // One query of one head against keys and values [length, head_dim]; scores has room for length.
    void (*cached_attention)(E* out, const E* keys, const E* values, const E* query, int64_t length, int64_t head_dim,
                             float* scores);

    // losses of rows of logits[V]; where scale is not 0 the gradient of scale * loss is written over the logits, as E from
    // the row's first byte on
    void (*loss_rows)(float* losses, float* logits, const int32_t* targets, float scale, int64_t row_begin,
                      int64_t row_end, int64_t V);

    double (*sum)(const float* x, int64_t count);
    double (*sum_of_squares)(const float* x, int64_t count);
    void (*adamw)(float* parameters, float* gradients, float* m, float* v, int64_t count, const AdamWStep& step);

    // Limits of the machine, to measure speed against: rounds of multiply-adds that only need registers, and a plain read.
    double (*peak_products)(int64_t rounds);  // returns the operations done, 2 for a multiply-add
    float (*read)(const float* x, int64_t count);
};

// Both precisions of one instruction set.
struct KernelSet {
    const Kernels<float>* fp32;
    const Kernels<Bf16>* bf16;
};

extern const KernelSet kernels_generic;
#if defined(MG_HAVE_AVX2)
extern const KernelSet kernels_avx2;
#endif
#if defined(MG_HAVE_AVX512)
extern const KernelSet kernels_avx512;
#endif
#if defined(MG_HAVE_AVX512BF16)
extern const KernelSet kernels_avx512bf16;
#endif

}  // namespace mg::cpu
