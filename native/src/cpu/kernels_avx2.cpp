// The kernels for AVX2 with FMA.
#define MG_VECTOR_WIDTH 8
#define MG_ISA "avx2"
#define MG_KERNELS kernels_avx2
#include "cpu/kernels.inc"
