// The stand-in for cuBLASLt: one product by hand, and what it refuses.

#include "selftest.h"

#include <string.h>

#include "cuda/cublaslt_api.h"

extern "C" void* mgsim_cublaslt_symbol(const char* name);

namespace {

using namespace mg::cuda::cublaslt;

constexpr Status kInvalid = static_cast<Status>(7);

Functions library() {
    Functions functions{};
#define LOAD(member, name, result, parameters) \
    functions.member = reinterpret_cast<decltype(functions.member)>(mgsim_cublaslt_symbol(#name));
    MG_CUBLASLT_FUNCTIONS(LOAD)
#undef LOAD
    return functions;
}

// out (2x3, column-major) = a (2x5) b (5x3) + bias, where a and b are the input's first numbers: a[i][k] = i + 2 k, b[k][j] = k + 5 j.
struct SmallProduct {
    explicit SmallProduct(Buffers& buffers) : f(library()), b(buffers) {
        expect(f.create(&handle) == Status::success, "a handle");
        f.description_create(&op, ComputeType::float_32, DataType::real_32f);
        f.layout_create(&la, DataType::real_32f, 2, 5, 2);
        f.layout_create(&lb, DataType::real_32f, 5, 3, 5);
        f.layout_create(&ld, DataType::real_32f, 2, 3, 2);
        f.preference_create(&preference);
        for (int i = 5; i <= 8; ++i) {
            const uint32_t alignment = 16;
            f.preference_set(preference, static_cast<PreferenceAttribute>(i), &alignment, sizeof alignment);
        }
    }
    template <typename T>
    Status set(DescAttribute attribute, const T& value) {
        return f.description_set(op, attribute, &value, sizeof value);
    }
    Status choose(HeuristicResult* result) {
        int found = 0;
        const Status status = f.heuristic(handle, op, la, lb, ld, ld, preference, 1, result, &found);
        return status == Status::success && found != 1 ? kInvalid : status;
    }
    Status run(const HeuristicResult& result, const float* a) {
        const float one = 1.0f, zero = 0.0f;
        return f.matmul(handle, op, &one, a, la, b.in, lb, &zero, b.out, ld, b.out, ld, &result.algorithm, nullptr, 0,
                        b.stream);
    }

    Functions f;
    Buffers& b;
    Handle handle = nullptr;
    Description op = nullptr;
    Layout la = nullptr, lb = nullptr, ld = nullptr;
    Preference preference = nullptr;
};

void product_with_bias(Buffers& b) {
    SmallProduct p(b);
    expect(p.set(DescAttribute::epilogue, EpilogueKind::bias) == Status::success, "an epilogue");
    const float* const bias = b.in + 100;  // 100, 101
    expect(p.set(DescAttribute::bias_pointer, bias) == Status::success, "a bias");
    HeuristicResult result{};
    expect(p.choose(&result) == Status::success && p.run(result, b.in) == Status::success, "the product is started");
}

void product_refusals(Buffers& b) {
    SmallProduct p(b);
    HeuristicResult result{};
    expect(p.choose(&result) == Status::success, "an algorithm");
    expect(p.run(result, b.in + 1) == kInvalid, "less alignment than was promised");
    expect(p.f.description_set(p.op, DescAttribute::aux_stride, &p, 4) == kInvalid, "an attribute of the wrong size");
    p.set(DescAttribute::epilogue, EpilogueKind::bias);
    expect(p.choose(&result) == Status::success && p.run(result, b.in) == kInvalid, "no bias");
    p.set(DescAttribute::bias_data_type, int32_t{14});
    expect(p.choose(&result) == Status::not_supported, "a bias of another type than the result");
    p.set(DescAttribute::bias_data_type, int32_t{-1});
    p.set(DescAttribute::epilogue, EpilogueKind::gelu_backward);
    p.set(DescAttribute::aux_stride, int64_t{2});
    expect(p.choose(&result) == Status::not_supported, "a stride of the GELU's input that 8 does not divide");
    p.set(DescAttribute::aux_stride, int64_t{8});
    expect(p.choose(&result) == Status::success && p.run(result, b.in) == kInvalid, "no memory for the GELU's input");
    Layout wide = nullptr;
    p.f.layout_create(&wide, DataType::real_16bf, 2, 5, 2);
    int found = 0;
    expect(p.f.heuristic(p.handle, p.op, wide, p.lb, p.ld, p.ld, p.preference, 1, &result, &found) ==
               Status::not_supported,
           "factors of two types");
    p.f.layout_create(&wide, DataType::real_32f, 2, 4, 2);
    expect(p.f.heuristic(p.handle, p.op, wide, p.lb, p.ld, p.ld, p.preference, 1, &result, &found) == kInvalid,
           "sizes that differ");
}

void product_past_end(Buffers& b) {
    SmallProduct p(b);
    HeuristicResult result{};
    expect(p.choose(&result) == Status::success, "an algorithm");
    p.run(result, b.in + 504);
}

}  // namespace

const std::vector<Case>& product_cases() {
    static const std::vector<Case> cases = {
        {"product_with_bias", product_with_bias},
        {"product_refusals", product_refusals},
        {"product_past_end", product_past_end},
    };
    return cases;
}
