// The model's memory by the table: parameters, gradients, moments, and the backend's prepared weights.
#pragma once

#include <cstdint>

#include "backend.h"
#include "model/buffer.h"
#include "model/tensors.h"

namespace mg {

class Parameters {
   public:
    Parameters(Backend& backend, const Config& config);

    const TensorTable& table() const { return table_; }

    // Parameters from the seed; gradients and moments 0.
    void initialise(uint64_t seed);
    // Renews the copies in the backend's precision, while anyone wants them.
    void prepare();
    // Decoders want them; training only on some backends.
    void want_prepared();
    void release_prepared();
    void* prepared() { return prepared_.get(); }  // null: there are none

    float* values() { return values_.as<float>(); }
    float* gradients() { return zeroed(gradients_); }
    float* moment_1() { return zeroed(moment_1_); }
    float* moment_2() { return zeroed(moment_2_); }

    // Null for a tensor that the dialect doesn't have.
    float* value(int tensor) { return tensor == kNoTensor ? nullptr : values() + table_[tensor].offset; }
    float* gradient(int tensor) { return tensor == kNoTensor ? nullptr : gradients() + table_[tensor].offset; }
    Weight weight(int tensor);
    Bias bias(int tensor);

   private:
    const void* prepared(int tensor);
    float* zeroed(Buffer& buffer);  // allocated and zeroed on first use: sampling needs none of them
    size_t bytes() const { return static_cast<size_t>(table_.memory_floats()) * sizeof(float); }

    Backend& backend_;
    TensorTable table_;
    Buffer values_, gradients_, moment_1_, moment_2_, prepared_;
    int wanting_prepared_ = 0;
};

}  // namespace mg
