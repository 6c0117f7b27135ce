// AdamW with decoupled weight decay (Loshchilov & Hutter 2019), clipping by the global norm, and all that goes with an update, in one
// pass.  Bound by memory: 34 bytes a parameter (parameter, gradient and both moments in and out, the bfloat16 copy out), 15
// operations.
//   p *= 1 - lr wd;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
//   p -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// What varies from step to step is read from the device's memory, so that a recorded launch serves every step.
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 8;

struct Arrays {
    float* parameters;
    float* gradients;
    float* m;
    float* v;
    Bf16* prepared;  // may be null
};

struct Ranges {
    const int64_t* ends;
    const uint8_t* decays;
    int64_t count;

    // The range that has parameter i: the first that ends after it.
    __device__ __forceinline__ int64_t of(int64_t i) const {
        int64_t low = 0, high = count - 1;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (ends[middle] > i)
                high = middle;
            else
                low = middle + 1;
        }
        return low;
    }
};

// What all parameters of an update share.
struct Update {
    float gradient_scale, beta1, beta2, epsilon;
    float step_size;        // lr / (1 - b1^t)
    float root_correction;  // 1 / sqrt(1 - b2^t)
    float decayed;          // 1 - lr wd
    bool happens;           // else the gradients end as 0 and nothing else changes
};

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }

__device__ __forceinline__ bool is_above(float x, float limit) { return limit > 0.0f && x > limit; }

__device__ __forceinline__ double power(double base, int64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent /= 2, base *= base)
        if (exponent % 2 != 0) result *= base;
    return result;
}

// In double: 1 - b2^t has few digits left of b2^t for small t.
__device__ __forceinline__ Update update_of(const AdamW& options, const StepState& state) {
    Update update;
    update.happens = is_finite(state.norm) && is_finite(state.total_loss) &&
                     !is_above(state.total_loss, options.skip_loss_above) &&
                     !is_above(state.norm, options.skip_norm_above);
    const double correction1 = 1.0 - power(static_cast<double>(options.beta1), state.steps + 1);
    const double correction2 = 1.0 - power(static_cast<double>(options.beta2), state.steps + 1);
    update.step_size = static_cast<float>(static_cast<double>(options.learning_rate) / correction1);
    update.root_correction = static_cast<float>(1.0 / sqrt(correction2));
    update.beta1 = options.beta1;
    update.beta2 = options.beta2;
    update.epsilon = options.epsilon;
    const float most = options.max_norm;
    update.gradient_scale = most > 0.0f && state.norm > most ? most / state.norm : 1.0f;
    update.decayed = 1.0f - options.learning_rate * options.weight_decay;
    return update;
}

// kWidth parameters from i on.
template <int kWidth>
__device__ __forceinline__ void update_piece(const Arrays& arrays, const Ranges& ranges, const Update& update,
                                             int64_t i) {
    const float zeros[kWidth] = {};
    if (!update.happens) {
        store(arrays.gradients + i, zeros);
        return;
    }
    float p[kWidth], g[kWidth], m[kWidth], v[kWidth];
    load(p, arrays.parameters + i);
    load(g, arrays.gradients + i);
    load(m, arrays.m + i);
    load(v, arrays.v + i);
    int64_t range = ranges.of(i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
        while (k > 0 && range + 1 < ranges.count && i + k >= ranges.ends[range]) ++range;
        const float gradient = g[k] * update.gradient_scale;
        m[k] = m[k] * update.beta1 + gradient * (1.0f - update.beta1);
        v[k] = v[k] * update.beta2 + gradient * gradient * (1.0f - update.beta2);
        const float keep = ranges.decays[range] != 0 ? update.decayed : 1.0f;
        p[k] = p[k] * keep - m[k] * update.step_size / (sqrtf(v[k]) * update.root_correction + update.epsilon);
    }
    store(arrays.parameters + i, p);
    store(arrays.m + i, m);
    store(arrays.v + i, v);
    store(arrays.gradients + i, zeros);
    if (arrays.prepared != nullptr) store(arrays.prepared + i, p);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) adamw_kernel(Arrays arrays, StepState* state, const AdamW* options,
                                                         Ranges ranges, unsigned* counter, int64_t begin, int64_t end) {
    MG_SHARED(Update, shared_update, 1);
    MG_SHARED(unsigned, is_last, 1);
    if (threadIdx.x == 0) *shared_update = update_of(*options, *state);
    __syncthreads();
    const Update update = *shared_update;
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int64_t whole = begin + (end - begin) / kWidth * kWidth,
                  step = static_cast<int64_t>(gridDim.x) * kThreads * kWidth;
    for (int64_t i = begin + thread * kWidth; i < whole; i += step) update_piece<kWidth>(arrays, ranges, update, i);
    // What is left after the last whole piece: single ones for the first threads.
    if (whole + thread < end) update_piece<1>(arrays, ranges, update, whole + thread);

    // The others have read the state by now, so it may change.
    if (!last_block(counter, is_last) || threadIdx.x != 0) return;
    if (update.happens)
        state->steps += 1;
    else if (!is_finite(state->total_loss) && is_finite(state->norm))
        state->norm = __uint_as_float(0x7fc00000u);  // the loss was not finite: the host looks at the norm alone
    state->update_loss = state->total_loss;
    state->total_loss = 0.0f;
}

}  // namespace

void adamw(Stream stream, float* parameters, float* gradients, float* m, float* v, Bf16* prepared, StepState* state,
           const AdamW* options, const int64_t* ends, const uint8_t* decays, void* scratch, int64_t count,
           int64_t begin, int64_t end) {
    const Arrays arrays = {parameters, gradients, m, v, prepared};
    const Ranges ranges = {ends, decays, count};
    unsigned* const counter = static_cast<unsigned*>(scratch);
    bool is_whole = prepared == nullptr || is_aligned(prepared + begin, 8);
    for (const float* array : {parameters, gradients, m, v}) is_whole = is_whole && is_aligned(array + begin, 16);
    if (is_whole)
        MG_LAUNCH((adamw_kernel<4>), blocks_for(end - begin, kThreads * 4, kMostBlocks), kThreads, 0, stream, arrays,
                  state, options, ranges, counter, begin, end);
    else
        MG_LAUNCH((adamw_kernel<1>), blocks_for(end - begin, kThreads, kMostBlocks), kThreads, 0, stream, arrays, state,
                  options, ranges, counter, begin, end);
}

}  // namespace mg::cuda
