// Holds cublaslt_api.h against cuBLASLt's own header, where that is installed: every function's parameters, every value, and the
// layout of what both sides fill in.  Compiles to nothing.
#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

#include "cuda/cublaslt_api.h"

namespace mg::cuda::cublaslt {
namespace {

// Whether a value of type A can be passed where a function takes a B: the same type; two enumerations (or an enumeration and the
// integer that stands for it) of one size; pointers to what is equally const and, where both are known, equally large.
template <typename T, typename = void>
constexpr size_t kSize = 0;
template <typename T>
constexpr size_t kSize<T, std::void_t<decltype(sizeof(T))>> = std::is_void_v<T> ? 0 : sizeof(T);

template <typename A, typename B>
constexpr bool passes_as() {
    if constexpr (std::is_same_v<A, B>) {
        return true;
    } else if constexpr (std::is_enum_v<A> && (std::is_enum_v<B> || std::is_integral_v<B>)) {
        return sizeof(A) == sizeof(B);
    } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
        using To = std::remove_pointer_t<A>;
        using RealTo = std::remove_pointer_t<B>;
        if constexpr (std::is_const_v<To> != std::is_const_v<RealTo> || std::is_void_v<To> != std::is_void_v<RealTo>)
            return false;
        else if constexpr (std::is_pointer_v<To> || std::is_enum_v<To>)
            return passes_as<std::remove_cv_t<To>, std::remove_cv_t<RealTo>>();
        else  // a class: ours may be a name alone
            return std::is_class_v<To> && std::is_class_v<RealTo> && (kSize<To> == 0 || kSize<To> == kSize<RealTo>);
    } else {
        return false;
    }
}

template <typename Own, typename Real>
struct Same : std::false_type {};
template <typename OwnResult, typename... Own, typename RealResult, typename... Real>
struct Same<OwnResult (*)(Own...), RealResult (*)(Real...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(Own) == sizeof...(Real))
            return passes_as<OwnResult, RealResult>() && (passes_as<Own, Real>() && ...);
        else
            return false;
    }();
};

#define MG_SAME_FUNCTION(member, name, result, parameters) \
    static_assert(Same<result(*) parameters, decltype(&::name)>::value, #name);
MG_CUBLASLT_FUNCTIONS(MG_SAME_FUNCTION)
#undef MG_SAME_FUNCTION

#define MG_SAME_VALUE(own, real) static_assert(static_cast<long long>(own) == static_cast<long long>(real), #real)
MG_SAME_VALUE(Status::success, CUBLAS_STATUS_SUCCESS);
MG_SAME_VALUE(Status::not_supported, CUBLAS_STATUS_NOT_SUPPORTED);
MG_SAME_VALUE(DataType::real_32f, CUDA_R_32F);
MG_SAME_VALUE(DataType::real_16bf, CUDA_R_16BF);
MG_SAME_VALUE(ComputeType::float_32, CUBLAS_COMPUTE_32F);
MG_SAME_VALUE(Operation::none, CUBLAS_OP_N);
MG_SAME_VALUE(Operation::transpose, CUBLAS_OP_T);
MG_SAME_VALUE(DescAttribute::transpose_a, CUBLASLT_MATMUL_DESC_TRANSA);
MG_SAME_VALUE(DescAttribute::transpose_b, CUBLASLT_MATMUL_DESC_TRANSB);
MG_SAME_VALUE(DescAttribute::epilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
MG_SAME_VALUE(DescAttribute::bias_pointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
MG_SAME_VALUE(DescAttribute::aux_pointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
MG_SAME_VALUE(DescAttribute::aux_stride, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
MG_SAME_VALUE(DescAttribute::bias_data_type, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
MG_SAME_VALUE(EpilogueKind::none, CUBLASLT_EPILOGUE_DEFAULT);
MG_SAME_VALUE(EpilogueKind::bias, CUBLASLT_EPILOGUE_BIAS);
MG_SAME_VALUE(EpilogueKind::gelu_aux_bias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
MG_SAME_VALUE(EpilogueKind::gelu_aux, CUBLASLT_EPILOGUE_GELU_AUX);
MG_SAME_VALUE(EpilogueKind::gelu_backward, CUBLASLT_EPILOGUE_DGELU);
MG_SAME_VALUE(EpilogueKind::bias_gradient_b, CUBLASLT_EPILOGUE_BGRADB);
MG_SAME_VALUE(PreferenceAttribute::max_workspace_bytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
MG_SAME_VALUE(PreferenceAttribute::reduction_scheme_mask, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
MG_SAME_VALUE(PreferenceAttribute::min_alignment_a, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
MG_SAME_VALUE(PreferenceAttribute::min_alignment_b, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
MG_SAME_VALUE(PreferenceAttribute::min_alignment_c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
MG_SAME_VALUE(PreferenceAttribute::min_alignment_d, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
MG_SAME_VALUE(kReductionInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
#undef MG_SAME_VALUE

using RealResult = cublasLtMatmulHeuristicResult_t;
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t), "Algorithm");
static_assert(sizeof(HeuristicResult) == sizeof(RealResult), "HeuristicResult");
static_assert(offsetof(HeuristicResult, algorithm) == offsetof(RealResult, algo), "algorithm");
static_assert(offsetof(HeuristicResult, workspace_bytes) == offsetof(RealResult, workspaceSize), "workspace_bytes");
static_assert(offsetof(HeuristicResult, state) == offsetof(RealResult, state), "state");
static_assert(offsetof(HeuristicResult, waves) == offsetof(RealResult, wavesCount), "waves");

}  // namespace
}  // namespace mg::cuda::cublaslt
