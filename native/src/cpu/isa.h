// Which of the compiled kernel tables this process uses.
#pragma once

#include "cpu/kernels.h"

namespace mg::cpu {

// The best table that this CPU can run, or the one MICROGPT_ISA names.  Raises MG_ERROR_DEVICE where that can't be honoured.
const Kernels& kernels();

// Names of the tables that this build and CPU both have, separated by spaces, best last.
const char* available_isas();

}  // namespace mg::cpu
