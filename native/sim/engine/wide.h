// Arithmetic on eight floats at once, as wide as the machine has, whatever the file is compiled for.
#pragma once

namespace mgsim {

typedef float Eight __attribute__((vector_size(32), may_alias));

}  // namespace mgsim

#if defined(__x86_64__) && !defined(__AVX2__)
#define MGSIM_FOR_THIS_MACHINE __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define MGSIM_FOR_THIS_MACHINE
#endif
