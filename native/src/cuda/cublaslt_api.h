// The part of cuBLASLt's interface that gemm.cpp uses, declared by ourselves: the library is opened at run time, so that building
// needs none of its headers and a machine without a GPU none of its 500 MB.  cublaslt_check.cpp holds these declarations against
// the real header; values are the interface's own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace mg::cuda::cublaslt {

enum class Status : uint32_t { success = 0, not_supported = 15 };
enum class DataType : uint32_t { real_32f = 0, real_16bf = 14 };
enum class ComputeType : uint32_t { float_32 = 68 };  // products and sums in float32: no TF32
enum class Operation : int32_t { none = 0, transpose = 1 };

enum class DescAttribute : uint32_t {
    transpose_a = 3,      // Operation
    transpose_b = 4,      // Operation
    epilogue = 7,         // EpilogueKind
    bias_pointer = 8,     // const void*, or void* of a bias gradient
    aux_pointer = 11,     // void*: the GELU's input
    aux_stride = 12,      // int64_t
    bias_data_type = 26,  // int32_t of a DataType
};

enum class EpilogueKind : uint32_t {
    none = 1,
    bias = 4,
    gelu_aux = 32 | 128,           // aux = A B; D = gelu(aux)
    gelu_aux_bias = 32 | 128 | 4,  // aux = A B + bias; D = gelu(aux)
    gelu_backward = 64 | 128,      // D = A B gelu'(aux)
    bias_gradient_b = 512,         // bias = sums of B over the depth, one for each column of D
};

enum class PreferenceAttribute : uint32_t {
    max_workspace_bytes = 1,    // uint64_t
    reduction_scheme_mask = 3,  // uint32_t
    min_alignment_a = 5,        // uint32_t, bytes
    min_alignment_b = 6,
    min_alignment_c = 7,
    min_alignment_d = 8,
};

// Where a long depth is split, partial sums are kept in the compute type, float32, and added up in a fixed order.  The schemes
// that are left out round partial sums to the output's type.
constexpr uint32_t kReductionInComputeType = 2;

struct Context;
struct MatmulDescription;
struct MatrixLayout;
struct MatmulPreference;
using Handle = Context*;
using Description = MatmulDescription*;
using Layout = MatrixLayout*;
using Preference = MatmulPreference*;

struct Algorithm {
    uint64_t data[8];
};

struct HeuristicResult {
    Algorithm algorithm;
    size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};

// X(member of Functions, name in the library, result, parameters)
#define MG_CUBLASLT_FUNCTIONS(X)                                                                                  \
    X(create, cublasLtCreate, Status, (Handle*))                                                                  \
    X(destroy, cublasLtDestroy, Status, (Handle))                                                                 \
    X(version, cublasLtGetVersion, size_t, ())                                                                    \
    X(status_name, cublasLtGetStatusName, const char*, (Status))                                                  \
    X(description_create, cublasLtMatmulDescCreate, Status, (Description*, ComputeType, DataType))                \
    X(description_destroy, cublasLtMatmulDescDestroy, Status, (Description))                                      \
    X(description_set, cublasLtMatmulDescSetAttribute, Status, (Description, DescAttribute, const void*, size_t)) \
    X(layout_create, cublasLtMatrixLayoutCreate, Status,                                                          \
      (Layout*, DataType, uint64_t rows, uint64_t columns, int64_t stride))                                       \
    X(layout_destroy, cublasLtMatrixLayoutDestroy, Status, (Layout))                                              \
    X(preference_create, cublasLtMatmulPreferenceCreate, Status, (Preference*))                                   \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy, Status, (Preference))                                  \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute, Status,                                               \
      (Preference, PreferenceAttribute, const void*, size_t))                                                     \
    X(heuristic, cublasLtMatmulAlgoGetHeuristic, Status,                                                          \
      (Handle, Description, Layout a, Layout b, Layout c, Layout d, Preference, int wanted, HeuristicResult*,     \
       int* found))                                                                                               \
    X(matmul, cublasLtMatmul, Status,                                                                             \
      (Handle, Description, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta,    \
       const void* c, Layout, void* d, Layout, const Algorithm*, void* workspace, size_t workspace_bytes,         \
       cudaStream_t))

struct Functions {
#define MG_MEMBER(member, name, result, parameters) result(*member) parameters;
    MG_CUBLASLT_FUNCTIONS(MG_MEMBER)
#undef MG_MEMBER
};

}  // namespace mg::cuda::cublaslt
