// Runs a kernel's blocks, one after the other.
#pragma once

#include "sim_launch.h"

namespace mgsim {

void run_grid(const KernelCall& call);

}  // namespace mgsim
