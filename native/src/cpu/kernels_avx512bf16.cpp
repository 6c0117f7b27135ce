// The kernels for AVX-512 F with its bfloat16 dot products; compiled for AVX2 they compute the same by shifts.
#define MG_VECTOR_WIDTH 16
#define MG_ISA "avx512bf16"
#define MG_KERNELS kernels_avx512bf16
#define MG_BF16_PAIRS
#if defined(__AVX512BF16__)
#define MG_BF16_DOT
#endif
#include "cpu/kernels.inc"
