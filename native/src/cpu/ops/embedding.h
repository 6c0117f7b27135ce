// Token and position embedding.
//   forward   out[row] = wte[tokens[row]] + wpe[position of row]
//   backward  dwte[tokens[row]] += dout[row]; dwpe[position of row] += dout[row]
#pragma once

#include "cpu/ops/vector.h"

namespace {

inline void embedding_forward(float* out, const int32_t* tokens, const int32_t* positions, const float* wte,
                              const float* wpe, int64_t row_begin, int64_t row_end, int64_t T, int64_t C) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float* token = wte + tokens[row] * C;
        const float* position = wpe + (positions != nullptr ? positions[row] : row % T) * C;
        for (int64_t c = 0; c < C; ++c) out[row * C + c] = token[c] + position[c];
    }
}

// A task owns columns, not rows: two rows with the same token never meet in two threads, and each sum has one order.
inline void embedding_backward(float* dwte, float* dwpe, const float* dout, const int32_t* tokens, int64_t N, int64_t T,
                               int64_t C, int64_t column_begin, int64_t column_end) {
    for (int64_t row = 0; row < N; ++row) {
        float* token = dwte + tokens[row] * C;
        float* position = dwpe + row % T * C;
        for (int64_t c = column_begin; c < column_end; ++c) {
            token[c] += dout[row * C + c];
            position[c] += dout[row * C + c];
        }
    }
}

}  // namespace
