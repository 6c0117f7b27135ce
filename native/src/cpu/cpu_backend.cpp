#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/isa.h"
#include "cpu/memory.h"
#include "cpu/threads.h"
#include "error.h"

namespace mg::cpu {
namespace {

// Task sizes.  They never depend on the number of threads where a task ends in a partial sum.
constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kColumnsPerTask = 32;
constexpr int64_t kNumbersPerTask = int64_t{1} << 15;
constexpr int64_t kLargestSumChunks = 64;
constexpr int64_t kHeadChunkNumbers = int64_t{1} << 21;  // logits held at once: 8 MiB

const float* floats(const Element* x) { return reinterpret_cast<const float*>(x); }
float* floats(Element* x) { return reinterpret_cast<float*>(x); }

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of a chunk whose partial sums are added up in order: at most kLargestSumChunks chunks of at least 32 rows.
int64_t sum_chunk_rows(int64_t N) { return std::max<int64_t>(32, ceil_div(N, kLargestSumChunks)); }

int64_t head_chunk_rows(int64_t N, int64_t V) {
    return std::min(N, std::max<int64_t>(32, std::min<int64_t>(512, kHeadChunkNumbers / V)));
}

size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t floats_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

}  // namespace

CpuBackend::CpuBackend() : kernels_(kernels()) {}

// ---- memory

void* CpuBackend::allocate(size_t bytes) { return allocate_memory(bytes); }

void CpuBackend::release(void* memory) { release_memory(memory); }

void CpuBackend::zero(void* memory, size_t bytes) {
    parallel_ranges(static_cast<int64_t>(bytes), int64_t{1} << 20, [&](int64_t begin, int64_t end) {
        std::memset(static_cast<char*>(memory) + begin, 0, static_cast<size_t>(end - begin));
    });
}

void CpuBackend::copy_in(void* device, const void* host, size_t bytes) {
    if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuBackend::copy_out(void* host, const void* device, size_t bytes) {
    if (bytes > 0) std::memcpy(host, device, bytes);
}

CpuBackend::ThreadScratch CpuBackend::thread_scratch(size_t bytes) {
    // The number of threads is read once an op: another thread may set it at any time.
    const int threads = thread_count();
    const size_t stride = whole_lines(bytes);
    return {static_cast<char*>(thread_scratch_.at_least(stride * static_cast<size_t>(threads))), stride, threads};
}

float* CpuBackend::shared_scratch(size_t bytes) { return static_cast<float*>(shared_scratch_.at_least(bytes)); }

size_t CpuBackend::scratch_bytes(const StepShape& s) const {
    const int64_t rows = head_chunk_rows(s.N, s.V);
    const int64_t chunks = ceil_div(s.N, sum_chunk_rows(s.N));
    const size_t shared = std::max(floats_bytes(rows * s.V), floats_bytes(chunks * std::max(2 * s.C, s.widest)));
    const size_t thread = std::max(kernels_.product_scratch_bytes, kernels_.attention_scratch_bytes(s.T, s.C / s.NH));
    return shared + whole_lines(thread) * static_cast<size_t>(thread_count());
}

// ---- products

// Splits C into tasks: enough of them to keep the threads level, none so small that packing B is felt.
void CpuBackend::multiply(const Product& p) {
    const int64_t threads = thread_count();
    if (p.a_depth == 1 && p.b_depth == 1 && p.M <= kernels_.few_rows) {
        parallel_ranges(p.N, std::max<int64_t>(16, ceil_div(p.N, 4 * threads)),
                        [&](int64_t begin, int64_t end) { kernels_.product_few_rows(p, begin, end); });
        return;
    }
    const int64_t wanted = threads == 1 ? 1 : 3 * threads;
    const int64_t smallest_rows = 16 * kernels_.row_tile, smallest_columns = 2 * kernels_.column_tile;
    int64_t columns = std::min(kernels_.column_block, ceil_div(p.N, kernels_.column_tile) * kernels_.column_tile);
    int64_t rows = ceil_div(p.M, kernels_.row_tile) * kernels_.row_tile;
    const auto tasks = [&] { return ceil_div(p.M, rows) * ceil_div(p.N, columns); };
    while (tasks() < wanted && rows > 4 * smallest_rows)
        rows = ceil_div(rows / 2, kernels_.row_tile) * kernels_.row_tile;
    while (tasks() < wanted && columns > smallest_columns)
        columns = std::max(smallest_columns, ceil_div(columns / 2, kernels_.column_tile) * kernels_.column_tile);
    while (tasks() < wanted && rows > smallest_rows) rows = ceil_div(rows / 2, kernels_.row_tile) * kernels_.row_tile;
    const int64_t column_tasks = ceil_div(p.N, columns);
    const ThreadScratch scratch = thread_scratch(kernels_.product_scratch_bytes);
    parallel_for(scratch.threads, tasks(), [&](int64_t task, int worker) {
        const int64_t row = task / column_tasks * rows, column = task % column_tasks * columns;
        kernels_.product(p, row, std::min(p.M, row + rows), column, std::min(p.N, column + columns),
                         scratch.of(worker));
    });
}

namespace {

// out[N, rows] = x[N, columns] weight^T
Product forward_product(float* out, const float* x, const Weight& w, const float* bias, int64_t N, Epilogue epilogue) {
    return {x, w.columns, 1,         w.master, 1,    w.columns, out,    w.rows,
            N, w.rows,    w.columns, epilogue, bias, nullptr,   nullptr};
}

// dx[N, columns] = dout[N, rows] weight
Product input_product(float* dx, const float* dout, const Weight& w, int64_t N, Epilogue epilogue) {
    return {dout, w.rows,    1,      w.master, w.columns, 1,       dx,     w.columns,
            N,    w.columns, w.rows, epilogue, nullptr,   nullptr, nullptr};
}

// dweight[rows, columns] += dout^T x
Product weight_product(float* dweight, const float* dout, const float* x, int64_t N, int64_t rows, int64_t columns) {
    return {dout,    1,       rows,   x, columns, 1, dweight, columns, rows, columns, N, Epilogue::accumulate,
            nullptr, nullptr, nullptr};
}

}  // namespace

void CpuBackend::linear_forward(Element* out, const Element* x, const Weight& weight, const float* bias, int64_t N) {
    multiply(forward_product(floats(out), floats(x), weight, bias, N, Epilogue::store));
}

void CpuBackend::linear_gelu_forward(Element* hidden, Element* out, const Element* x, const Weight& weight,
                                     const float* bias, int64_t N) {
    Product p = forward_product(floats(out), floats(x), weight, bias, N, Epilogue::bias_gelu);
    p.second = floats(hidden);
    multiply(p);
}

void CpuBackend::linear_residual_forward(float* out, const float* residual, const Element* x, const Weight& weight,
                                         const float* bias, int64_t N) {
    Product p = forward_product(out, floats(x), weight, bias, N, Epilogue::bias_residual);
    p.other = residual;
    multiply(p);
}

void CpuBackend::linear_backward_input(Element* dx, const Element* dout, const Weight& weight, int64_t N) {
    multiply(input_product(floats(dx), floats(dout), weight, N, Epilogue::store));
}

void CpuBackend::linear_gelu_backward_input(Element* dhidden, Element* out, const Element* dout, const Element* hidden,
                                            const Weight& weight, int64_t N) {
    Product p = input_product(floats(dhidden), floats(dout), weight, N, Epilogue::gelu_backward);
    p.other = floats(hidden);
    p.second = floats(out);
    multiply(p);
}

void CpuBackend::linear_backward_weight(float* dweight, float* dbias, const Element* dout, const Element* x, int64_t N,
                                        int64_t rows, int64_t columns) {
    multiply(weight_product(dweight, floats(dout), floats(x), N, rows, columns));
    if (dbias == nullptr) return;
    const int64_t chunk = sum_chunk_rows(N), chunks = ceil_div(N, chunk);
    float* partial = shared_scratch(floats_bytes(chunks * rows));
    parallel_ranges(N, chunk, [&](int64_t begin, int64_t end) {
        kernels_.column_sums(partial + begin / chunk * rows, floats(dout) + begin * rows, end - begin, rows);
    });
    kernels_.add_rows(dbias, partial, chunks, rows, rows);
}

// ---- embedding and norm

void CpuBackend::embedding_forward(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                                   const float* wpe, int64_t N, int64_t T, int64_t C) {
    parallel_ranges(N, kRowsPerTask, [&](int64_t begin, int64_t end) {
        kernels_.embedding_forward(out, tokens, positions, wte, wpe, begin, end, T, C);
    });
}

void CpuBackend::embedding_backward(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N,
                                    int64_t T, int64_t C) {
    parallel_ranges(C, kColumnsPerTask, [&](int64_t begin, int64_t end) {
        kernels_.embedding_backward(dwte, dwpe, dout, tokens, N, T, C, begin, end);
    });
}

void CpuBackend::norm_forward(Element* out, float* mean, float* rstd, const float* x, const float* gamma,
                              const float* beta, int64_t N, int64_t C) {
    parallel_ranges(N, kRowsPerTask, [&](int64_t begin, int64_t end) {
        kernels_.norm_forward(floats(out), mean, rstd, x, gamma, beta, begin, end, C);
    });
}

void CpuBackend::norm_backward(float* dx, float* dgamma, float* dbeta, const Element* dout, const float* x,
                               const float* mean, const float* rstd, const float* gamma, int64_t N, int64_t C) {
    const int64_t chunk = sum_chunk_rows(N), chunks = ceil_div(N, chunk);
    float* partial = shared_scratch(floats_bytes(chunks * 2 * C));
    parallel_ranges(N, chunk, [&](int64_t begin, int64_t end) {
        kernels_.norm_backward(dx, partial + begin / chunk * 2 * C, floats(dout), x, mean, rstd, gamma, begin, end, C);
    });
    kernels_.add_rows(dgamma, partial, chunks, 2 * C, C);
    kernels_.add_rows(dbeta, partial + C, chunks, 2 * C, C);
}

// ---- attention: a task is one head of one sequence

size_t CpuBackend::attention_saved_bytes(int64_t B, int64_t T, int64_t NH) const { return floats_bytes(B * NH * T); }

void CpuBackend::attention_forward(Element* out, void* saved, const Element* qkv, int64_t B, int64_t T, int64_t C,
                                   int64_t NH) {
    const ThreadScratch scratch = thread_scratch(kernels_.attention_scratch_bytes(T, C / NH));
    parallel_for(scratch.threads, B * NH, [&](int64_t task, int worker) {
        kernels_.attention_forward(floats(out), static_cast<float*>(saved), floats(qkv), T, C, NH, task / NH, task % NH,
                                   scratch.of(worker));
    });
}

void CpuBackend::attention_backward(Element* dqkv, const Element* dout, const Element* qkv, const Element* out,
                                    const void* saved, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const ThreadScratch scratch = thread_scratch(kernels_.attention_scratch_bytes(T, C / NH));
    parallel_for(scratch.threads, B * NH, [&](int64_t task, int worker) {
        kernels_.attention_backward(floats(dqkv), floats(dout), floats(qkv), floats(out),
                                    static_cast<const float*>(saved), T, C, NH, task / NH, task % NH,
                                    scratch.of(worker));
    });
}

// ---- head and loss

void CpuBackend::head_losses(float* losses, float* dx, float* dwte, const float* x, const Weight& wte,
                             const int32_t* targets, float scale, int64_t N) {
    const int64_t C = wte.columns, V = wte.rows, chunk = head_chunk_rows(N, V);
    float* logits = shared_scratch(floats_bytes(chunk * V));
    for (int64_t first = 0; first < N; first += chunk) {
        const int64_t rows = std::min(chunk, N - first);
        multiply(forward_product(logits, x + first * C, wte, nullptr, rows, Epilogue::store));
        parallel_ranges(rows, 4, [&](int64_t begin, int64_t end) {
            kernels_.loss_rows(losses + first, logits, targets + first, scale, begin, end, V);
        });
        if (dx == nullptr) continue;
        multiply(input_product(dx + first * C, logits, wte, rows, Epilogue::store));
        multiply(weight_product(dwte, logits, x + first * C, rows, V, C));
    }
}

void CpuBackend::head_loss_forward(float* losses, const Element* x, const Weight& wte, const int32_t* targets,
                                   int64_t N) {
    head_losses(losses, nullptr, nullptr, floats(x), wte, targets, 0.0f, N);
}

void CpuBackend::head_loss_backward(float* losses, Element* dx, float* dwte, const Element* x, const Weight& wte,
                                    const int32_t* targets, float scale, int64_t N) {
    head_losses(losses, floats(dx), dwte, floats(x), wte, targets, scale, N);
}

void CpuBackend::head_forward(float* logits, const Element* x, const Weight& wte, int64_t N) {
    multiply(forward_product(logits, floats(x), wte, nullptr, N, Epilogue::store));
}

// ---- reductions and the optimizer

void CpuBackend::sum(float* result, const float* x, int64_t count) {
    double total = 0;
    for (int64_t begin = 0; begin < count; begin += kNumbersPerTask)
        total += kernels_.sum(x + begin, std::min(kNumbersPerTask, count - begin));
    *result = static_cast<float>(total);
}

void CpuBackend::global_norm(float* result, const float* x, int64_t count) {
    std::vector<double> partial(static_cast<size_t>(ceil_div(count, kNumbersPerTask)));
    parallel_ranges(count, kNumbersPerTask, [&](int64_t begin, int64_t end) {
        partial[static_cast<size_t>(begin / kNumbersPerTask)] = kernels_.sum_of_squares(x + begin, end - begin);
    });
    double total = 0;
    for (const double part : partial) total += part;
    *result = static_cast<float>(std::sqrt(total));
}

void CpuBackend::adamw(float* parameters, float* gradients, float* m, float* v, const float* norm,
                       const std::vector<ParameterRange>& ranges, const AdamW& options) {
    if (!std::isfinite(*norm)) {
        for (const ParameterRange& range : ranges) zero(gradients + range.begin, floats_bytes(range.end - range.begin));
        return;
    }
    const double correction1 = 1.0 - std::pow(static_cast<double>(options.beta1), static_cast<double>(options.step));
    const double correction2 = 1.0 - std::pow(static_cast<double>(options.beta2), static_cast<double>(options.step));
    AdamWStep step;
    step.beta1 = options.beta1;
    step.beta2 = options.beta2;
    step.step_size = static_cast<float>(static_cast<double>(options.learning_rate) / correction1);
    step.root_correction = static_cast<float>(1.0 / std::sqrt(correction2));
    step.epsilon = options.epsilon;
    step.gradient_scale = options.max_norm > 0 && *norm > options.max_norm ? options.max_norm / *norm : 1.0f;
    const float decayed = 1.0f - options.learning_rate * options.weight_decay;

    struct Piece {
        int64_t begin, end;
        bool decays;
    };
    std::vector<Piece> pieces;
    for (const ParameterRange& range : ranges)
        for (int64_t begin = range.begin; begin < range.end; begin += kNumbersPerTask)
            pieces.push_back({begin, std::min(range.end, begin + kNumbersPerTask), range.decays});
    parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t task) {
        const Piece& piece = pieces[static_cast<size_t>(task)];
        AdamWStep own = step;
        own.keep = piece.decays ? decayed : 1.0f;
        const int64_t at = piece.begin;
        kernels_.adamw(parameters + at, gradients + at, m + at, v + at, piece.end - at, own);
    });
}

// ---- decode

size_t CpuBackend::cache_bytes(int64_t sequences, int64_t capacity, int64_t C) const {
    return floats_bytes(2 * sequences * capacity * C);
}

void CpuBackend::cached_attention_forward(Element* out, void* cache, const Element* qkv, const int32_t* sequences,
                                          const int32_t* positions, int64_t rows, int64_t capacity, int64_t C,
                                          int64_t NH) {
    const int64_t head_dim = C / NH;
    // Of each sequence: keys [NH, capacity, head_dim], then the values.
    float* memory = static_cast<float*>(cache);
    const int64_t per_sequence = 2 * capacity * C, per_head = capacity * head_dim;
    parallel_ranges(rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            float* keys = memory + sequences[row] * per_sequence + positions[row] * head_dim;
            const float* k = floats(qkv) + row * 3 * C + C;
            for (int64_t head = 0; head < NH; ++head) {
                std::memcpy(keys + head * per_head, k + head * head_dim, floats_bytes(head_dim));
                std::memcpy(keys + (NH + head) * per_head, k + C + head * head_dim, floats_bytes(head_dim));
            }
        }
    });
    const ThreadScratch scratch = thread_scratch(floats_bytes(capacity));
    parallel_for(scratch.threads, rows * NH, [&](int64_t task, int worker) {
        const int64_t row = task / NH, head = task % NH;
        const float* keys = memory + sequences[row] * per_sequence + head * per_head;
        kernels_.cached_attention(floats(out) + row * C + head * head_dim, keys, keys + NH * per_head,
                                  floats(qkv) + row * 3 * C + head * head_dim, positions[row] + 1, head_dim,
                                  static_cast<float*>(scratch.of(worker)));
    });
}

}  // namespace mg::cpu
