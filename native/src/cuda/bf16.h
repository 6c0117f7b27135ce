// A bfloat16 number as the host and the kernels pass it around: its bits.  element.h knows how to compute with it.
#pragma once

#include <cstdint>

namespace mg::cuda {

struct Bf16 {
    uint16_t bits;
};

}  // namespace mg::cuda
