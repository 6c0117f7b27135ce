// What a model's MLP may have between its two layers.
#pragma once

namespace mg {

// f(hidden): elementwise, or of a gate and what it lets through.
enum class Activation {
    gelu,      // tanh form (Hendrycks & Gimpel 2016)
    gelu_erf,  // x Phi(x) (the same)
    relu,
    relu2,  // max(x, 0)^2 (So et al. 2021)
    swiglu  // a sigmoid(a) b (Shazeer 2020); a row of hidden holds a[M], then b[M]
};

constexpr bool is_gated(Activation f) { return f == Activation::swiglu; }

}  // namespace mg
