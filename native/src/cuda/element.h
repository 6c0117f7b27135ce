// The numbers that activations are kept as on the GPU: float, or Bf16 (8 significant bits, float's exponent).  Kernels compute in
// float32 and round once when they store: to nearest, ties to even, NaN kept.  Loads and stores of several Elements at once are
// one memory instruction where the caller knows the address to be aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/bf16.h"

namespace mg::cuda {

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(Bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

template <typename E>
__device__ __forceinline__ E from_float(float x);

template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}

template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float x) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}

// kCount consecutive numbers as one piece of memory, at most 16 bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Piece {
    T values[kCount];
};

// Numbers of one 16-byte access.
template <typename E>
constexpr int kWidest = 16 / static_cast<int>(sizeof(E));

// Loads kCount numbers as floats.  kCount > 1: x is aligned to sizeof(E) * kCount bytes.
template <int kCount, typename E>
__device__ __forceinline__ void load(float (&values)[kCount], const E* x) {
    constexpr int kAtOnce = kCount < kWidest<E> ? kCount : kWidest<E>;
#pragma unroll
    for (int at = 0; at < kCount; at += kAtOnce) {
        const Piece<E, kAtOnce> piece = *reinterpret_cast<const Piece<E, kAtOnce>*>(x + at);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) values[at + i] = to_float(piece.values[i]);
    }
}

template <int kCount, typename E>
__device__ __forceinline__ void store(E* x, const float (&values)[kCount]) {
    constexpr int kAtOnce = kCount < kWidest<E> ? kCount : kWidest<E>;
#pragma unroll
    for (int at = 0; at < kCount; at += kAtOnce) {
        Piece<E, kAtOnce> piece;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) piece.values[i] = from_float<E>(values[at + i]);
        *reinterpret_cast<Piece<E, kAtOnce>*>(x + at) = piece;
    }
}

}  // namespace mg::cuda
