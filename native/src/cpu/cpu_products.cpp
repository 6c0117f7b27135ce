// The CPU backend's products: linear layers, head and loss.  B is packed by all threads together, a piece that fits the caches'
// last level at a time; then the threads share out the rows of A.
#include <algorithm>

#include "cpu/cpu_backend.h"
#include "cpu/sizes.h"
#include "cpu/threads.h"

namespace mg::cpu {
namespace {

constexpr int64_t kMostPackedWords = int64_t{1} << 21;   // of B packed at once: 8 MiB
constexpr int64_t kHeadChunkNumbers = int64_t{1} << 21;  // logits held at once: 8 MiB

int64_t head_chunk_rows(int64_t N, int64_t V) {
    return std::min(N, std::max<int64_t>(32, std::min<int64_t>(512, kHeadChunkNumbers / V)));
}

// Columns of B that are packed at once.
template <typename E>
int64_t packed_columns(const Kernels<E>& kernels, int64_t columns, int64_t depth) {
    const int64_t strips = std::max<int64_t>(1, kMostPackedWords / kernels.strip_words(depth));
    return std::min(ceil_div(columns, kernels.column_tile), strips) * kernels.column_tile;
}

template <typename E>
size_t packed_bytes(const Kernels<E>& kernels, int64_t columns, int64_t depth) {
    return floats_bytes(packed_columns(kernels, columns, depth) / kernels.column_tile * kernels.strip_words(depth));
}

// Rows of a task: of the sizes that suit the caches, the one with which the last thread ends first.
int64_t task_rows(int64_t M, int64_t threads, int64_t tile, int64_t block) {
    int64_t best = block, least = INT64_MAX;
    for (int64_t rows = block; rows >= block / 2; rows -= tile) {
        const int64_t end = ceil_div(ceil_div(M, rows), threads) * rows;
        if (end < least) {
            least = end;
            best = rows;
        }
    }
    return best;
}

// A product of x[N, columns] (rows of stride row_stride) that writes where the caller says.
template <typename E>
Product<E> product_of(const E* x, int64_t row_stride, int64_t N, int64_t outputs, int64_t inputs, Epilogue epilogue) {
    Product<E> p{};
    p.M = N;
    p.N = outputs;
    p.K = inputs;
    p.a = x;
    p.a_row = row_stride;
    p.a_depth = 1;
    p.epilogue = epilogue;
    return p;
}

}  // namespace

template <typename E>
size_t CpuBackend<E>::scratch_bytes(const WorkShape& s) const {
    const bool decodes = s.purpose == Purpose::decoding;
    const int64_t chunk = head_chunk_rows(s.N, s.V);
    size_t shared = decodes ? 0 : floats_bytes(chunk * s.V), packed = 0;
    size_t thread = decodes ? floats_bytes(s.T) : kernels_.attention_scratch_bytes(s.T, s.C / s.NH);
    if (const int64_t prompt = s.N / s.sequences; decodes && prompt >= kPromptRows) {
        shared = floats_bytes(prompt * s.NH);
        thread = std::max(thread, kernels_.attention_scratch_bytes(prompt, s.C / s.NH));
    }
    const auto product = [&](int64_t depth, int64_t columns) {
        thread = std::max(thread, kernels_.product_scratch_bytes(depth));
        packed = std::max(packed, packed_bytes(kernels_, columns, depth));
    };
    const auto forward_product = [&](int64_t rows, int64_t depth, int64_t columns) {
        if (rows > kernels_.few_rows)
            product(depth, columns);
        else
            packed = std::max(packed, floats_bytes(rows * kernels_.few_rows_words(depth)));
    };
    forward_product(s.N, s.C, std::max(3 * s.C, s.hidden));
    forward_product(s.N, s.mlp, s.C);
    forward_product(decodes ? s.sequences : chunk, s.C, s.V);
    if (s.purpose == Purpose::training) {
        shared = std::max(shared, floats_bytes(ceil_div(s.N, sum_chunk_rows(s.N)) * 2 * s.C));
        // The gradients of what layers read, and of weights.
        for (const int64_t depth : {3 * s.C, s.hidden, s.V}) product(depth, s.C);
        product(s.C, std::max(s.C, s.mlp));
        product(s.N, std::max(s.C, s.mlp));
        product(chunk, s.C);
    }
    return shared + packed + whole_lines(thread) * static_cast<size_t>(thread_count());
}

// ---- C = A B in two phases

template <typename E>
template <typename Pack>
void CpuBackend<E>::multiply(Product<E> p, const Pack& pack) {
    const int64_t strip = kernels_.column_tile, at_once = packed_columns(kernels_, p.N, p.K);
    float* packed = static_cast<float*>(packed_.at_least(packed_bytes(kernels_, p.N, p.K)));
    const ThreadScratch scratch = thread_scratch(kernels_.product_scratch_bytes(p.K));
    const int64_t threads = scratch.threads;
    const int64_t rows = task_rows(p.M, threads, kernels_.row_tile, kernels_.row_block);
    const int64_t row_tasks = ceil_div(p.M, rows);
    p.packed_b = packed;
    for (int64_t first = 0; first < p.N; first += at_once) {
        const int64_t count = std::min(at_once, p.N - first), strips = ceil_div(count, strip);
        parallel_ranges(strips, std::max<int64_t>(1, ceil_div(strips, 4 * threads)), [&](int64_t begin, int64_t end) {
            pack(packed, first, begin * strip, std::min(count, end * strip));
        });
        p.packed_from = first;
        // Columns are split only where the rows don't keep every thread busy: each task packs its rows for itself.
        const int64_t column_tasks = std::min(strips, ceil_div(threads, row_tasks));
        const int64_t columns = ceil_div(strips, column_tasks) * strip;
        parallel_for(scratch.threads, row_tasks * ceil_div(count, columns), [&](int64_t task, int worker) {
            const int64_t row = task % row_tasks * rows, column = first + task / row_tasks * columns;
            kernels_.product(p, row, std::min(p.M, row + rows), column, std::min(first + count, column + columns),
                             scratch.of(worker));
        });
    }
}

template <typename E>
void CpuBackend<E>::multiply_weight(Product<E> p, const Weight& w, Side side) {
    if (side == Side::forward && p.M <= kernels_.few_rows) {
        multiply_few_rows(p, w);
        return;
    }
    const int64_t b_depth = side == Side::forward ? 1 : w.columns, b_column = side == Side::forward ? w.columns : 1;
    multiply(p, [&](float* packed, int64_t first, int64_t begin, int64_t end) {
        kernels_.pack_weight(packed, w.master + first * b_column, b_depth, b_column, p.K, begin, end);
    });
}

template <typename E>
void CpuBackend<E>::multiply_few_rows(const Product<E>& p, const Weight& w) {
    float* words = static_cast<float*>(packed_.at_least(floats_bytes(p.M * kernels_.few_rows_words(p.K))));
    kernels_.pack_few_rows(words, p);
    parallel_ranges(p.N, std::max<int64_t>(16, ceil_div(p.N, 4 * thread_count())), [&](int64_t begin, int64_t end) {
        if (w.prepared != nullptr)
            kernels_.few_rows_of_prepared(p, words, static_cast<const E*>(w.prepared), begin, end);
        else
            kernels_.few_rows_of_master(p, words, w.master, begin, end);
    });
}

template <typename E>
void CpuBackend<E>::weight_gradient(float* dweight, float* dbias, const E* dout, int64_t dout_row, const E* x,
                                    int64_t N, int64_t rows, int64_t columns) {
    Product<E> p = product_of(dout, 1, rows, columns, N, Epilogue::add);
    p.a_depth = dout_row;
    p.sums = dweight;
    p.other = dweight;
    p.row_sums = dbias;
    multiply(p, [&](float* packed, int64_t first, int64_t begin, int64_t end) {
        kernels_.pack_activations(packed, x + first, columns, 1, N, begin, end);
    });
}

// ---- linear layers

template <typename E>
void CpuBackend<E>::linear_forward(Element* out, const Element* x, const Weight& w, const Bias& bias, int64_t N) {
    Product<E> p = product_of(elements<E>(x), w.columns, N, w.rows, w.columns, Epilogue::store);
    p.bias = bias.master;
    p.out = elements<E>(out);
    multiply_weight(p, w, Side::forward);
}

template <typename E>
void CpuBackend<E>::linear_gelu_forward(Element* hidden, Element* out, const Element* x, const Weight& w,
                                        const Bias& bias, int64_t N) {
    Product<E> p = product_of(elements<E>(x), w.columns, N, w.rows, w.columns, Epilogue::gelu);
    p.bias = bias.master;
    p.out = elements<E>(out);
    p.second = elements<E>(hidden);
    multiply_weight(p, w, Side::forward);
}

template <typename E>
void CpuBackend<E>::linear_residual_forward(float* out, const float* residual, const Element* x, const Weight& w,
                                            const Bias& bias, int64_t N) {
    const Epilogue epilogue = residual != nullptr ? Epilogue::add : Epilogue::store_sums;
    Product<E> p = product_of(elements<E>(x), w.columns, N, w.rows, w.columns, epilogue);
    p.bias = bias.master;
    p.sums = out;
    p.other = residual;
    multiply_weight(p, w, Side::forward);
}

template <typename E>
void CpuBackend<E>::linear_backward_input(Element* dx, const Element* dout, const Weight& w, int64_t N) {
    Product<E> p = product_of(elements<E>(dout), w.rows, N, w.columns, w.rows, Epilogue::store);
    p.out = elements<E>(dx);
    multiply_weight(p, w, Side::backward);
}

template <typename E>
void CpuBackend<E>::linear_gelu_backward_input(Element* dhidden, Element* hidden, const Element* dout, const Weight& w,
                                               int64_t N) {
    Product<E> p = product_of(elements<E>(dout), w.rows, N, w.columns, w.rows, Epilogue::gelu_backward);
    p.out = elements<E>(dhidden);
    p.second = elements<E>(hidden);
    p.hidden = elements<E>(hidden);
    multiply_weight(p, w, Side::backward);
}

template <typename E>
void CpuBackend<E>::linear_backward_weight(float* dweight, float* dbias, const Element* dout, const Element* x,
                                           int64_t N, int64_t rows, int64_t columns) {
    weight_gradient(dweight, dbias, elements<E>(dout), rows, elements<E>(x), N, rows, columns);
}

// ---- head and loss, a chunk of rows at a time: logits in float32, their gradient in E where they were

template <typename E>
void CpuBackend<E>::head_losses(float* losses, E* dx, float* dwte, const E* x, const Weight& wte,
                                const int32_t* targets, float scale, int64_t N) {
    const int64_t C = wte.columns, V = wte.rows, chunk = head_chunk_rows(N, V);
    float* logits = shared_scratch(floats_bytes(chunk * V));
    const E* dlogits = reinterpret_cast<const E*>(logits);
    const int64_t dlogits_row = V * static_cast<int64_t>(sizeof(float) / sizeof(E));
    for (int64_t first = 0; first < N; first += chunk) {
        const int64_t rows = std::min(chunk, N - first);
        Product<E> forward = product_of(x + first * C, C, rows, V, C, Epilogue::store_sums);
        forward.sums = logits;
        multiply_weight(forward, wte, Side::forward);
        parallel_ranges(rows, 4, [&](int64_t begin, int64_t end) {
            kernels_.loss_rows(losses + first, logits, targets + first, scale, begin, end, V);
        });
        if (dx == nullptr) continue;
        Product<E> backward = product_of(dlogits, dlogits_row, rows, C, V, Epilogue::store);
        backward.out = dx + first * C;
        multiply_weight(backward, wte, Side::backward);
        weight_gradient(dwte, nullptr, dlogits, dlogits_row, x + first * C, rows, V, C);
    }
}

template <typename E>
void CpuBackend<E>::head_loss_forward(float* losses, const Element* x, const Weight& wte, const int32_t* targets,
                                      int64_t N) {
    head_losses(losses, nullptr, nullptr, elements<E>(x), wte, targets, 0.0f, N);
}

template <typename E>
void CpuBackend<E>::head_loss_backward(float* losses, Element* dx, float* dwte, const Element* x, const Weight& wte,
                                       const int32_t* targets, const float* scale, int64_t N) {
    head_losses(losses, elements<E>(dx), dwte, elements<E>(x), wte, targets, *scale, N);
}

template <typename E>
void CpuBackend<E>::head_forward(float* logits, const Element* x, const Weight& wte, int64_t N) {
    Product<E> p = product_of(elements<E>(x), wte.columns, N, wte.rows, wte.columns, Epilogue::store_sums);
    p.sums = logits;
    multiply_weight(p, wte, Side::forward);
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

}  // namespace mg::cpu
