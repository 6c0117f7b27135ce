// Random numbers that depend on nothing but (seed, stream, index): the same bits on every machine, in any order.
#pragma once

#include <cstdint>
#include <string>

namespace mg {

// A stream's number from its name (FNV-1a), so that a tensor's values don't depend on its place in the table.
uint64_t stream_of(const std::string& name);

// Fills values[i] with std * N(0, 1) sample number begin + i of the stream.
void fill_normal(float* values, int64_t begin, int64_t count, float std, uint64_t seed, uint64_t stream);

}  // namespace mg
