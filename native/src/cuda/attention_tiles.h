// Tiles of bfloat16 rows in shared memory as operands of the tensor cores: how they are laid out, filled, multiplied, written.
//
// A row of kDim numbers is cut in pieces of 8 (16 bytes).  ldmatrix reads the same piece of 8 consecutive rows at once, and
// without further care these would lie in the same banks where a row is 128 bytes or a multiple of that.  So the pieces of a row
// are permuted by the row's number: piece p of row r is kept at p ^ f(r).  A bank line is 128 bytes: 8 pieces.  With 64 (or 128)
// numbers a row, f(r) = r % 8 gives 8 consecutive rows 8 different places; with 32 (or 96), two rows start in different
// halves of a line and f(r) = r / 2 % 4 takes care of the rest; with 16, four rows share a line and f(r) = r / 4 % 2 does.  cp.async
// and the final stores touch the pieces of a row, in whatever order: no conflicts either.
#pragma once

#include "cuda/attention_shape.h"
#include "cuda/element.h"
#include "cuda/ptx.h"

namespace mg::cuda {

constexpr int kTileThreads = 128;  // of a block that works on tiles: 4 warps
constexpr int kTileWarps = kTileThreads / kWarp;
constexpr int kPiece = 8;

template <int kDim>
struct TileLayout {
    static constexpr unsigned kPieces = kDim / kPiece;
    static constexpr unsigned kRowsInLine = kPieces % 8 == 0 ? 1 : kPieces % 4 == 0 ? 2 : 4;
    static constexpr unsigned kPlaces = 8 / kRowsInLine;
    static_assert(kDim % 16 == 0, "a step of the tensor cores takes 16 numbers");

    // How many rows a block fills at once; a multiple of 8, so that a thread's pieces all have the same place in their rows.
    static constexpr unsigned kRowsAtOnce = kTileThreads / kPieces / 8 * 8;

    static __device__ __forceinline__ unsigned at(unsigned row, unsigned piece) {
        // The upper bits of `piece` apart, which is known to the compiler where `piece` is but for its lowest bit.
        const unsigned in_line = piece % kPlaces ^ row / kRowsInLine % kPlaces;
        return row * kDim + piece / kPlaces * (kPlaces * kPiece) + in_line * kPiece;
    }
};

__device__ __forceinline__ unsigned lane_of_thread() { return threadIdx.x % kWarp; }

struct alignas(16) PieceBits {
    unsigned words[4];
};

// Starts to fill a tile with kRows rows of head_dim numbers, `stride` apart; what lies beyond row `rows` or head_dim is 0.  Whole
// pieces are copied asynchronously.  Heads of odd widths go through registers, number by number.
template <int kDim, int kRows>
__device__ __forceinline__ void load_tile(Bf16* tile, const Bf16* from, int stride, int rows, int head_dim,
                                          bool whole_pieces) {
    using Layout = TileLayout<kDim>;
    constexpr int kAtOnce = Layout::kRowsAtOnce;
    static_assert(kRows % kAtOnce == 0, "a whole number of passes");
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / static_cast<int>(Layout::kPieces), piece = thread % static_cast<int>(Layout::kPieces);
    if (row >= kAtOnce) return;
    const int left = head_dim - piece * kPiece;
    const Bf16* source = from + (row * stride + piece * kPiece);  // within a tile 32 bits do
    Bf16* const to = tile + Layout::at(row, piece);
    if (whole_pieces) {
#pragma unroll
        for (int i = 0; i < kRows; i += kAtOnce) {
            const bool valid = row + i < rows && left > 0;
            cp_async_16(to + i * kDim, valid ? source : from, valid);
            source += kAtOnce * stride;
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < kRows; i += kAtOnce) {
            PieceBits bits;
#pragma unroll
            for (int j = 0; j < kPiece; j += 2) {
                const unsigned low = row + i < rows && j < left ? source[j].bits : 0u;
                const unsigned high = row + i < rows && j + 1 < left ? source[j + 1].bits : 0u;
                bits.words[j / 2] = low | high << 16;
            }
            *reinterpret_cast<PieceBits*>(to + i * kDim) = bits;
            source += kAtOnce * stride;
        }
    }
}

// Where this lane's row of an ldmatrix_x4 lies, for 16 rows and 16 numbers from `row` and `piece` on.  Along the rows first: the
// registers get rows 0-7, rows 8-15, and the same of the second piece, as a left operand wants it.  (lane l: row l % 16, piece l / 16)
template <int kDim>
__device__ __forceinline__ unsigned rows_first(unsigned row, unsigned piece) {
    const unsigned lane = lane_of_thread();
    return TileLayout<kDim>::at(row + lane % 16, piece + lane / 16);
}
// Along the numbers first: both pieces of rows 0-7, then both of rows 8-15.
template <int kDim>
__device__ __forceinline__ unsigned pieces_first(unsigned row, unsigned piece) {
    const unsigned lane = lane_of_thread();
    return TileLayout<kDim>::at(row + lane / 16 * 8 + lane % 8, piece + lane / 8 % 2);
}

// 16 kBlocks rows as left operands, held in registers from one load on ...
template <int kDim, int kBlocks>
struct HeldRows {
    static constexpr int kStepsTogether = kDim / 16;
    unsigned operands[kDim / 16][kBlocks][4];

    __device__ __forceinline__ void load(const Bf16* tile, unsigned row) {
#pragma unroll
        for (int step = 0; step < kDim / 16; ++step)
#pragma unroll
            for (int m = 0; m < kBlocks; ++m)
                ldmatrix_x4(operands[step][m], tile + rows_first<kDim>(row + 16 * m, 2 * step));
    }
    __device__ __forceinline__ void get(unsigned (&left)[4], int step, int m) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) left[i] = operands[step][m][i];
    }
};

// ... or read from their tile again each time, where the registers are needed for more.  Unrolling 2 steps, and no more, keeps the
// compiler from filling them with what comes later.
template <int kDim, int kBlocks>
struct SharedRows {
    static constexpr int kStepsTogether = 2;
    const Bf16* tile;
    unsigned row;

    __device__ __forceinline__ void load(const Bf16* from, unsigned first) {
        tile = from;
        row = first;
    }
    __device__ __forceinline__ void get(unsigned (&left)[4], int step, int m) const {
        ldmatrix_x4(left, tile + rows_first<kDim>(row + 16 * m, 2 * step));
    }
};

template <int kBlocks, int kColumns>
using Sums = float[kBlocks][kColumns / 8][4];

template <int kBlocks, int kColumns>
__device__ __forceinline__ void clear(Sums<kBlocks, kColumns>& sums) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0f;
}

// sums = left rows times kRows rows of a tile: dot products over kDim.  The tile's rows are the columns of the right operand, so
// ldmatrix needs no transposition.  One load gives two blocks of 8 rows; an operand's two registers have to be neighbours, hence its
// order.
template <int kDim, int kBlocks, int kRows, typename Left>
__device__ __forceinline__ void dot_rows(Sums<kBlocks, kRows>& sums, const Left& left, const Bf16* tile) {
    clear<kBlocks, kRows>(sums);
#pragma unroll Left::kStepsTogether
    for (int step = 0; step < kDim / 16; ++step) {
        unsigned a[kBlocks][4];
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) left.get(a[m], step, m);
#pragma unroll
        for (int n = 0; n < kRows / 8; n += 2) {
            unsigned b[4];
            ldmatrix_x4(b, tile + pieces_first<kDim>(8 * n, 2 * step));
            const unsigned first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
#pragma unroll
            for (int m = 0; m < kBlocks; ++m) {
                mma_bf16_16816(sums[m][n], a[m], first);
                mma_bf16_16816(sums[m][n + 1], a[m], second);
            }
        }
    }
}

// sums += weights times kRows rows of a tile: weighted sums of rows.  `weights` are what pack_weights made of an earlier product.
// The tile's rows are the rows of the right operand: ldmatrix transposes, and one load gives two blocks of 8 columns.
template <int kDim, int kBlocks, int kRows>
__device__ __forceinline__ void add_rows(Sums<kBlocks, kDim>& sums, const unsigned (&weights)[kBlocks][kRows / 16][4],
                                         const Bf16* tile) {
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
#pragma unroll
        for (int n = 0; n < kDim / 8; n += 2) {
            unsigned b[4];
            ldmatrix_x4_trans(b, tile + rows_first<kDim>(16 * step, n));
            const unsigned first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
#pragma unroll
            for (int m = 0; m < kBlocks; ++m) {
                mma_bf16_16816(sums[m][n], weights[m][step], first);
                mma_bf16_16816(sums[m][n + 1], weights[m][step], second);
            }
        }
    }
}

// Products as left operands of the next product.  Lane 4 g + t holds columns 2 t and 2 t + 1 of rows g and g + 8 of each block of
// 8 columns, and as a left operand the same of two such blocks: nothing has to change lanes.
template <int kBlocks, int kColumns>
__device__ __forceinline__ void pack_weights(unsigned (&weights)[kBlocks][kColumns / 16][4],
                                             const Sums<kBlocks, kColumns>& sums) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
            weights[m][n / 2][n % 2 * 2] = pack_bf16(sums[m][n][0], sums[m][n][1]);
            weights[m][n / 2][n % 2 * 2 + 1] = pack_bf16(sums[m][n][2], sums[m][n][3]);
        }
}

// The sum, or the largest, over the 4 lanes that hold a row.
__device__ __forceinline__ float row_sum(float value) {
    value += __shfl_xor_sync(kAllLanes, value, 1);
    return value + __shfl_xor_sync(kAllLanes, value, 2);
}
__device__ __forceinline__ float row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
    return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

// Rounds a warp's sums and writes the first `rows` rows, `stride` apart.  Row 16 m + 8 h + g is multiplied by factors[m][h].  They
// go through the warp's own rows of a tile, from `row` on, so that each store is 16 bytes of consecutive memory.
template <int kDim, int kBlocks>
__device__ __forceinline__ void store_rows(Bf16* to, int stride, Bf16* tile, unsigned row,
                                           const Sums<kBlocks, kDim>& sums, const float (&factors)[kBlocks][2],
                                           int rows, int head_dim, bool whole_pieces) {
    using Layout = TileLayout<kDim>;
    const unsigned lane = lane_of_thread();
    __syncwarp();  // the other lanes no longer read these rows
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                Bf16* at = tile + Layout::at(row + 16 * m + 8 * h + lane / 4, n) + lane % 4 * 2;
                *reinterpret_cast<unsigned*>(at) =
                    pack_bf16(sums[m][n][2 * h] * factors[m][h], sums[m][n][2 * h + 1] * factors[m][h]);
            }
    __syncwarp();
#pragma unroll 4
    for (unsigned index = lane; index < 16 * kBlocks * Layout::kPieces; index += kWarp) {
        const int r = static_cast<int>(index / Layout::kPieces), piece = static_cast<int>(index % Layout::kPieces);
        const int left = r < rows ? head_dim - piece * kPiece : 0;
        const Bf16* from = tile + Layout::at(row + r, piece);
        Bf16* at = to + static_cast<int64_t>(r) * stride + piece * kPiece;
        if (whole_pieces) {
            if (left > 0) *reinterpret_cast<PieceBits*>(at) = *reinterpret_cast<const PieceBits*>(from);
        } else {
            for (int i = 0; i < (left < kPiece ? left : kPiece); ++i) at[i] = from[i];
        }
    }
}

}  // namespace mg::cuda
