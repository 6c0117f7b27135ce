// The product for few rows, as in decoding: every weight is read once, in place.  What counts is how fast memory can be read, so
// several rows of the weight are read side by side: as many streams as the memory system likes.
#pragma once

#include "cpu/ops/product.h"

namespace {

// bfloat16 weights are read as pairs on every CPU: taking a vector of pairs apart costs less than widening two vectors.
template <typename E>
struct FewRowsWordsOf {
    using type = SingleWords<float>;
};
template <>
struct FewRowsWordsOf<Bf16> {
    using type = PairWords;
};
template <typename E>
using FewRowsWords = typename FewRowsWordsOf<E>::type;

constexpr int64_t kFewRows = 16;
constexpr int kRowsTogether = 4;
constexpr int kStreams = 4;

// Words of a row of A, in whole vectors.
template <typename E>
int64_t few_rows_words(int64_t depth) {
    return round_up(groups_of<FewRowsWords<E>>(depth), kWidth);
}

// A's rows as words, once for all columns.
template <typename E>
void pack_few_rows(float* words, const Product<E>& p) {
    using W = FewRowsWords<E>;
    const int64_t row_words = few_rows_words<E>(p.K);
    for (int64_t i = 0; i < p.M; ++i)
        for (int64_t g = 0; g < row_words; g += kWidth)
            store(words + i * row_words + g, W::along(p.a + i * p.a_row + g * W::kDepth, p.K - g * W::kDepth));
}

// A sum has one order, however many rows and streams are taken together.
// totals[stream][row][place] = words of ROWS rows . one row of the weight in each of STREAMS streams.
template <typename E, int ROWS, int STREAMS, typename Source>
inline void dot_products(float* totals, int place, const float* words, int64_t row_words, const Source* weight,
                         int64_t stream_stride, int64_t K) {
    using W = FewRowsWords<E>;
    constexpr int64_t kStep = kWidth * W::kDepth;
    Vector sums[ROWS][STREAMS] = {};
    int64_t k = 0;
    for (; k + kStep <= K; k += kStep, words += kWidth)
        for (int j = 0; j < STREAMS; ++j) {
            const Vector w = W::along(weight + j * stream_stride + k, kStep);
            for (int i = 0; i < ROWS; ++i) sums[i][j] = W::multiply_add(load(words + i * row_words), w, sums[i][j]);
        }
    for (; k < K; k += kStep, words += kWidth)
        for (int j = 0; j < STREAMS; ++j) {
            const Vector w = W::along(weight + j * stream_stride + k, K - k);
            for (int i = 0; i < ROWS; ++i) sums[i][j] = W::multiply_add(load(words + i * row_words), w, sums[i][j]);
        }
    for (int j = 0; j < STREAMS; ++j)
        for (int i = 0; i < ROWS; ++i) totals[(j * ROWS + i) * kWidth + place] = sum_lanes(sums[i][j]);
}

// ROWS rows meet columns [begin, end) of the result, which are rows of the weight.
template <typename E, int ROWS, int STREAMS, typename Source>
inline int64_t few_rows_in_streams(const Product<E>& p, const float* words, const Source* weight, int64_t row,
                                   int64_t begin, int64_t end) {
    const int64_t row_words = few_rows_words<E>(p.K);
    const int64_t apart = STREAMS == 1 ? end - begin : (end - begin) / STREAMS / kWidth * kWidth;
    for (int64_t column = begin; column < begin + apart; column += kWidth) {
        const int64_t columns = smaller(begin + apart - column, kWidth);
        float totals[STREAMS * ROWS * kWidth] = {};
        for (int64_t j = 0; j < columns; ++j)
            dot_products<E, ROWS, STREAMS>(totals, static_cast<int>(j), words + row * row_words, row_words,
                                           weight + (column + j) * p.K, apart * p.K, p.K);
        for (int s = 0; s < STREAMS; ++s)
            for (int i = 0; i < ROWS; ++i) {
                const int64_t at = column + s * apart;
                finish_vector(p, load(totals + (s * ROWS + i) * kWidth), (row + i) * p.N + at, at, columns);
            }
    }
    return begin + STREAMS * apart;
}

template <typename E, int ROWS, typename Source>
inline void few_rows_of_columns(const Product<E>& p, const float* words, const Source* weight, int64_t row,
                                int64_t begin, int64_t end) {
    constexpr int kTogether = ROWS > 2 ? kStreams / 2 : kStreams;  // as many as leave the sums in registers
    begin = few_rows_in_streams<E, ROWS, kTogether>(p, words, weight, row, begin, end);
    few_rows_in_streams<E, ROWS, 1>(p, words, weight, row, begin, end);
}

// C's columns [column_begin, column_end) from the rows of weight[N, K].
template <typename E, typename Source>
void product_few_rows(const Product<E>& p, const float* words, const Source* weight, int64_t column_begin,
                      int64_t column_end) {
    // The weight of a piece stays in cache while all rows meet it.
    const int64_t piece = p.M <= kRowsTogether ? column_end - column_begin : kStreams * kWidth;
    for (int64_t column = column_begin; column < column_end; column += piece) {
        const int64_t end = smaller(column + piece, column_end);
        for (int64_t row = 0; row < p.M; row += kRowsTogether) {
            const int64_t rows = smaller(p.M - row, kRowsTogether);
            if (rows == 1)
                few_rows_of_columns<E, 1>(p, words, weight, row, column, end);
            else if (rows == 2)
                few_rows_of_columns<E, 2>(p, words, weight, row, column, end);
            else if (rows == 3)
                few_rows_of_columns<E, 3>(p, words, weight, row, column, end);
            else
                few_rows_of_columns<E, 4>(p, words, weight, row, column, end);
        }
    }
}

}  // namespace
