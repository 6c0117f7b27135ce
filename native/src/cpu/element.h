// The numbers of a precision as they lie in memory: float, or bfloat16, the upper half of a float.
#pragma once

#include <cstdint>

namespace mg::cpu {

struct Bf16 {
    uint16_t bits;
};

}  // namespace mg::cpu
