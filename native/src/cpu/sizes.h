// Counting in the CPU backend: tasks, bytes, and what an Element is in precision E.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend.h"

namespace mg::cpu {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline size_t floats_bytes(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

inline size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Task sizes.  They never depend on the number of threads where a task ends in a partial sum.
constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kColumnsPerTask = 32;
constexpr int64_t kNumbersPerTask = int64_t{1} << 15;

// Rows of a chunk whose partial sums are added up in order: at most 64 chunks of at least 32 rows, however many threads.
inline int64_t sum_chunk_rows(int64_t N) { return N <= 64 * 32 ? 32 : ceil_div(N, 64); }

// So many first tokens of a sequence, read at once, attend to each other as a sequence does in training.
constexpr int64_t kPromptRows = 32;

// How many of the rows, from the first on, are the first tokens of one sequence.
inline int64_t rows_from_0(const int32_t* sequences, const int32_t* positions, int64_t rows) {
    int64_t count = 0;
    while (count < rows && sequences[count] == sequences[0] && positions[count] == count) ++count;
    return count;
}

template <typename E>
const E* elements(const Element* x) {
    return reinterpret_cast<const E*>(x);
}

template <typename E>
E* elements(Element* x) {
    return reinterpret_cast<E*>(x);
}

}  // namespace mg::cpu
