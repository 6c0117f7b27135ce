#include "cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/arithmetic.h"
#include "cpu/isa.h"
#include "cpu/memory.h"
#include "cpu/sizes.h"
#include "cpu/threads.h"
#include "error.h"

namespace mg::cpu {

template <typename E>
CpuBackend<E>::CpuBackend() : kernels_(kernels<E>()) {}

// ---- memory

template <typename E>
void* CpuBackend<E>::allocate(size_t bytes) {
    return allocate_memory(bytes);
}

template <typename E>
void CpuBackend<E>::release(void* memory) {
    release_memory(memory);
}

template <typename E>
void CpuBackend<E>::zero(void* memory, size_t bytes) {
    parallel_ranges(static_cast<int64_t>(bytes), int64_t{1} << 20, [&](int64_t begin, int64_t end) {
        std::memset(static_cast<char*>(memory) + begin, 0, static_cast<size_t>(end - begin));
    });
}

template <typename E>
void CpuBackend<E>::copy_in(void* device, const void* host, size_t bytes) {
    if (bytes > 0) std::memcpy(device, host, bytes);
}

template <typename E>
void CpuBackend<E>::copy_out(void* host, const void* device, size_t bytes) {
    if (bytes > 0) std::memcpy(host, device, bytes);
}

template <typename E>
typename CpuBackend<E>::ThreadScratch CpuBackend<E>::thread_scratch(size_t bytes) {
    // The number of threads is read once an op: another thread may set it at any time.
    const int threads = thread_count();
    const size_t stride = whole_lines(bytes);
    return {static_cast<char*>(thread_scratch_.at_least(stride * static_cast<size_t>(threads))), stride, threads};
}

template <typename E>
float* CpuBackend<E>::shared_scratch(size_t bytes) {
    return static_cast<float*>(shared_scratch_.at_least(bytes));
}

// ---- weights and precision

template <typename E>
std::string CpuBackend<E>::description() const {
    const int threads = thread_count();
    return format("cpu: %s kernels, %d thread%s, %s", kernels_.isa, threads, threads == 1 ? "" : "s", precision());
}

template <typename E>
size_t CpuBackend<E>::prepared_bytes(int64_t floats) const {
    return sizeof(E) == sizeof(float) ? 0 : static_cast<size_t>(floats) * sizeof(E);
}

template <typename E>
void CpuBackend<E>::prepare(void* prepared, const float* masters, int64_t floats) {
    if (prepared == nullptr) return;
    parallel_ranges(floats, kNumbersPerTask, [&](int64_t begin, int64_t end) {
        kernels_.convert(static_cast<E*>(prepared) + begin, masters + begin, end - begin);
    });
}

// ---- batch: the host's pointers are checked before they come here, so this serves whoever calls the op itself

template <typename E>
void CpuBackend<E>::take_batch(int32_t* tokens, int32_t* targets, BatchScale* scale, const int32_t* from_tokens,
                               const int32_t* from_targets, float weight, int64_t N, int64_t V) {
    bool is_valid = true;
    int64_t counted = 0;
    for (int64_t i = 0; i < N; ++i) {
        const bool known = from_tokens[i] >= 0 && from_tokens[i] < V;
        tokens[i] = known ? from_tokens[i] : 0;
        is_valid = is_valid && known;
        if (from_targets == nullptr) continue;
        const bool counts = from_targets[i] >= 0 && from_targets[i] < V;
        targets[i] = counts ? from_targets[i] : -1;
        is_valid = is_valid && (counts || from_targets[i] == -1);
        counted += counts;
    }
    if (from_targets != nullptr) is_valid = is_valid && counted > 0;
    const float share = !is_valid ? NAN : counted > 0 ? 1.0f / static_cast<float>(counted) : 0.0f;
    *scale = {share, weight * share, weight};
}

// ---- embedding and norm

template <typename E>
void CpuBackend<E>::embedding_forward(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                                      const float* wpe, int64_t N, int64_t T, int64_t C) {
    parallel_ranges(N, kRowsPerTask, [&](int64_t begin, int64_t end) {
        kernels_.embedding_forward(out, tokens, positions, wte, wpe, begin, end, T, C);
    });
}

template <typename E>
void CpuBackend<E>::embedding_backward(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N,
                                       int64_t T, int64_t C) {
    parallel_ranges(C, kColumnsPerTask, [&](int64_t begin, int64_t end) {
        kernels_.embedding_backward(dwte, dwpe, dout, tokens, N, T, C, begin, end);
    });
}

template <typename E>
void CpuBackend<E>::norm_forward(Element* out, float* mean, float* rstd, const float* x, const float* gamma,
                                 const float* beta, int64_t N, int64_t C) {
    parallel_ranges(N, kRowsPerTask, [&](int64_t begin, int64_t end) {
        kernels_.norm_forward(elements<E>(out), mean, rstd, x, gamma, beta, begin, end, C);
    });
}

template <typename E>
void CpuBackend<E>::norm_backward(float* dx, Element* dx_elements, Element* out, float* dgamma, float* dbeta,
                                  const Element* dout, const float* x, const float* mean, const float* rstd,
                                  const float* gamma, const float* beta, int64_t N, int64_t C) {
    const bool converts = dx_elements != nullptr && sizeof(E) != sizeof(float);
    sum_norm_gradients(dgamma, dbeta, N, C, [&](float* partial, int64_t begin, int64_t end) {
        kernels_.norm_backward(dx, true, partial, elements<E>(dout), x, mean, rstd, gamma, begin, end, C);
        if (out != nullptr) kernels_.norm_again(elements<E>(out), x, mean, rstd, gamma, beta, begin, end, C);
        if (converts) kernels_.convert(elements<E>(dx_elements) + begin * C, dx + begin * C, (end - begin) * C);
    });
}

// rows(partial, begin, end) fills partial[2C] with its rows' part of the gradients; the parts are added in a fixed order.
template <typename E>
template <typename Rows>
void CpuBackend<E>::sum_norm_gradients(float* dgamma, float* dbeta, int64_t N, int64_t C, const Rows& rows) {
    const int64_t chunk = sum_chunk_rows(N), chunks = ceil_div(N, chunk);
    float* partial = shared_scratch(floats_bytes(chunks * 2 * C));
    parallel_ranges(N, chunk, [&](int64_t begin, int64_t end) { rows(partial + begin / chunk * 2 * C, begin, end); });
    const Arithmetic arithmetic;
    if (dgamma != nullptr) kernels_.add_rows(dgamma, partial, chunks, 2 * C, C);
    if (dbeta != nullptr) kernels_.add_rows(dbeta, partial + C, chunks, 2 * C, C);
}

// ---- the residual stream: float32 in every precision

template <typename E>
void CpuBackend<E>::stream_norm_forward(float* out, Element* also, float* mean, float* rstd, const float* x,
                                        const float* gamma, const float* beta, int64_t N, int64_t C) {
    parallel_ranges(N, kRowsPerTask, [&](int64_t begin, int64_t end) {
        kernels<float>().norm_forward(out, mean, rstd, x, gamma, beta, begin, end, C);
        if (also != nullptr) kernels_.convert(elements<E>(also) + begin * C, out + begin * C, (end - begin) * C);
    });
}

template <typename E>
void CpuBackend<E>::stream_norm_backward(float* dx, Element* dx_elements, float* dgamma, float* dbeta, const float* x,
                                         const float* mean, const float* rstd, const float* gamma, int64_t N,
                                         int64_t C) {
    const bool converts = dx_elements != nullptr && sizeof(E) != sizeof(float);
    sum_norm_gradients(dgamma, dbeta, N, C, [&](float* partial, int64_t begin, int64_t end) {
        kernels<float>().norm_backward(dx, false, partial, dx, x, mean, rstd, gamma, begin, end, C);
        if (converts) kernels_.convert(elements<E>(dx_elements) + begin * C, dx + begin * C, (end - begin) * C);
    });
}

template <typename E>
void CpuBackend<E>::read_stream(Element* out, const float* x, int64_t count) {
    parallel_ranges(count, kNumbersPerTask, [&](int64_t begin, int64_t end) {
        kernels_.convert(elements<E>(out) + begin, x + begin, end - begin);
    });
}

template <typename E>
void CpuBackend<E>::add_to_stream(float* dx, Element* dx_elements, const Element* dout, int64_t count) {
    const bool converts = dx_elements != nullptr && sizeof(E) != sizeof(float);
    parallel_ranges(count, kNumbersPerTask, [&](int64_t begin, int64_t end) {
        kernels_.add_elements(dx + begin, elements<E>(dout) + begin, end - begin);
        if (converts) kernels_.convert(elements<E>(dx_elements) + begin, dx + begin, end - begin);
    });
}

// ---- activations

template <typename E>
void CpuBackend<E>::activation_forward(Activation f, Element* out, const Element* hidden, int64_t N, int64_t M) {
    parallel_ranges(N, std::max<int64_t>(1, kNumbersPerTask / M), [&](int64_t begin, int64_t end) {
        kernels_.activation_forward(f, elements<E>(out), elements<E>(hidden), begin, end, M);
    });
}

template <typename E>
void CpuBackend<E>::activation_backward(Activation f, Element* hidden, Element* dout, int64_t N, int64_t M) {
    parallel_ranges(N, std::max<int64_t>(1, kNumbersPerTask / M), [&](int64_t begin, int64_t end) {
        kernels_.activation_backward(f, elements<E>(hidden), elements<E>(dout), begin, end, M);
    });
}

// ---- attention: a task is one head of one sequence

template <typename E>
size_t CpuBackend<E>::attention_saved_bytes(int64_t B, int64_t T, int64_t NH) const {
    return floats_bytes(B * NH * T);
}

template <typename E>
void CpuBackend<E>::attention_forward(Element* out, void* saved, const Element* qkv, int64_t B, int64_t T, int64_t C,
                                      int64_t NH) {
    attend(elements<E>(out), static_cast<float*>(saved), elements<E>(qkv), B, T, C, NH);
}

template <typename E>
void CpuBackend<E>::attend(E* out, float* saved, const E* qkv, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const ThreadScratch scratch = thread_scratch(kernels_.attention_scratch_bytes(T, C / NH));
    parallel_for(scratch.threads, B * NH, [&](int64_t task, int worker) {
        kernels_.attention_forward(out, saved, qkv, T, C, NH, task / NH, task % NH, scratch.of(worker));
    });
}

template <typename E>
void CpuBackend<E>::attention_backward(Element* dqkv, const Element* dout, const Element* qkv, const Element* out,
                                       const void* saved, int64_t B, int64_t T, int64_t C, int64_t NH) {
    const ThreadScratch scratch = thread_scratch(kernels_.attention_scratch_bytes(T, C / NH));
    parallel_for(scratch.threads, B * NH, [&](int64_t task, int worker) {
        kernels_.attention_backward(elements<E>(dqkv), elements<E>(dout), elements<E>(qkv), elements<E>(out),
                                    static_cast<const float*>(saved), T, C, NH, task / NH, task % NH,
                                    scratch.of(worker));
    });
}

// ---- reductions and the optimizer

template <typename E>
void CpuBackend<E>::sum(float* result, const float* x, int64_t count) {
    const Arithmetic arithmetic;
    double total = 0;
    for (int64_t begin = 0; begin < count; begin += kNumbersPerTask)
        total += kernels_.sum(x + begin, std::min(kNumbersPerTask, count - begin));
    *result = static_cast<float>(total);
}

template <typename E>
void CpuBackend<E>::global_norm(float* result, const float* x, int64_t count) {
    std::vector<double> partial(static_cast<size_t>(ceil_div(count, kNumbersPerTask)));
    parallel_ranges(count, kNumbersPerTask, [&](int64_t begin, int64_t end) {
        partial[static_cast<size_t>(begin / kNumbersPerTask)] = kernels_.sum_of_squares(x + begin, end - begin);
    });
    double total = 0;
    for (const double part : partial) total += part;
    *result = static_cast<float>(std::sqrt(total));
}

template <typename E>
void CpuBackend<E>::batch_loss(StepState* state, const float* losses, const BatchScale* scale, int64_t N) {
    const Arithmetic arithmetic;
    sum(&state->loss, losses, N);
    state->loss *= scale->loss;
    if (scale->weight != 0) state->total_loss += state->loss * scale->weight;
}

template <typename E>
void CpuBackend<E>::adamw(float* parameters, float* gradients, float* m, float* v, void* prepared, StepState* state,
                          const std::vector<ParameterRange>& ranges, const AdamW* options) {
    const Arithmetic arithmetic;
    const auto is_above = [](float value, float limit) { return limit > 0 && value > limit; };
    const float loss = state->total_loss;
    const bool updates = std::isfinite(state->norm) && std::isfinite(loss) &&
                         !is_above(loss, options->skip_loss_above) && !is_above(state->norm, options->skip_norm_above);
    if (!std::isfinite(loss) && std::isfinite(state->norm)) state->norm = NAN;
    state->update_loss = loss;
    state->total_loss = 0;
    if (!updates) {
        for (const ParameterRange& range : ranges) zero(gradients + range.begin, floats_bytes(range.end - range.begin));
        return;
    }
    const double steps = static_cast<double>(++state->steps);
    const double correction1 = 1.0 - std::pow(static_cast<double>(options->beta1), steps);
    const double correction2 = 1.0 - std::pow(static_cast<double>(options->beta2), steps);
    AdamWStep step;
    step.beta1 = options->beta1;
    step.beta2 = options->beta2;
    step.step_size = static_cast<float>(static_cast<double>(options->learning_rate) / correction1);
    step.root_correction = static_cast<float>(1.0 / std::sqrt(correction2));
    step.epsilon = options->epsilon;
    const float norm = state->norm, most = options->max_norm;
    step.gradient_scale = most > 0 && norm > most ? most / norm : 1.0f;
    const float decayed = 1.0f - options->learning_rate * options->weight_decay;

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
        if (prepared != nullptr) kernels_.convert(static_cast<E*>(prepared) + at, parameters + at, piece.end - at);
    });
}

// ---- decode

template <typename E>
size_t CpuBackend<E>::cache_bytes(int64_t sequences, int64_t capacity, int64_t C) const {
    return static_cast<size_t>(2 * sequences * capacity * C) * sizeof(E);
}

// A row attends to the cache; rows that begin a sequence, a prompt, attend to each other and share what they read.
template <typename E>
void CpuBackend<E>::cached_attention_forward(Element* out, void* cache, const Element* qkv, const int32_t* sequences,
                                             const int32_t* positions, int64_t rows, int64_t capacity, int64_t C,
                                             int64_t NH) {
    const int64_t head_dim = C / NH;
    // Of each sequence: keys [NH, capacity, head_dim], then the values.
    E* memory = static_cast<E*>(cache);
    const int64_t per_sequence = 2 * capacity * C, per_head = capacity * head_dim;
    parallel_ranges(rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            E* keys = memory + sequences[row] * per_sequence + positions[row] * head_dim;
            const E* k = elements<E>(qkv) + row * 3 * C + C;
            for (int64_t head = 0; head < NH; ++head) {
                std::memcpy(keys + head * per_head, k + head * head_dim, static_cast<size_t>(head_dim) * sizeof(E));
                std::memcpy(keys + (NH + head) * per_head, k + C + head * head_dim,
                            static_cast<size_t>(head_dim) * sizeof(E));
            }
        }
    });
    for (int64_t begin = 0, end; begin < rows; begin = end) {
        const int64_t first_tokens = rows_from_0(sequences + begin, positions + begin, rows - begin);
        end = begin + std::max<int64_t>(first_tokens, 1);
        if (first_tokens >= kPromptRows) {
            attend(elements<E>(out) + begin * C, shared_scratch(floats_bytes(first_tokens * NH)),
                   elements<E>(qkv) + begin * 3 * C, 1, first_tokens, C, NH);
            continue;
        }
        while (end < rows && rows_from_0(sequences + end, positions + end, rows - end) < kPromptRows) ++end;
        const ThreadScratch scratch = thread_scratch(floats_bytes(capacity));
        parallel_for(scratch.threads, (end - begin) * NH, [&](int64_t task, int worker) {
            const int64_t row = begin + task / NH, head = task % NH;
            const E* keys = memory + sequences[row] * per_sequence + head * per_head;
            kernels_.cached_attention(elements<E>(out) + row * C + head * head_dim, keys, keys + NH * per_head,
                                      elements<E>(qkv) + row * 3 * C + head * head_dim, positions[row] + 1, head_dim,
                                      static_cast<float*>(scratch.of(worker)));
        });
    }
}

// ---- limits of the machine

template <typename E>
double CpuBackend<E>::peak_products(int64_t rounds) {
    std::vector<double> operations(static_cast<size_t>(thread_count()));
    parallel_for(static_cast<int64_t>(operations.size()),
                 [&](int64_t task) { operations[static_cast<size_t>(task)] = kernels_.peak_products(rounds); });
    double total = 0;
    for (const double own : operations) total += own;
    return total;
}

template <typename E>
void CpuBackend<E>::read(float* result, const void* memory, size_t bytes) {
    constexpr int64_t kAtOnce = int64_t{1} << 20;  // long pieces, whose streams lie far apart
    const int64_t count = static_cast<int64_t>(bytes / sizeof(float));
    std::vector<float> sums(static_cast<size_t>(ceil_div(count, kAtOnce)));
    parallel_ranges(count, kAtOnce, [&](int64_t begin, int64_t end) {
        sums[static_cast<size_t>(begin / kAtOnce)] =
            kernels_.read(static_cast<const float*>(memory) + begin, end - begin);
    });
    *result = 0;
    for (const float own : sums) *result += own;
}

template class CpuBackend<float>;
template class CpuBackend<Bf16>;

std::unique_ptr<Backend> create_cpu_backend(const std::string& precision) {
    if (precision == "fp32") return std::make_unique<CpuBackend<float>>();
    if (precision == "bf16") return std::make_unique<CpuBackend<Bf16>>();
    if (precision != "auto")
        throw Error(MG_ERROR_DEVICE, format("precision is '%s' but device cpu has: fp32 bf16", precision.c_str()));
    if (kernels<Bf16>().native) return std::make_unique<CpuBackend<Bf16>>();
    return std::make_unique<CpuBackend<float>>();
}

}  // namespace mg::cpu
