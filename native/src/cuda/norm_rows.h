// What both passes of norms share: a row is read once, into the registers of one warp, or of several where it is wide.  A null mean
// is that of RMSNorm (Zhang & Sennrich 2019), which takes it to be 0; a null gamma is 1 and a null beta 0.  Pointers are the
// same for all threads, so asking which are there costs a branch that no warp splits at.
#pragma once

#include "cuda/element.h"
#include "cuda/kernel.h"

namespace mg::cuda {

constexpr int kNormThreads = 256, kNormWarps = kNormThreads / kWarp;

// Sums over the kRowWarps warps that share a row.  `room` holds kCount floats a warp; it is free again after the next call that
// uses another room.
template <int kRowWarps, int kCount>
__device__ __forceinline__ void row_sums(float (&values)[kCount], float* room) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = warp_sum(values[i]);
    if constexpr (kRowWarps > 1) {
        if (lane == 0)
            for (int i = 0; i < kCount; ++i) room[warp * kCount + i] = values[i];
        __syncthreads();
        const float* of_row = room + warp / kRowWarps * kRowWarps * kCount;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            values[i] = 0.0f;
            for (int w = 0; w < kRowWarps; ++w) values[i] += of_row[w * kCount + i];
        }
    }
}

// Numbers of a vector that may be null, and is then `otherwise` throughout.
template <int kCount>
__device__ __forceinline__ void load_or(float (&values)[kCount], const float* x, int64_t at, float otherwise) {
    if (x != nullptr) {
        load(values, x + at);
    } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) values[i] = otherwise;
    }
}

__device__ __forceinline__ float value_or(const float* x, int64_t at, float otherwise) {
    return x != nullptr ? x[at] : otherwise;
}

// Rows in registers: each of the kRowWarps warps' threads holds kPieces pieces of 4 numbers.
template <int kPieces, int kRowWarps>
struct Spread {
    static constexpr int kOfRow = kRowWarps * kWarp, kRows = kNormWarps / kRowWarps;

    static __device__ __forceinline__ int group() { return static_cast<int>(threadIdx.x) / kOfRow; }
    static __device__ __forceinline__ int64_t column(int piece) {
        return (piece * kOfRow + static_cast<int>(threadIdx.x) % kOfRow) * 4;
    }
};

// Calls launch with the Spread for rows of C numbers; false where the registers of a block don't hold one.
template <typename Launch>
bool spread_rows(int64_t C, const Launch& launch) {
    if (C <= 128)
        launch(Spread<1, 1>());
    else if (C <= 256)
        launch(Spread<2, 1>());
    else if (C <= 512)
        launch(Spread<4, 1>());
    else if (C <= 768)
        launch(Spread<3, 2>());
    else if (C <= 1024)
        launch(Spread<4, 2>());
    else if (C <= 1536)
        launch(Spread<3, 4>());
    else if (C <= 2048)
        launch(Spread<4, 4>());
    else if (C <= 4096)
        launch(Spread<4, 8>());
    else
        return false;
    return true;
}

template <typename... Pointers>
bool are_aligned(size_t bytes, const Pointers*... pointers) {
    return (is_aligned(pointers, bytes) && ...);
}

}  // namespace mg::cuda
