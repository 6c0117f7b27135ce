// Tokens and targets that are on the device already: copied, checked and counted in one launch.  16 bytes of memory a position, and
// a batch has few: what it costs is a launch.
#include "cuda/kernel.h"
#include "cuda/launchers.h"

namespace mg::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 128, kCounterBytes = 64;

// Positions with a target, and ids that are neither in the vocabulary nor a target of -1.
struct Found {
    int counted, wrong;
};
static_assert(kCounterBytes + kMostBlocks * sizeof(Found) <= kReductionScratchBytes, "what each block has found");

__device__ __forceinline__ Found block_sum_of(Found found, int* room) {
    return {block_sum(found.counted, room), block_sum(found.wrong, room)};
}

__global__ void __launch_bounds__(kThreads)
    take_batch_kernel(int32_t* tokens, int32_t* targets, BatchScale* scale, const int32_t* from_tokens,
                      const int32_t* from_targets, unsigned* counter, Found* of_blocks, float weight, int64_t N,
                      int64_t V) {
    MG_SHARED(int, room, kThreads / kWarp);
    MG_SHARED(unsigned, is_last, 1);
    Found found = {0, 0};
    const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < N; i += step) {
        const int32_t token = from_tokens[i];
        const bool is_known = token >= 0 && token < V;
        tokens[i] = is_known ? token : 0;
        found.wrong += is_known ? 0 : 1;
        if (from_targets == nullptr) continue;
        const int32_t target = from_targets[i];
        const bool counts = target >= 0 && target < V;
        targets[i] = counts ? target : -1;
        found.counted += counts ? 1 : 0;
        found.wrong += counts || target == -1 ? 0 : 1;
    }
    found = block_sum_of(found, room);
    if (threadIdx.x == 0) of_blocks[blockIdx.x] = found;
    if (!last_block(counter, is_last)) return;
    const bool has_block = threadIdx.x < gridDim.x;
    found = block_sum_of({has_block ? of_blocks[threadIdx.x].counted : 0, has_block ? of_blocks[threadIdx.x].wrong : 0},
                         room);
    if (threadIdx.x != 0) return;
    const bool is_valid = found.wrong == 0 && (found.counted > 0 || from_targets == nullptr);
    float share = found.counted > 0 ? 1.0f / static_cast<float>(found.counted) : 0.0f;
    if (!is_valid) share = __uint_as_float(0x7fc00000u);
    *scale = {share, weight * share, weight};
}
static_assert(kMostBlocks <= kThreads, "the last block has a thread for each block");

}  // namespace

void take_batch(Stream stream, int32_t* tokens, int32_t* targets, BatchScale* scale, const int32_t* from_tokens,
                const int32_t* from_targets, void* scratch, float loss_scale, int64_t N, int64_t V) {
    unsigned* const counter = static_cast<unsigned*>(scratch);
    Found* const of_blocks = reinterpret_cast<Found*>(static_cast<char*>(scratch) + kCounterBytes);
    MG_LAUNCH(take_batch_kernel, blocks_for(N, kThreads * 4, kMostBlocks), kThreads, 0, stream, tokens, targets, scale,
              from_tokens, from_targets, counter, of_blocks, loss_scale, N, V);
}

}  // namespace mg::cuda
