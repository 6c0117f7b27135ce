// Decoding: rows, each one token of one sequence, attend to their sequence's cached keys and values.
//   s_j = q k_j / sqrt(head_dim), j <= position;  out = sum_j softmax(s)_j v_j
// First all rows of a call store their keys and values: those of a prompt attend to each other.  Then blocks of 128 threads read keys
// and values once, 16 bytes a thread.  Few rows with few heads would leave most of the GPU idle, so a context is split over several
// blocks, whose results the last one to finish combines in the order of the keys.  How many blocks there are depends on sizes
// alone, never on positions: the launch can be recorded, and replayed when the context is longer.
#include "cuda/kernel.h"
#include "cuda/element.h"
#include "cuda/launchers.h"

#include <cfloat>
#include <cmath>

namespace mg::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kTogether = 4;                // keys whose loads a group of lanes has under way at once
constexpr int64_t kEnoughBlocks = 2 * 132;  // two for each multiprocessor of an H200
constexpr int64_t kLeastKeys = 64;          // of a split
constexpr size_t kCounterBytes =
    2048;  // a counter for each row and head, of which there are fewer than kEnoughBlocks if split
static_assert(kCounterBytes >= sizeof(unsigned) * kEnoughBlocks, "a counter each");

struct CacheShape {
    int64_t rows, capacity, splits;
    int C, NH, head_dim;
    float scale;
};

int64_t splits_of(int64_t rows, int64_t capacity, int64_t NH) {
    const int64_t wanted = ceil_div(kEnoughBlocks, rows * NH), most = ceil_div(capacity, kLeastKeys);
    return wanted < most ? wanted : most;
}

__device__ __forceinline__ int64_t cache_offset(const CacheShape& shape, int64_t sequence, int which, int head) {
    return ((sequence * 2 + which) * shape.NH + head) * shape.capacity * shape.head_dim;
}

template <typename E, int kNumbers>
__global__ void __launch_bounds__(2 * kThreads)
    store_kernel(CacheShape shape, E* __restrict__ cache, const E* __restrict__ qkv,
                 const int32_t* __restrict__ sequences, const int32_t* __restrict__ positions) {
    const int64_t in_row = 2 * static_cast<int64_t>(shape.C) / kNumbers;
    for (int64_t index = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; index < shape.rows * in_row;
         index += static_cast<int64_t>(gridDim.x) * blockDim.x) {
        const int64_t row = index / in_row;
        const int column = static_cast<int>(index % in_row) * kNumbers, in_part = column % shape.C;
        const int64_t to = cache_offset(shape, sequences[row], column / shape.C, in_part / shape.head_dim) +
                           static_cast<int64_t>(positions[row]) * shape.head_dim + in_part % shape.head_dim;
        using Numbers = Piece<E, kNumbers>;
        *reinterpret_cast<Numbers*>(cache + to) =
            *reinterpret_cast<const Numbers*>(qkv + (row * 3 + 1) * shape.C + column);
    }
}

// A group of kLanes lanes reads a key: each lane kPieces pieces of kNumbers numbers, kLanes pieces apart.  Each group has a running
// softmax of its own (the largest score, the sum of exponentials, the weighted sum of values); those of all groups are combined
// at the end.  Heads wider than all pieces together take several rounds, in which the scores are computed again.
template <typename E, int kNumbers, int kLanes, int kPieces>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(CacheShape shape, E* __restrict__ out, unsigned* __restrict__ counters, float* parts,
                  const E* __restrict__ cache, const E* __restrict__ qkv, const int32_t* __restrict__ sequences,
                  const int32_t* __restrict__ positions) {
    constexpr int kGroups = kThreads / kLanes, kWidth = kLanes * kPieces * kNumbers;
    using Numbers = Piece<E, kNumbers>;
    MG_SHARED(float, sums, kGroups* kWidth);
    MG_SHARED(float, group_most, kGroups);
    MG_SHARED(float, group_total, kGroups);
    MG_SHARED(unsigned, is_last, 1);
    const int64_t block = blockIdx.x, of_head = block / shape.splits;
    const int split = static_cast<int>(block % shape.splits), head = static_cast<int>(of_head % shape.NH);
    const int64_t row = of_head / shape.NH;
    const int length = positions[row] + 1;
    // What is there, not what could be, is shared out: a short context of a large cache is split as well.
    int share = static_cast<int>(ceil_div(length, shape.splits));
    if (share < kLeastKeys) share = kLeastKeys;
    const int first = split * share;
    if (first >= length) return;
    const int end = length - first < share ? length : first + share;
    const unsigned shares = static_cast<unsigned>(ceil_div(length, share));

    const int group = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
    const E* const q = qkv + row * 3 * shape.C + head * shape.head_dim;
    const E* const keys = cache + cache_offset(shape, sequences[row], 0, head);
    const E* const values = cache + cache_offset(shape, sequences[row], 1, head);
    E* const to = out + row * shape.C + head * shape.head_dim;
    float* const part = parts + (of_head * shape.splits + split) * (shape.head_dim + 2);
    const auto read = [&](const E* from, int number, bool valid) {
        Numbers numbers = {};
        if (valid && number < shape.head_dim) numbers = *reinterpret_cast<const Numbers*>(from + number);
        return numbers;
    };
    for (int round = 0; round < shape.head_dim; round += kWidth) {
        float most = -FLT_MAX, total = 0.0f, sum[kPieces][kNumbers] = {};
        for (int base = first; base < end; base += kGroups * kTogether) {
            Numbers value[kTogether][kPieces];
            float score[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int64_t key = base + i * kGroups + group;
#pragma unroll
                for (int piece = 0; piece < kPieces; ++piece)
                    value[i][piece] =
                        read(values + key * shape.head_dim, round + (piece * kLanes + lane) * kNumbers, key < end);
                score[i] = 0.0f;
            }
            for (int at = 0; at < shape.head_dim; at += kWidth) {
                Numbers number[kTogether][kPieces];
#pragma unroll
                for (int i = 0; i < kTogether; ++i) {
                    const int64_t key = base + i * kGroups + group;
#pragma unroll
                    for (int piece = 0; piece < kPieces; ++piece)
                        number[i][piece] =
                            read(keys + key * shape.head_dim, at + (piece * kLanes + lane) * kNumbers, key < end);
                }
#pragma unroll
                for (int piece = 0; piece < kPieces; ++piece) {
                    const Numbers query = read(q, at + (piece * kLanes + lane) * kNumbers, true);
#pragma unroll
                    for (int i = 0; i < kTogether; ++i)
#pragma unroll
                        for (int n = 0; n < kNumbers; ++n)
                            score[i] = fmaf(to_float(query.values[n]), to_float(number[i][piece].values[n]), score[i]);
                }
            }
            float largest = most;
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
#pragma unroll
                for (int offset = kLanes / 2; offset > 0; offset /= 2)
                    score[i] += __shfl_xor_sync(kAllLanes, score[i], offset);
                score[i] = base + i * kGroups + group < end ? score[i] * shape.scale : -INFINITY;
                largest = fmaxf(largest, score[i]);
            }
            const float shrink = expf(most - largest);
            most = largest;
            total *= shrink;
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
                for (int n = 0; n < kNumbers; ++n) sum[piece][n] *= shrink;
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const float weight = expf(score[i] - most);
                total += weight;
#pragma unroll
                for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
                    for (int n = 0; n < kNumbers; ++n)
                        sum[piece][n] = fmaf(weight, to_float(value[i][piece].values[n]), sum[piece][n]);
            }
        }
        __syncthreads();  // nobody reads the sums of the round before
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
            for (int n = 0; n < kNumbers; ++n)
                sums[group * kWidth + (piece * kLanes + lane) * kNumbers + n] = sum[piece][n];
        if (lane == 0) {
            group_most[group] = most;
            group_total[group] = total;
        }
        __syncthreads();
        float block_most = -FLT_MAX, block_total = 0.0f;
        for (int g = 0; g < kGroups; ++g) block_most = fmaxf(block_most, group_most[g]);
        for (int g = 0; g < kGroups; ++g) block_total += expf(group_most[g] - block_most) * group_total[g];
        for (int d = static_cast<int>(threadIdx.x); d < kWidth && round + d < shape.head_dim; d += kThreads) {
            float all = 0.0f;
            for (int g = 0; g < kGroups; ++g) all += expf(group_most[g] - block_most) * sums[g * kWidth + d];
            if (shares == 1)
                to[round + d] = from_float<E>(all / block_total);
            else
                part[2 + round + d] = all;
        }
        if (shares > 1 && threadIdx.x == 0) {
            part[0] = block_most;
            part[1] = block_total;
        }
    }
    if (shares == 1 || !last_of(shares, counters + of_head, is_last)) return;
    const int64_t stride = shape.head_dim + 2;
    const float* const all_parts = parts + of_head * shape.splits * stride;
    float most = -FLT_MAX, total = 0.0f;
    for (unsigned s = 0; s < shares; ++s) most = fmaxf(most, all_parts[s * stride]);
    for (unsigned s = 0; s < shares; ++s) total += expf(all_parts[s * stride] - most) * all_parts[s * stride + 1];
    for (int d = static_cast<int>(threadIdx.x); d < shape.head_dim; d += kThreads) {
        float all = 0.0f;
        for (unsigned s = 0; s < shares; ++s) all += expf(all_parts[s * stride] - most) * all_parts[s * stride + 2 + d];
        to[d] = from_float<E>(all / total);
    }
}

template <typename E, int kNumbers>
void store_rows(Stream stream, const CacheShape& shape, E* cache, const E* qkv, const int32_t* sequences,
                const int32_t* positions) {
    constexpr int64_t kMostBlocks = 8 * kEnoughBlocks;
    const int64_t blocks = ceil_div(shape.rows * 2 * shape.C / kNumbers, 2 * kThreads);
    auto* const kernel = store_kernel<E, kNumbers>;
    MG_LAUNCH(kernel, dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks)), dim3(2 * kThreads), 0,
              stream, shape, cache, qkv, sequences, positions);
}

template <typename E, int kNumbers, int kLanes, int kPieces>
void attend(Stream stream, const CacheShape& shape, E* out, void* scratch, const E* cache, const E* qkv,
            const int32_t* sequences, const int32_t* positions) {
    unsigned* const counters = static_cast<unsigned*>(scratch);
    float* const parts = reinterpret_cast<float*>(static_cast<char*>(scratch) + kCounterBytes);
    auto* const kernel = attend_kernel<E, kNumbers, kLanes, kPieces>;
    MG_LAUNCH(kernel, dim3(static_cast<unsigned>(shape.rows * shape.NH * shape.splits)), dim3(kThreads), 0, stream,
              shape, out, counters, parts, cache, qkv, sequences, positions);
}

}  // namespace

size_t cached_attention_scratch_bytes(int64_t rows, int64_t capacity, int64_t C, int64_t NH) {
    const int64_t splits = splits_of(rows, capacity, NH);
    if (splits == 1) return kCounterBytes;
    return kCounterBytes + sizeof(float) * static_cast<size_t>(rows * splits * (C + 2 * NH));
}

template <typename E>
void cached_attention(Stream stream, E* out, E* cache, const E* qkv, const int32_t* sequences, const int32_t* positions,
                      void* scratch, int64_t rows, int64_t capacity, int64_t C, int64_t NH) {
    constexpr int kNumbers = kWidest<E>;
    CacheShape shape;
    shape.rows = rows;
    shape.capacity = capacity;
    shape.splits = splits_of(rows, capacity, NH);
    shape.C = static_cast<int>(C);
    shape.NH = static_cast<int>(NH);
    shape.head_dim = static_cast<int>(C / NH);
    shape.scale = 1.0f / sqrtf(static_cast<float>(shape.head_dim));
    const bool whole_pieces = shape.head_dim % kNumbers == 0 && is_aligned(cache, 16) && is_aligned(qkv, 16);
    if (whole_pieces)
        store_rows<E, kNumbers>(stream, shape, cache, qkv, sequences, positions);
    else
        store_rows<E, 1>(stream, shape, cache, qkv, sequences, positions);
    const int pieces = whole_pieces ? shape.head_dim / kNumbers : 0;
    auto* kernel = attend<E, 1, 32, 4>;  // any width, number by number
    if (pieces > 0 && pieces <= 4) kernel = attend<E, kNumbers, 4, 1>;
    if (pieces > 4 && pieces <= 8) kernel = attend<E, kNumbers, 8, 1>;
    if (pieces > 8 && pieces <= 16) kernel = attend<E, kNumbers, 16, 1>;
    if (pieces > 16 && pieces <= 32) kernel = attend<E, kNumbers, 32, 1>;
    if (pieces > 32) kernel = attend<E, kNumbers, 32, 2>;  // in several rounds where 64 pieces are not enough
    kernel(stream, shape, out, scratch, cache, qkv, sequences, positions);
}

template void cached_attention(Stream, float*, float*, const float*, const int32_t*, const int32_t*, void*, int64_t,
                               int64_t, int64_t, int64_t);
template void cached_attention(Stream, Bf16*, Bf16*, const Bf16*, const int32_t*, const int32_t*, void*, int64_t,
                               int64_t, int64_t, int64_t);

}  // namespace mg::cuda
