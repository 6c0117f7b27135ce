// Which of the compiled kernel sets this process uses.
#pragma once

#include "cpu/kernels.h"

namespace mg::cpu {

// The best set that this CPU can run, or the one MICROGPT_ISA names.  Raises MG_ERROR_DEVICE where that can't be honoured.
const KernelSet& kernel_set();

template <typename E>
const Kernels<E>& kernels() {
    if constexpr (sizeof(E) == sizeof(float))
        return *kernel_set().fp32;
    else
        return *kernel_set().bf16;
}

// Names of the sets that this build and CPU both have, separated by spaces, best last.
const char* available_isas();

}  // namespace mg::cpu
