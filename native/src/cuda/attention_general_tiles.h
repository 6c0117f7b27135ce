// Blocks of 64 x 64 products in float arithmetic: operands in shared memory, 4 x 4 sums in the registers of each of 256 threads.
//
// A tile has 64 rows of up to 64 numbers, 68 apart.  Thread (y, x) = (i / 16, i % 16) owns rows 4 y to 4 y + 3, so that a half-warp owns
// them alone, and columns x + 16 j of scores, or 4 x to 4 x + 3 of rows of 64 numbers.  A warp reads 16 bytes of 2 rows of the left
// tile (broadcast) and of 16 rows of the right one: 68 numbers apart, 8 consecutive rows start in different banks.
#pragma once

#include "cuda/attention_shape.h"
#include "cuda/element.h"

namespace mg::cuda {

constexpr int kGeneralThreads = 256;
constexpr int kGeneralRows = 64;   // rows of a tile, also the keys or queries that a block takes at once
constexpr int kGeneralWidth = 64;  // numbers of a row
constexpr int kGeneralStride = kGeneralWidth + 4;
constexpr int kGeneralTile = kGeneralRows * kGeneralStride;
constexpr int kHalfWarp = 16;
constexpr int kOwn = 4;

using OwnSums = float[kOwn][kOwn];

__device__ __forceinline__ int thread_row() { return static_cast<int>(threadIdx.x) / kHalfWarp * kOwn; }
__device__ __forceinline__ int thread_column() { return static_cast<int>(threadIdx.x) % kHalfWarp; }

__device__ __forceinline__ void clear(OwnSums& sums) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
        for (int j = 0; j < kOwn; ++j) sums[i][j] = 0.0f;
}

// Fills a tile from rows of head_dim numbers, `stride` apart, from number `first` on; beyond row `rows` or head_dim: 0.
template <typename E>
__device__ __forceinline__ void load_numbers(float* tile, const E* from, int64_t stride, int rows, int first,
                                             int head_dim, bool whole_pieces) {
    const int at = thread_column() * kOwn, left = head_dim - first - at;
#pragma unroll
    for (int pass = 0; pass < kGeneralRows; pass += kGeneralThreads / kHalfWarp) {
        const int row = pass + static_cast<int>(threadIdx.x) / kHalfWarp;
        const E* source = from + row * stride + first + at;
        float values[kOwn] = {};
        if (row < rows && left > 0) {
            if (whole_pieces) {
                load<kOwn>(values, source);
            } else {
#pragma unroll
                for (int i = 0; i < kOwn; ++i)
                    if (i < left) values[i] = to_float(source[i]);
            }
        }
        store<kOwn>(tile + row * kGeneralStride + at, values);
    }
}

// sums += own rows of `left` . rows x + 16 j of `right`, over `width` numbers (rounded up to 4: the tiles hold 0 there).  Every kernel
// adds in this order, so the scores that the gradients start from are the forward pass's, bit by bit.
__device__ __forceinline__ void dot_numbers(OwnSums& sums, const float* left, const float* right, int width) {
    left += thread_row() * kGeneralStride;
    right += thread_column() * kGeneralStride;
#pragma unroll 1
    for (int d = 0; d < width; d += 4) {
        float a[kOwn][4], b[kOwn][4];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            load<4>(a[i], left + i * kGeneralStride + d);
            load<4>(b[i], right + kHalfWarp * i * kGeneralStride + d);
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
#pragma unroll
            for (int j = 0; j < kOwn; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[i][j] = fmaf(a[i][e], b[j][e], sums[i][j]);
    }
}

// sums += own rows of `weights` times numbers 4 x to 4 x + 3 of the first `count` rows of `tile` (rounded up to 4: weights of 0).
__device__ __forceinline__ void add_numbers(OwnSums& sums, const float* weights, const float* tile, int count) {
    weights += thread_row() * kGeneralStride;
    tile += thread_column() * kOwn;
#pragma unroll 1
    for (int row = 0; row < count; row += 4) {
        float a[kOwn][4], b[4][kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            load<4>(a[i], weights + i * kGeneralStride + row);
            load<kOwn>(b[i], tile + (row + i) * kGeneralStride);
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int j = 0; j < kOwn; ++j) sums[i][j] = fmaf(a[i][e], b[e][j], sums[i][j]);
    }
}

// Scores as the weights of add_numbers.  The rows belong to the half-warp, so the warp is all that has to wait.
__device__ __forceinline__ void keep_weights(float* weights, const OwnSums& scores) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
#pragma unroll
        for (int j = 0; j < kOwn; ++j)
            weights[(thread_row() + i) * kGeneralStride + thread_column() + kHalfWarp * j] = scores[i][j];
    __syncwarp();
}

// Writes own rows of sums, row i times factors[i], to rows of head_dim numbers from number `first` on.
template <typename E>
__device__ __forceinline__ void store_numbers(E* to, int64_t stride, const OwnSums& sums, const float (&factors)[kOwn],
                                              int rows, int first, int head_dim, bool whole_pieces) {
    const int at = first + thread_column() * kOwn, left = head_dim - at;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        const int row = thread_row() + i;
        if (row >= rows || left <= 0) continue;
        float values[kOwn];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) values[j] = sums[i][j] * factors[i];
        E* const target = to + row * stride + at;
        if (whole_pieces) {
            store<kOwn>(target, values);
        } else {
#pragma unroll
            for (int j = 0; j < kOwn; ++j)
                if (j < left) target[j] = from_float<E>(values[j]);
        }
    }
}

// What a sum over kGeneralWidth-wide parts of a head needs to know of part `at`: how many of its numbers there are.
__device__ __forceinline__ int width_of_part(int head_dim, int at) {
    const int left = head_dim - at * kGeneralWidth;
    return left < kGeneralWidth ? left : kGeneralWidth;
}

inline AttentionShape general_shape(int64_t B, int64_t T, int64_t C, int64_t NH, int64_t element_bytes,
                                    uintptr_t pointers) {
    return attention_shape(B, T, C, NH, element_bytes, kOwn, pointers);
}

}  // namespace mg::cuda
