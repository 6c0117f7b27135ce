// A matrix product as cuBLASLt defines it, column-major, with what it can do to the result on the way.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace mgsim {

struct ProductMatrix {
    void* at;
    bool bf16;     // else float32
    int64_t rows;  // as stored
    int64_t columns;
    int64_t stride;  // between columns
};

enum class ResultStep { kNone, kGelu, kGeluBackward };
enum class BiasGradient { kNone, kOfA, kOfB, kOfResult };

// d = step(alpha op(a) op(b) + beta c)
struct Product {
    ProductMatrix a, b, c, d;
    bool a_transposed, b_transposed;
    float alpha, beta;
    ResultStep step;
    BiasGradient gradient;
    void* bias;            // of d's type: added, or the gradient that is written
    ProductMatrix hidden;  // input of the GELU: written by kGelu, read by kGeluBackward
};

void multiply(const Product& product);

}  // namespace mgsim
