// The table of functions that is compiled once per instruction set.  Each works on a range of rows, columns or tasks, so
// that the backend can share the work out; none allocates, throws or knows of threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mg::cpu {

// What becomes of an element `sum` of the product.
enum class Epilogue {
    store,          // c = sum + bias
    accumulate,     // c += sum
    bias_gelu,      // second = sum + bias; c = gelu(second)
    bias_residual,  // c = other + sum + bias
    gelu_backward,  // c = sum * gelu'(other); second = gelu(other); c may be other
};

// C[M, N] = A[M, K] B[K, N]: every product of the engine, forward, input gradient and weight gradient.
struct Product {
    const float* a;
    int64_t a_row, a_depth;  // strides of A(row, depth); one of them is 1
    const float* b;
    int64_t b_depth, b_column;  // strides of B(depth, column); one of them is 1
    float* c;
    int64_t c_row;  // stride of C, and of `other` and `second`
    int64_t M, N, K;
    Epilogue epilogue;
    const float* bias;   // [N]; null means 0
    const float* other;  // [M, N]
    float* second;       // [M, N]
};

struct AdamWStep {
    float keep;  // 1 - learning_rate * weight_decay
    float beta1, beta2;
    float step_size;        // learning_rate / (1 - beta1^step)
    float root_correction;  // 1 / sqrt(1 - beta2^step)
    float epsilon;
    float gradient_scale;  // of clipping
};

struct Kernels {
    const char* isa;
    int64_t row_tile, column_tile;  // granularity of the product's tasks
    int64_t column_block;           // most columns of one task
    size_t product_scratch_bytes;   // per thread

    // The part of a product in rows [row_begin, row_end) and columns [column_begin, column_end); begins are
    // multiples of the tiles, and at most column_block columns.
    void (*product)(const Product& product, int64_t row_begin, int64_t row_end, int64_t column_begin,
                    int64_t column_end, void* scratch);
    // The same for few rows: reads each weight once, without packing.  B(depth, column) must have b_depth = 1.
    int64_t few_rows;
    void (*product_few_rows)(const Product& product, int64_t column_begin, int64_t column_end);
    void (*column_sums)(float* out, const float* x, int64_t rows, int64_t columns);  // out = sum over the rows
    void (*add_rows)(float* out, const float* x, int64_t rows, int64_t row_stride, int64_t columns);  // out += each row

    void (*embedding_forward)(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                              const float* wpe, int64_t row_begin, int64_t row_end, int64_t T, int64_t C);
    void (*embedding_backward)(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N, int64_t T,
                               int64_t C, int64_t column_begin, int64_t column_end);

    void (*norm_forward)(float* out, float* mean, float* rstd, const float* x, const float* gamma, const float* beta,
                         int64_t row_begin, int64_t row_end, int64_t C);
    // dx += for the rows; partial[2C] = this range's dgamma, then dbeta
    void (*norm_backward)(float* dx, float* partial, const float* dout, const float* x, const float* mean,
                          const float* rstd, const float* gamma, int64_t row_begin, int64_t row_end, int64_t C);

    // One (sequence, head) each; scratch as asked for T and head_dim.
    size_t (*attention_scratch_bytes)(int64_t T, int64_t head_dim);
    void (*attention_forward)(float* out, float* log_sums, const float* qkv, int64_t T, int64_t C, int64_t NH,
                              int64_t sequence, int64_t head, void* scratch);
    void (*attention_backward)(float* dqkv, const float* dout, const float* qkv, const float* out,
                               const float* log_sums, int64_t T, int64_t C, int64_t NH, int64_t sequence, int64_t head,
                               void* scratch);
    // One query of one head against keys and values [length, head_dim]; scores has room for length.
    void (*cached_attention)(float* out, const float* keys, const float* values, const float* query, int64_t length,
                             int64_t head_dim, float* scores);

    // losses of rows of logits[V]; where scale is not 0 the logits become the gradient of scale * loss
    void (*loss_rows)(float* losses, float* logits, const int32_t* targets, float scale, int64_t row_begin,
                      int64_t row_end, int64_t V);

    double (*sum)(const float* x, int64_t count);
    double (*sum_of_squares)(const float* x, int64_t count);
    void (*adamw)(float* parameters, float* gradients, float* m, float* v, int64_t count, const AdamWStep& step);
};

extern const Kernels kernels_generic;
#if defined(MG_HAVE_AVX2)
extern const Kernels kernels_avx2;
#endif
#if defined(MG_HAVE_AVX512)
extern const Kernels kernels_avx512;
#endif

}  // namespace mg::cpu
