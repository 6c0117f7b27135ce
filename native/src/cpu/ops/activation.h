// The activations that no product is fused with; GELU's tanh form, which one is, is math.h's.  NaN in, NaN out.
//   gelu_erf   x Phi(x);  derivative Phi(x) + x phi(x)          Phi, phi: the normal distribution and its density
//   relu       max(x, 0); derivative 1 where x > 0, else 0
//   relu2      max(x, 0)^2; derivative 2 max(x, 0)
//   swiglu     a sigmoid(a) b;  by a: b sigmoid(a) (1 + a (1 - sigmoid(a))), by b: a sigmoid(a)
#pragma once

#include "activation.h"
#include "cpu/ops/bf16.h"
#include "cpu/ops/math.h"

namespace {

using mg::Activation;

struct Activated {
    Vector value;
    Vector slope;  // f'
};

// Phi(-|x|) = exp(-x^2 / 2) t h(t) / 2 with t = 1 / (1 + 0.4 |x| / sqrt(2)): h is the polynomial of degree 8 whose largest
// relative error for |x| < 13 is least (6e-8 before rounding; fitted by iteratively reweighted least squares).
inline Activated gelu_erf(Vector x) {
    const Vector size = x < 0.0f ? -x : x;
    const Vector t = 1.0f / (1.0f + 0.282842712f * size);
    Vector h = broadcast(0.0398351215f);
    h = h * t - 0.133334756f;
    h = h * t + 0.0693490878f;
    h = h * t + 0.104970545f;
    h = h * t + 0.0678092465f;
    h = h * t + 0.198576525f;
    h = h * t + 0.20053488f;
    h = h * t + 0.226636827f;
    h = h * t + 0.225622594f;
    const Vector density = exponential(-0.5f * (x * x));
    const Vector tail = 0.5f * density * t * h;
    const Vector share = x < 0.0f ? tail : 1.0f - tail;
    return {x * share, share + x * (0.398942280f * density)};
}

// A comparison is false for NaN, which stays.
inline Vector positive_part(Vector x) { return x <= 0.0f ? Vector{} : x; }

inline Activated relu(Vector x) {
    const Vector slope = x != x ? x : broadcast(1.0f);
    return {positive_part(x), x <= 0.0f ? Vector{} : slope};
}

inline Activated relu2(Vector x) {
    const Vector part = positive_part(x);
    return {part * part, 2.0f * part};
}

inline Activated tanh_gelu(Vector x) {
    const Gate gate = gelu_gate(x);
    return {x * gate.open, gelu_derivative(x, gate)};
}

// silu(x) = x sigmoid(x) and its derivative
inline Activated silu(Vector x) {
    const Vector e = exponential(-x);
    const Vector open = 1.0f / (1.0f + e);
    return {x * open, open * (1.0f + x * (e * open))};
}

// Calls body with the function itself, so that loops don't choose for each vector.
template <typename Body>
void with_function(Activation f, const Body& body) {
    switch (f) {
        case Activation::gelu: body(tanh_gelu); break;
        case Activation::gelu_erf: body(gelu_erf); break;
        case Activation::relu: body(relu); break;
        case Activation::relu2: body(relu2); break;
        case Activation::swiglu: break;  // not elementwise
    }
}

template <typename E>
void activation_forward(Activation f, E* out, const E* hidden, int64_t row_begin, int64_t row_end, int64_t M) {
    if (f == Activation::swiglu) {
        for (int64_t row = row_begin; row < row_end; ++row) {
            const E *a = hidden + row * 2 * M, *b = a + M;
            for_vectors(M, [&](int64_t i, int64_t n) {
                store_some(out + row * M + i, silu(load_some(a + i, n)).value * load_some(b + i, n), n);
            });
        }
        return;
    }
    const int64_t first = row_begin * M, count = (row_end - row_begin) * M;
    with_function(f, [&](const auto& function) {
        for_vectors(count, [&](int64_t i, int64_t n) {
            store_some(out + first + i, function(load_some(hidden + first + i, n)).value, n);
        });
    });
}

template <typename E>
void activation_backward(Activation f, E* hidden, E* dout, int64_t row_begin, int64_t row_end, int64_t M) {
    if (f == Activation::swiglu) {
        for (int64_t row = row_begin; row < row_end; ++row) {
            E *a = hidden + row * 2 * M, *b = a + M, *d = dout + row * M;
            for_vectors(M, [&](int64_t i, int64_t n) {
                const Activated gate = silu(load_some(a + i, n));
                const Vector passed = load_some(b + i, n), gradient = load_some(d + i, n);
                store_some(a + i, gradient * passed * gate.slope, n);
                store_some(b + i, gradient * gate.value, n);
                store_some(d + i, gate.value * passed, n);
            });
        }
        return;
    }
    const int64_t first = row_begin * M, count = (row_end - row_begin) * M;
    with_function(f, [&](const auto& function) {
        for_vectors(count, [&](int64_t i, int64_t n) {
            const Activated activated = function(load_some(hidden + first + i, n));
            store_some(hidden + first + i, load_some(dout + first + i, n) * activated.slope, n);
            store_some(dout + first + i, activated.value, n);
        });
    });
}

}  // namespace
