#include "cuda/gemm.h"

#include <algorithm>

#include "cuda/cublaslt_loader.h"
#include "cuda/launch_count.h"
#include "error.h"

namespace mg::cuda {
namespace {

using namespace cublaslt;

constexpr size_t kMostPlans = 1024;  // decoding meets many row counts; a plan is small, but not free

DataType type_of(NumberType type) { return type == NumberType::fp32 ? DataType::real_32f : DataType::real_16bf; }

// The largest power of two up to 256 that the address is a multiple of; 256 where there is none.
uint32_t alignment(const void* pointer) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer) | 256;
    return static_cast<uint32_t>(address & (~address + 1));
}

EpilogueKind kind_of(const MatrixProduct& p) {
    switch (p.epilogue) {
        case Epilogue::bias: return EpilogueKind::bias;
        case Epilogue::gelu: return p.bias == nullptr ? EpilogueKind::gelu_aux : EpilogueKind::gelu_aux_bias;
        case Epilogue::gelu_backward: return EpilogueKind::gelu_backward;
        case Epilogue::bias_gradient: return EpilogueKind::bias_gradient_b;
        default: return EpilogueKind::none;
    }
}

// The vector that the epilogue reads or writes, of a number for each column or row.
const void* vector_of(const MatrixProduct& p) {
    switch (p.epilogue) {
        case Epilogue::bias:
        case Epilogue::gelu: return p.bias;
        case Epilogue::bias_gradient: return p.bias_gradient;
        default: return nullptr;
    }
}

bool uses_hidden(Epilogue epilogue) { return epilogue == Epilogue::gelu || epilogue == Epilogue::gelu_backward; }

}  // namespace

Gemm::Gemm(Device& device) : device_(device), library_(cublaslt_functions()) {
    device_.stream();  // the handle belongs to the GPU that is current
    check(library_.create(&handle_), "cublasLtCreate");
    try {
        workspace_ = device_.allocate(workspace_bytes(device_.major()));
    } catch (...) {
        library_.destroy(handle_);
        throw;
    }
}

Gemm::~Gemm() {
    for (const auto& entry : plans_) destroy(entry.second);
    device_.release(workspace_);
    library_.destroy(handle_);
}

// What cuBLAS itself takes: 32 MiB from Hopper on, less before.
size_t Gemm::workspace_bytes(int major) { return (major >= 9 ? size_t{32} : size_t{8}) << 20; }

void Gemm::check(Status status, const char* call) const {
    if (status == Status::success) return;
    throw Error(MG_ERROR_DEVICE, format("%s: %s", call, library_.status_name(status)));
}

void Gemm::destroy(const Plan& plan) noexcept {
    for (Layout layout : {plan.a, plan.b, plan.out})
        if (layout != nullptr) library_.layout_destroy(layout);
    if (plan.description != nullptr) library_.description_destroy(plan.description);
}

Gemm::Key Gemm::key_of(const MatrixProduct& p) {
    return {p.rows,
            p.columns,
            p.depth,
            static_cast<int64_t>(p.in),
            static_cast<int64_t>(p.out_type),
            p.left.stride,
            p.left.transposed ? 1 : 0,
            p.right.stride,
            p.right.transposed ? 1 : 0,
            p.out_stride,
            static_cast<int64_t>(kind_of(p)),
            p.added == nullptr ? 0 : 1,
            alignment(p.left.at),
            alignment(p.right.at),
            alignment(p.added == nullptr ? p.out : p.added),
            alignment(p.out),
            alignment(vector_of(p)),
            alignment(p.hidden)};
}

void Gemm::set_pointers(const MatrixProduct& p, const Plan& plan) {
    if (const void* vector = vector_of(p))
        check(library_.description_set(plan.description, DescAttribute::bias_pointer, &vector, sizeof vector),
              "cublasLtMatmulDescSetAttribute");
    if (uses_hidden(p.epilogue))
        check(library_.description_set(plan.description, DescAttribute::aux_pointer, &p.hidden, sizeof p.hidden),
              "cublasLtMatmulDescSetAttribute");
}

Gemm::Plan Gemm::make_plan(const MatrixProduct& p) {
    Plan plan;
    try {
        check(library_.description_create(&plan.description, ComputeType::float_32, DataType::real_32f),
              "cublasLtMatmulDescCreate");
        const auto set = [&](DescAttribute attribute, const auto& value) {
            check(library_.description_set(plan.description, attribute, &value, sizeof value),
                  "cublasLtMatmulDescSetAttribute");
        };
        // cuBLASLt's A is right^T and its B is left^T: what lies in memory row-major is, read column-major, the transpose.
        set(DescAttribute::transpose_a, p.right.transposed ? Operation::transpose : Operation::none);
        set(DescAttribute::transpose_b, p.left.transposed ? Operation::transpose : Operation::none);
        if (p.epilogue != Epilogue::none) {
            set(DescAttribute::epilogue, kind_of(p));
            if (vector_of(p) != nullptr) set(DescAttribute::bias_data_type, static_cast<int32_t>(type_of(p.out_type)));
            if (uses_hidden(p.epilogue)) set(DescAttribute::aux_stride, p.columns);
            set_pointers(p, plan);  // the choice of an algorithm depends on their alignment
        }
        const auto layout = [&](Layout* made, NumberType type, int64_t rows, int64_t columns, int64_t stride) {
            check(library_.layout_create(made, type_of(type), static_cast<uint64_t>(columns),
                                         static_cast<uint64_t>(rows), stride),
                  "cublasLtMatrixLayoutCreate");
        };
        layout(&plan.a, p.in, p.right.transposed ? p.columns : p.depth, p.right.transposed ? p.depth : p.columns,
               p.right.stride);
        layout(&plan.b, p.in, p.left.transposed ? p.depth : p.rows, p.left.transposed ? p.rows : p.depth,
               p.left.stride);
        layout(&plan.out, p.out_type, p.rows, p.columns, p.out_stride);
        choose_algorithm(p, &plan);
    } catch (...) {
        destroy(plan);
        throw;
    }
    return plan;
}

void Gemm::choose_algorithm(const MatrixProduct& p, Plan* plan) {
    Preference preference = nullptr;
    check(library_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    Status status = Status::success;
    const auto set = [&](PreferenceAttribute attribute, const auto& value) {
        if (status == Status::success) status = library_.preference_set(preference, attribute, &value, sizeof value);
    };
    set(PreferenceAttribute::max_workspace_bytes, static_cast<uint64_t>(workspace_bytes(device_.major())));
    set(PreferenceAttribute::reduction_scheme_mask, kReductionInComputeType);
    set(PreferenceAttribute::min_alignment_a, alignment(p.right.at));
    set(PreferenceAttribute::min_alignment_b, alignment(p.left.at));
    set(PreferenceAttribute::min_alignment_c, alignment(p.added == nullptr ? p.out : p.added));
    set(PreferenceAttribute::min_alignment_d, alignment(p.out));
    if (status != Status::success) {
        library_.preference_destroy(preference);
        check(status, "cublasLtMatmulPreferenceSetAttribute");
    }
    HeuristicResult result{};
    int found = 0;
    status = library_.heuristic(handle_, plan->description, plan->a, plan->b, plan->out, plan->out, preference, 1,
                                &result, &found);
    library_.preference_destroy(preference);
    // Whatever it says against the product, it hasn't been started: the caller may have another way.
    plan->possible = status == Status::success && found > 0 && result.state == Status::success;
    plan->algorithm = result.algorithm;
}

bool Gemm::multiply(const MatrixProduct& p) {
    const cudaStream_t stream = device_.stream();
    const Key key = key_of(p);
    auto found = plans_.find(key);
    if (found == plans_.end()) {
        if (plans_.size() == kMostPlans) {
            for (const auto& entry : plans_) destroy(entry.second);
            plans_.clear();
        }
        found = plans_.emplace(key, make_plan(p)).first;
    }
    Plan& plan = found->second;
    if (!plan.possible) return false;
    set_pointers(p, plan);
    const float one = 1.0f, beta = p.added == nullptr ? 0.0f : 1.0f;
    const void* added = p.added == nullptr ? p.out : p.added;
    const Status status =
        library_.matmul(handle_, plan.description, &one, p.right.at, plan.a, p.left.at, plan.b, &beta, added, plan.out,
                        p.out, plan.out, &plan.algorithm, workspace_, workspace_bytes(device_.major()), stream);
    if (status != Status::success && p.epilogue != Epilogue::none && !plan.proven) {
        plan.possible = false;  // the choice of an algorithm promised too much
        return false;
    }
    if (status != Status::success)
        throw Error(MG_ERROR_DEVICE, format("cublasLtMatmul: %s for a product of [%lld, %lld] and [%lld, %lld]",
                                            library_.status_name(status), static_cast<long long>(p.rows),
                                            static_cast<long long>(p.depth), static_cast<long long>(p.depth),
                                            static_cast<long long>(p.columns)));
    plan.proven = true;
    count_launch();
    return true;
}

}  // namespace mg::cuda
