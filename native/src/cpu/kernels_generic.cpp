// The kernels for the compiler's baseline: SSE2 on x86-64, NEON on arm64, whatever it assumes elsewhere.
#define MG_VECTOR_WIDTH 4
#define MG_ISA "generic"
#define MG_KERNELS kernels_generic
#include "cpu/kernels.inc"
