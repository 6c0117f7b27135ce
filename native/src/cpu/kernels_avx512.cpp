// The kernels for AVX-512 F.
#define MG_VECTOR_WIDTH 16
#define MG_ISA "avx512"
#define MG_KERNELS kernels_avx512
#include "cpu/kernels.inc"
