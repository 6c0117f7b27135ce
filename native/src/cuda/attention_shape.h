// What all attention kernels are told about their shape, and which block works on which tile of which head.
#pragma once

#include "cuda/kernel.h"

#include <cmath>

namespace mg::cuda {

constexpr float kLog2E = 1.4426950408889634f;

struct AttentionShape {
    int T, C, NH, head_dim;
    int64_t heads;       // B * NH: the heads of all sequences, numbered together
    int heads_together;  // blocks of that many heads come one after the other
    float scale;         // 1 / sqrt(head_dim)
    bool whole_pieces;   // sizes and pointers allow accesses of a whole vector
};

// Where one head of one sequence starts: `qkv` in rows of 3 C numbers (k and v lie C and 2 C further on), `out` in rows of C,
// `row` in [B, NH, T].
struct HeadOffsets {
    int64_t qkv, out, row;
};

__device__ __forceinline__ HeadOffsets offsets_of(const AttentionShape& shape, int64_t head) {
    const int64_t first = head / shape.NH * shape.T * shape.C, column = head % shape.NH * shape.head_dim;
    return {3 * first + column, first + column, head * shape.T};
}

struct TileOfHead {
    int64_t head;
    int rank;  // 0 for the tile with the most work, which starts first
};

// Causal tiles differ in work, so the heavy ones of some heads start first and the light ones fill the gaps they leave.  Only
// of some heads, so that the keys and values that many tiles read stay in the level-2 cache.
__device__ __forceinline__ TileOfHead tile_of_block(const AttentionShape& shape, int tiles) {
    const int64_t block = blockIdx.x;
    const int64_t group = block / (static_cast<int64_t>(shape.heads_together) * tiles);
    const int64_t first = group * shape.heads_together, in_group = block - first * tiles;
    const int64_t left = shape.heads - first;
    const int64_t heads = left < shape.heads_together ? left : shape.heads_together;
    return {first + in_group % heads, static_cast<int>(in_group / heads)};
}

// `alignment` is what a vector of the kernel takes in bytes, `numbers` how many numbers that is; `pointers` is the bitwise or of
// the addresses of all tensors.
inline AttentionShape attention_shape(int64_t B, int64_t T, int64_t C, int64_t NH, int64_t element_bytes,
                                      int64_t numbers, uintptr_t pointers) {
    constexpr int64_t kCached = 16 << 20;  // bytes of keys and values: a third of the H200's level-2 cache
    AttentionShape shape;
    shape.T = static_cast<int>(T);
    shape.C = static_cast<int>(C);
    shape.NH = static_cast<int>(NH);
    shape.head_dim = static_cast<int>(C / NH);
    shape.heads = B * NH;
    const int64_t together = kCached / (2 * T * shape.head_dim * element_bytes);
    shape.heads_together = static_cast<int>(together < 1 ? 1 : together < shape.heads ? together : shape.heads);
    shape.scale = 1.0f / sqrtf(static_cast<float>(shape.head_dim));
    shape.whole_pieces =
        shape.head_dim % numbers == 0 && pointers % static_cast<uintptr_t>(numbers * element_bytes) == 0;
    return shape;
}

template <typename T>
uintptr_t address_bits(const T* pointer) {
    return reinterpret_cast<uintptr_t>(pointer);
}

// Starts a kernel with one block for each tile of each head.  Above 48 KiB a kernel has to be allowed its shared memory first.
template <typename... Parameters, typename... Arguments>
void launch_over_tiles(cudaStream_t stream, void (*kernel)(AttentionShape, Parameters...), int64_t tiles, int threads,
                       size_t shared_bytes, const AttentionShape& shape, Arguments... arguments) {
    if (shared_bytes > 48 * 1024)
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes));
    MG_LAUNCH(kernel, dim3(static_cast<unsigned>(tiles * shape.heads)), dim3(static_cast<unsigned>(threads)),
              shared_bytes, stream, shape, arguments...);
}

}  // namespace mg::cuda
