// Stands in for the toolkit's header of this name: with native/sim/include first on the include path, a .cu file is plain C++ that
// g++ compiles, and its kernels run on the CPU, one fiber for each CUDA thread.  For tests alone; the product uses the toolkit's.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda_runtime_api.h"
#include "sim_kernel.h"
#include "sim_launch.h"
#include "sim_math.h"
#include "sim_atomics.h"
#include "sim_warp.h"
#include "vector_types.h"
