// The CUDA backend's products: linear layers, head and loss.  What a product is followed by is fused into it where cuBLASLt can;
// else kernels of our own come after it.
#include <algorithm>

#include "cuda/check.h"
#include "cuda/create.h"
#include "cuda/cuda_backend.h"
#include "error.h"

namespace mg::cuda {
namespace {

// Rows of logits start at multiples of 32 bytes in float32, and of 16 in what their gradients are kept as.
constexpr int64_t kVocabularyMultiple = 8;
// Rows that tensor cores take at once: chunks are whole numbers of them.
constexpr int64_t kRowMultiple = 128;

int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

int64_t logits_stride(int64_t V) { return round_up(V, kVocabularyMultiple); }

size_t floats_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

Matrix<const void*> as_stored(const void* at, int64_t stride) { return {at, stride, false}; }
Matrix<const void*> transposed(const void* at, int64_t stride) { return {at, stride, true}; }

}  // namespace

template <typename E>
size_t CudaBackend<E>::scratch_bytes(const WorkShape& s) const {
    constexpr size_t kCallersBuffers = 8;  // of a model, each rounded up to whole units
    size_t total = kCallersBuffers * Scratch::kUnit;
    total += Gemm::workspace_bytes(device_.major()) + Scratch::rounded(fixed_bytes());
    if (s.purpose == Purpose::decoding) {
        // A context is read at once, and grows token by token: few rows are split into more parts.
        return total + Scratch::rounded(std::max(cached_attention_scratch_bytes(s.N, s.T, s.C, s.NH),
                                                 cached_attention_scratch_bytes(s.sequences, s.T, s.C, s.NH)));
    }
    total += Scratch::rounded(floats_bytes(head_rows(s.N, s.V) * logits_stride(s.V)));
    if (s.purpose == Purpose::forward) return total;
    if (s.biased > 0) {
        total += Scratch::rounded(floats_bytes(s.biased));
        total += Scratch::rounded(column_sums_scratch_bytes(s.N, s.biased));
    }
    if (s.has_norms) total += Scratch::rounded(norm_backward_scratch_bytes(s.N, s.C));
    total += Scratch::rounded(attention_backward_scratch_bytes(s.N / s.T, s.T, s.NH));
    return total;
}

// ---- operands

// The weight as Elements.  rows > weight.rows: those after its last can be read, too, and are numbers: in a model's flat copy of
// all parameters others follow.
template <typename E>
const E* CudaBackend<E>::weight_numbers(const Weight& w, int64_t rows) {
    if constexpr (kIsFloat) {
        return w.master;
    } else {
        if (w.prepared != nullptr) return static_cast<const E*>(w.prepared);
        const int64_t count = w.rows * w.columns;
        E* copy = static_cast<E*>(scratch_.at_least(Use::weight, static_cast<size_t>(rows * w.columns) * sizeof(E)));
        convert<E>(device_.stream(), copy, w.master, count);
        check_launch("convert");
        device_.zero(copy + count, static_cast<size_t>((rows - w.rows) * w.columns) * sizeof(E));
        return copy;
    }
}

// The bias of a product whose output is Elements: cuBLASLt takes it in the output's type, so that bf16 rounds it first.  Null where
// there is none.
template <typename E>
const void* CudaBackend<E>::bias_numbers(const Bias& bias, int64_t count) {
    if constexpr (kIsFloat) {
        return bias.master;
    } else {
        if (bias.master == nullptr || bias.prepared != nullptr) return bias.prepared;
        E* copy = static_cast<E*>(scratch_.at_least(Use::weight_bias, static_cast<size_t>(count) * sizeof(E)));
        convert<E>(device_.stream(), copy, bias.master, count);
        check_launch("convert");
        return copy;
    }
}

// x weight^T
template <typename E>
MatrixProduct CudaBackend<E>::forward_product(void* out, NumberType out_type, const Element* x, const Weight& w,
                                              int64_t N) {
    MatrixProduct p{};
    p.rows = N;
    p.columns = w.rows;
    p.depth = w.columns;
    p.in = kType;
    p.out_type = out_type;
    p.left = as_stored(x, w.columns);
    p.right = transposed(weight_numbers(w, w.rows), w.columns);
    p.out = out;
    p.out_stride = w.rows;
    return p;
}

// dout weight
template <typename E>
MatrixProduct CudaBackend<E>::input_product(void* dx, const Element* dout, const Weight& w, int64_t N) {
    MatrixProduct p{};
    p.rows = N;
    p.columns = w.columns;
    p.depth = w.rows;
    p.in = p.out_type = kType;
    p.left = as_stored(dout, w.rows);
    p.right = as_stored(weight_numbers(w, w.rows), w.columns);
    p.out = dx;
    p.out_stride = w.columns;
    return p;
}

template <typename E>
void CudaBackend<E>::multiply(const MatrixProduct& p) {
    if (gemm_.multiply(p)) return;
    throw Error(MG_ERROR_DEVICE,
                format("cuBLASLt has no algorithm for a product of [%lld, %lld] and [%lld, %lld] in %s",
                       static_cast<long long>(p.rows), static_cast<long long>(p.depth), static_cast<long long>(p.depth),
                       static_cast<long long>(p.columns), precision()));
}

template <typename E>
bool CudaBackend<E>::multiply_fused(const MatrixProduct& p) {
    return fused_epilogues() && gemm_.multiply(p);
}

// ---- linear layers

template <typename E>
void CudaBackend<E>::linear_forward(Element* out, const Element* x, const Weight& w, const Bias& bias, int64_t N) {
    MatrixProduct p = forward_product(out, kType, x, w, N);
    if (bias.master == nullptr) {
        multiply(p);
        return;
    }
    p.epilogue = Epilogue::bias;
    p.bias = bias_numbers(bias, w.rows);
    if (multiply_fused(p)) return;
    // The same roundings as above: of the bias, and of the sum.
    device_.zero(out, static_cast<size_t>(N * w.rows) * sizeof(E));
    add_bias<E>(device_.stream(), numbers(out), bias.master, N, w.rows);
    check_launch("add_bias");
    p.epilogue = Epilogue::none;
    p.added = out;
    multiply(p);
}

template <typename E>
void CudaBackend<E>::linear_gelu_forward(Element* hidden, Element* out, const Element* x, const Weight& w,
                                         const Bias& bias, int64_t N) {
    MatrixProduct p = forward_product(out, kType, x, w, N);
    p.epilogue = Epilogue::gelu;
    p.bias = bias_numbers(bias, w.rows);
    p.hidden = hidden;
    if (multiply_fused(p)) return;
    linear_forward(hidden, x, w, bias, N);
    activation_forward(Activation::gelu, out, hidden, N, w.rows);
}

template <typename E>
void CudaBackend<E>::linear_residual_forward(float* out, const float* residual, const Element* x, const Weight& w,
                                             const Bias& bias, int64_t N) {
    MatrixProduct p = forward_product(out, NumberType::fp32, x, w, N);
    p.added = residual;
    if (bias.master == nullptr) {
        multiply(p);
        return;
    }
    p.epilogue = Epilogue::bias;
    p.bias = bias.master;
    if (multiply_fused(p)) return;
    p.epilogue = Epilogue::none;
    multiply(p);
    add_bias<float>(device_.stream(), out, bias.master, N, w.rows);
    check_launch("add_bias");
}

template <typename E>
void CudaBackend<E>::linear_backward_input(Element* dx, const Element* dout, const Weight& w, int64_t N) {
    multiply(input_product(dx, dout, w, N));
}

template <typename E>
void CudaBackend<E>::linear_gelu_backward_input(Element* dhidden, Element* hidden, const Element* dout, const Weight& w,
                                                int64_t N) {
    MatrixProduct p = input_product(dhidden, dout, w, N);
    p.epilogue = Epilogue::gelu_backward;
    p.hidden = hidden;
    if (multiply_fused(p)) {
        activation_forward(Activation::gelu, hidden, hidden, N, w.columns);
        return;
    }
    p.epilogue = Epilogue::none;
    multiply(p);
    cuda::activation_backward<E>(device_.stream(), Activation::gelu, numbers(dhidden), numbers(hidden), numbers(hidden),
                                 numbers(dhidden), N, w.columns);
    check_launch("activation_backward");
}

template <typename E>
void CudaBackend<E>::linear_backward_weight(float* dweight, float* dbias, const Element* dout, const Element* x,
                                            int64_t N, int64_t rows, int64_t columns) {
    MatrixProduct p{};
    p.rows = rows;
    p.columns = columns;
    p.depth = N;
    p.in = kType;
    p.out_type = NumberType::fp32;
    p.left = transposed(dout, rows);
    p.right = as_stored(x, columns);
    p.out = dweight;
    p.out_stride = columns;
    p.added = dweight;
    if (dbias == nullptr) {
        multiply(p);
        return;
    }
    // Both ways' memory is taken, whichever is gone: a plan doesn't know.
    float* sums = static_cast<float*>(scratch_.at_least(Use::bias, floats_bytes(rows)));
    void* partial = scratch_.at_least(Use::columns, column_sums_scratch_bytes(N, rows));
    p.epilogue = Epilogue::bias_gradient;
    p.bias_gradient = sums;
    if (multiply_fused(p)) {
        add<float>(device_.stream(), dbias, nullptr, sums, rows);
        check_launch("add");
        return;
    }
    p.epilogue = Epilogue::none;
    multiply(p);
    column_sums<E>(device_.stream(), dbias, numbers(dout), partial, N, rows);
    check_launch("column_sums");
}

// ---- head and loss, a chunk of rows at a time: logits in float32, their gradient as Elements where they were

// Logits take a 32nd of the GPU's memory at most; chunks are about equal, of whole groups of rows where there are many.
template <typename E>
int64_t CudaBackend<E>::head_rows(int64_t N, int64_t V) const {
    constexpr int64_t kMostNumbers = int64_t{1} << 31;  // of one matrix: their indices fit 32 bits
    const int64_t memory = static_cast<int64_t>(device_.memory_bytes() / 32 / sizeof(float));
    int64_t most = std::max<int64_t>(1, std::min(memory, kMostNumbers) / logits_stride(V));
    if (most > kRowMultiple) most = most / kRowMultiple * kRowMultiple;
    if (N <= most) return N;
    const int64_t chunks = (N + most - 1) / most;
    return std::min(most, round_up((N + chunks - 1) / chunks, kRowMultiple));
}

template <typename E>
void CudaBackend<E>::head_losses(float* losses, E* dx, float* dwte, const E* x, const Weight& wte,
                                 const int32_t* targets, const float* scale, int64_t N) {
    const int64_t C = wte.columns, V = wte.rows, chunk = head_rows(N, V), stride = logits_stride(V);
    // Tensor cores want whole groups of columns: those after the last have logits that nothing reads, and gradients of 0.
    const int64_t columns = kIsFloat ? V : stride;
    float* logits = static_cast<float*>(scratch_.at_least(Use::head, floats_bytes(chunk * stride)));
    const E* weights = weight_numbers(wte, columns);
    constexpr int64_t kPerFloat = static_cast<int64_t>(sizeof(float) / sizeof(E));
    for (int64_t first = 0; first < N; first += chunk) {
        MatrixProduct forward{};
        forward.rows = std::min(chunk, N - first);
        forward.columns = columns;
        forward.depth = C;
        forward.in = kType;
        forward.out_type = NumberType::fp32;
        forward.left = as_stored(x + first * C, C);
        forward.right = transposed(weights, C);
        forward.out = logits;
        forward.out_stride = stride;
        multiply(forward);
        loss_rows<E>(device_.stream(), losses + first, logits, targets + first, dx == nullptr ? nullptr : scale,
                     forward.rows, V, stride);
        check_launch("loss_rows");
        if (dx == nullptr) continue;

        MatrixProduct input{};
        input.rows = forward.rows;
        input.columns = C;
        input.depth = columns;
        input.in = input.out_type = kType;
        input.left = as_stored(logits, stride * kPerFloat);
        input.right = as_stored(weights, C);
        input.out = dx + first * C;
        input.out_stride = C;
        multiply(input);

        MatrixProduct weight{};
        weight.rows = V;
        weight.columns = C;
        weight.depth = forward.rows;
        weight.in = kType;
        weight.out_type = NumberType::fp32;
        weight.left = transposed(logits, stride * kPerFloat);
        weight.right = as_stored(x + first * C, C);
        weight.out = dwte;
        weight.out_stride = C;
        weight.added = dwte;
        multiply(weight);
    }
}

template <typename E>
void CudaBackend<E>::head_loss_forward(float* losses, const Element* x, const Weight& wte, const int32_t* targets,
                                       int64_t N) {
    head_losses(losses, nullptr, nullptr, numbers(x), wte, targets, nullptr, N);
}

template <typename E>
void CudaBackend<E>::head_loss_backward(float* losses, Element* dx, float* dwte, const Element* x, const Weight& wte,
                                        const int32_t* targets, const float* scale, int64_t N) {
    head_losses(losses, numbers(dx), dwte, numbers(x), wte, targets, scale, N);
}

template <typename E>
void CudaBackend<E>::head_forward(float* logits, const Element* x, const Weight& wte, int64_t N) {
    multiply(forward_product(logits, NumberType::fp32, x, wte, N));
}

template class CudaBackend<float>;
template class CudaBackend<Bf16>;

}  // namespace mg::cuda
