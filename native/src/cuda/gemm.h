// Matrix products through cuBLASLt.  Its matrices are column-major; a row-major D = L R is the column-major D^T = R^T L^T, so that
// nothing is moved.  Each shape is planned once: layouts, epilogue and algorithm, for the alignment that its pointers have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "cuda/cublaslt_api.h"
#include "cuda/device.h"

namespace mg::cuda {

enum class NumberType { fp32, bf16 };

enum class Epilogue {
    none,
    bias,           // out += bias[columns]
    gelu,           // hidden = out + bias, where there is one; out = gelu(hidden)
    gelu_backward,  // out *= gelu'(hidden)
    bias_gradient,  // bias_gradient[rows] = sums of left over the depth
};

// A matrix in memory, row-major: `stride` numbers from one row to the next.
template <typename Pointer>
struct Matrix {
    Pointer at;
    int64_t stride;
    bool transposed;  // what lies there is the transpose of what the product takes
};

// out[rows, columns] = left[rows, depth] right[depth, columns] + added[rows, columns].  left and right are of type `in`; out,
// added, biases and hidden of type `out_type`.  Sums are float32.
struct MatrixProduct {
    int64_t rows, columns, depth;
    NumberType in, out_type;
    Matrix<const void*> left, right;
    void* out;
    int64_t out_stride;
    const void* added;  // null: nothing; may be out
    Epilogue epilogue;
    const void* bias;
    void* bias_gradient;
    void* hidden;  // [rows, columns], written or read
};

class Gemm {
   public:
    explicit Gemm(Device& device);  // opens cuBLASLt
    ~Gemm();
    Gemm(const Gemm&) = delete;
    Gemm& operator=(const Gemm&) = delete;

    // Starts the product; false where cuBLASLt has no algorithm for it: nothing was started.
    bool multiply(const MatrixProduct& product);

    // Memory that products work in, allocated at once, for a GPU of that compute capability.
    static size_t workspace_bytes(int major);

   private:
    // Everything that an algorithm is chosen by.
    using Key = std::array<int64_t, 20>;

    struct Plan {
        cublaslt::Description description = nullptr;
        cublaslt::Layout a = nullptr, b = nullptr, out = nullptr;
        cublaslt::Algorithm algorithm{};
        bool possible = false;
        bool proven = false;  // it was started before
    };

    static Key key_of(const MatrixProduct& product);
    Plan make_plan(const MatrixProduct& product);
    void choose_algorithm(const MatrixProduct& product, Plan* plan);
    void set_pointers(const MatrixProduct& product, const Plan& plan);
    void destroy(const Plan& plan) noexcept;
    void check(cublaslt::Status status, const char* call) const;

    Device& device_;
    const cublaslt::Functions& library_;
    cublaslt::Handle handle_ = nullptr;
    void* workspace_ = nullptr;
    std::map<Key, Plan> plans_;
};

}  // namespace mg::cuda
