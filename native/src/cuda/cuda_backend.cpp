#include "cuda/cuda_backend.h"

#include <algorithm>

#include "cuda/check.h"
#include "cuda/create.h"
#include "cuda/launch_count.h"
#include "error.h"

namespace mg::cuda {
namespace {

// The fixed scratch: an area for each op that reduces, and the parameter ranges as AdamW reads them.
constexpr size_t kArea = (kReductionScratchBytes + 255) / 256 * 256;
constexpr size_t kReductions = 0, kOptimizer = kArea, kBatch = 2 * kArea, kRead = 3 * kArea, kSink = 4 * kArea;
constexpr size_t kMostRanges = 4096;
constexpr size_t kEnds = kSink + 256, kDecays = kEnds + kMostRanges * sizeof(int64_t),
                 kFixedBytes = kDecays + kMostRanges;

bool same(const ParameterRange& a, const ParameterRange& b) {
    return a.begin == b.begin && a.end == b.end && a.decays == b.decays;
}

}  // namespace

template <typename E>
CudaBackend<E>::CudaBackend(int device, const char* why_precision)
    : device_(device),
      graphs_(device_),
      scratch_(device_, [this] { graphs_.drop(); }),
      gemm_(device_),
      why_precision_(why_precision),
      fixed_(scratch_.at_least(Use::fixed, kFixedBytes)) {
    // A kernel that isn't in the build for this GPU shows here, not in the middle of a step.
    try {
        cuda::add<float>(device_.stream(), fixed<float>(kSink), nullptr, fixed<float>(kReductions), 1);
        check_launch("the first kernel");
        device_.synchronize();
    } catch (const Error& error) {
        throw Error(MG_ERROR_DEVICE, format("%s; %s, kernels for: %s", error.what(), device_.description().c_str(),
                                            cuda_status().architectures.c_str()));
    }
}

template <typename E>
size_t CudaBackend<E>::fixed_bytes() {
    return kFixedBytes;
}

template <typename E>
std::string CudaBackend<E>::description() const {
    return device_.description() + ", " + precision() + why_precision_;
}

template <typename E>
int64_t CudaBackend<E>::launches() const {
    return launch_count();
}

template <typename E>
void CudaBackend<E>::release(void* memory) {
    if (memory == nullptr) return;
    graphs_.drop();
    device_.release(memory);
}

template <typename E>
void CudaBackend<E>::wait_for(uintptr_t stream) {
    device_.wait_for(stream);
    callers_stream_ = stream;
}

// ---- weights

template <typename E>
size_t CudaBackend<E>::prepared_bytes(int64_t floats) const {
    return kIsFloat ? 0 : static_cast<size_t>(floats) * sizeof(E);
}

template <typename E>
void CudaBackend<E>::prepare(void* prepared, const float* masters, int64_t floats) {
    if constexpr (!kIsFloat) {
        if (prepared == nullptr) return;
        convert<E>(device_.stream(), static_cast<E*>(prepared), masters, floats);
        check_launch("prepare");
    }
}

// ---- batch, embedding and norm

template <typename E>
void CudaBackend<E>::take_batch(int32_t* tokens, int32_t* targets, BatchScale* scale, const int32_t* from_tokens,
                                const int32_t* from_targets, float weight, int64_t N, int64_t V) {
    cuda::take_batch(device_.stream(), tokens, targets, scale, from_tokens, from_targets, fixed<void>(kBatch), weight,
                     N, V);
    check_launch("take_batch");
    // The caller may free its batch when the call returns, and what comes next on its stream may get the memory.
    device_.let_wait(callers_stream_);
    callers_stream_ = 0;
}

template <typename E>
void CudaBackend<E>::embedding_forward(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                                       const float* wpe, int64_t N, int64_t T, int64_t C) {
    cuda::embedding_forward(device_.stream(), out, tokens, positions, wte, wpe, N, T, C);
    check_launch("embedding_forward");
}

template <typename E>
void CudaBackend<E>::embedding_backward(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N,
                                        int64_t T, int64_t C) {
    cuda::embedding_backward(device_.stream(), dwte, dwpe, dout, tokens, N, T, C);
    check_launch("embedding_backward");
}

template <typename E>
void CudaBackend<E>::norm_forward(Element* out, float* mean, float* rstd, const float* x, const float* gamma,
                                  const float* beta, int64_t N, int64_t C) {
    cuda::norm_forward<E>(device_.stream(), numbers(out), mean, rstd, x, gamma, beta, N, C);
    check_launch("norm_forward");
}

template <typename E>
void CudaBackend<E>::norm_backward(float* dx, Element* dx_elements, Element* out, float* dgamma, float* dbeta,
                                   const Element* dout, const float* x, const float* mean, const float* rstd,
                                   const float* gamma, const float* beta, int64_t N, int64_t C) {
    void* scratch = scratch_.at_least(Use::norm, norm_backward_scratch_bytes(N, C));
    cuda::norm_backward<E>(device_.stream(), dx, beside(dx_elements, dx), numbers(out), dgamma, dbeta, numbers(dout), x,
                           mean, rstd, gamma, beta, scratch, N, C);
    check_launch("norm_backward");
}

// ---- the residual stream: float32 in every precision

template <typename E>
void CudaBackend<E>::stream_norm_forward(float* out, Element* elements, float* mean, float* rstd, const float* x,
                                         const float* gamma, const float* beta, int64_t N, int64_t C) {
    cuda::stream_norm_forward<E>(device_.stream(), out, numbers(elements), mean, rstd, x, gamma, beta, N, C);
    check_launch("stream_norm_forward");
}

template <typename E>
void CudaBackend<E>::stream_norm_backward(float* dx, Element* dx_elements, float* dgamma, float* dbeta, const float* x,
                                          const float* mean, const float* rstd, const float* gamma, int64_t N,
                                          int64_t C) {
    void* scratch = scratch_.at_least(Use::norm, norm_backward_scratch_bytes(N, C));
    cuda::stream_norm_backward<E>(device_.stream(), dx, beside(dx_elements, dx), dgamma, dbeta, x, mean, rstd, gamma,
                                  scratch, N, C);
    check_launch("stream_norm_backward");
}

template <typename E>
void CudaBackend<E>::read_stream(Element* out, const float* x, int64_t count) {
    convert<E>(device_.stream(), numbers(out), x, count);
    check_launch("read_stream");
}

template <typename E>
void CudaBackend<E>::add_to_stream(float* dx, Element* dx_elements, const Element* dout, int64_t count) {
    cuda::add<E>(device_.stream(), dx, beside(dx_elements, dx), numbers(dout), count);
    check_launch("add_to_stream");
}

// ---- activations

template <typename E>
void CudaBackend<E>::activation_forward(Activation f, Element* out, const Element* hidden, int64_t N, int64_t M) {
    cuda::activation_forward<E>(device_.stream(), f, numbers(out), numbers(hidden), N, M);
    check_launch("activation_forward");
}

template <typename E>
void CudaBackend<E>::activation_backward(Activation f, Element* hidden, Element* dout, int64_t N, int64_t M) {
    cuda::activation_backward<E>(device_.stream(), f, numbers(hidden), numbers(dout), numbers(hidden), numbers(dout), N,
                                 M);
    check_launch("activation_backward");
}

// ---- attention

template <typename E>
size_t CudaBackend<E>::attention_saved_bytes(int64_t B, int64_t T, int64_t NH) const {
    return static_cast<size_t>(B * T * NH) * sizeof(float);
}

template <typename E>
void CudaBackend<E>::attention_forward(Element* out, void* saved, const Element* qkv, int64_t B, int64_t T, int64_t C,
                                       int64_t NH) {
    cuda::attention_forward<E>(device_.stream(), numbers(out), static_cast<float*>(saved), numbers(qkv), B, T, C, NH);
    check_launch("attention_forward");
}

template <typename E>
void CudaBackend<E>::attention_backward(Element* dqkv, const Element* dout, const Element* qkv, const Element* out,
                                        const void* saved, int64_t B, int64_t T, int64_t C, int64_t NH) {
    void* scratch = scratch_.at_least(Use::attention, attention_backward_scratch_bytes(B, T, NH));
    cuda::attention_backward<E>(device_.stream(), numbers(dqkv), numbers(dout), numbers(qkv), numbers(out),
                                static_cast<const float*>(saved), scratch, B, T, C, NH);
    check_launch("attention_backward");
}

// ---- reductions and the optimizer

template <typename E>
void CudaBackend<E>::sum(float* result, const float* x, int64_t count) {
    cuda::sum(device_.stream(), result, x, fixed<void>(kReductions), count);
    check_launch("sum");
}

template <typename E>
void CudaBackend<E>::global_norm(float* result, const float* x, int64_t count) {
    cuda::global_norm(device_.stream(), result, x, fixed<void>(kReductions), count);
    check_launch("global_norm");
}

template <typename E>
void CudaBackend<E>::batch_loss(StepState* state, const float* losses, const BatchScale* scale, int64_t N) {
    cuda::batch_loss(device_.stream(), state, losses, scale, N);
    check_launch("batch_loss");
}

template <typename E>
void CudaBackend<E>::set_ranges(const std::vector<ParameterRange>& ranges) {
    if (std::equal(ranges.begin(), ranges.end(), ranges_.begin(), ranges_.end(), same)) return;
    check_argument(!ranges.empty() && ranges.size() <= kMostRanges, "adamw: %zu parameter ranges, but 1 to %zu can be",
                   ranges.size(), kMostRanges);
    std::vector<int64_t> ends;
    std::vector<uint8_t> decays;
    int64_t begin = ranges.front().begin;
    for (const ParameterRange& range : ranges) {
        check_argument(range.begin == begin && range.end > begin, "adamw: parameter ranges have gaps between them");
        begin = range.end;
        ends.push_back(range.end);
        decays.push_back(range.decays ? 1 : 0);
    }
    graphs_.drop();  // what was recorded reads the same place
    ranges_.clear();
    device_.copy_in(fixed<void>(kEnds), ends.data(), ends.size() * sizeof(int64_t));
    device_.copy_in(fixed<void>(kDecays), decays.data(), decays.size());
    ranges_ = ranges;
}

template <typename E>
void CudaBackend<E>::adamw(float* parameters, float* gradients, float* m, float* v, void* prepared, StepState* state,
                           const std::vector<ParameterRange>& ranges, const AdamW* options) {
    set_ranges(ranges);
    cuda::adamw(device_.stream(), parameters, gradients, m, v, kIsFloat ? nullptr : static_cast<Bf16*>(prepared), state,
                options, fixed<int64_t>(kEnds), fixed<uint8_t>(kDecays), fixed<void>(kOptimizer),
                static_cast<int64_t>(ranges.size()), ranges.front().begin, ranges.back().end);
    check_launch("adamw");
}

// ---- decode

template <typename E>
size_t CudaBackend<E>::cache_bytes(int64_t sequences, int64_t capacity, int64_t C) const {
    return static_cast<size_t>(sequences * 2 * capacity * C) * sizeof(E);
}

template <typename E>
void CudaBackend<E>::cached_attention_forward(Element* out, void* cache, const Element* qkv, const int32_t* sequences,
                                              const int32_t* positions, int64_t rows, int64_t capacity, int64_t C,
                                              int64_t NH) {
    void* scratch = scratch_.at_least(Use::decode, cached_attention_scratch_bytes(rows, capacity, C, NH));
    cached_attention<E>(device_.stream(), numbers(out), static_cast<E*>(cache), numbers(qkv), sequences, positions,
                        scratch, rows, capacity, C, NH);
    check_launch("cached_attention_forward");
}

// ---- limits of the GPU

template <typename E>
double CudaBackend<E>::peak_products(int64_t rounds) {
    const double operations = cuda::peak_products<E>(device_.stream(), fixed<float>(kSink), rounds);
    check_launch("peak_products");
    return operations;
}

template <typename E>
void CudaBackend<E>::read(float* result, const void* memory, size_t bytes) {
    read_memory(device_.stream(), result, memory, fixed<void>(kRead), bytes);
    check_launch("read");
}

template class CudaBackend<float>;
template class CudaBackend<Bf16>;

}  // namespace mg::cuda
