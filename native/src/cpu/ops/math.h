// exp and the tanh form of GELU on vectors.  NaN in, NaN out.
#pragma once

#include "cpu/ops/vector.h"

namespace {

// exp(x) for x in [-86.6, 88.3], clamped outside; error below 1 unit in the last place.  exp(0) is exactly 1.
// exp(x) = 2^n exp(r) with n = round(x / ln 2), |r| <= ln(2)/2; exp(r) by the polynomial 1 + r + ... of degree 6 whose largest
// relative error there is least (3e-9 before rounding; fitted by iteratively reweighted least squares).
inline Vector exponential(Vector x) {
    const Vector low = broadcast(-86.6f), high = broadcast(88.3f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    const float round_bias = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer held in the low bits
    const Vector shifted = x * 1.44269504f + round_bias;
    const Vector n = shifted - round_bias;
    // ln 2 in two parts, so that n * ln 2 is subtracted with its rounding error.
    Vector r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    Vector p = broadcast(0.00138145406f);
    p = p * r + 0.00836874545f;
    p = p * r + 0.041668389f;
    p = p * r + 0.166665211f;
    p = p * r + 0.49999994f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    IntVector bits, exponent;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&exponent, &shifted, sizeof exponent);
    bits += exponent << 23;  // the low bits of `shifted` are n; what lies above them is shifted out
    memcpy(&p, &bits, sizeof p);
    return p;
}

// gelu(x) = 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3)   (Hendrycks & Gimpel 2016, tanh form)
//         = x s with s = 1 / (1 + exp(-2u)), which keeps the relative error small where gelu goes to 0.
constexpr float kTwiceSqrtTwoOverPi = 1.59576912f;
constexpr float kGeluCubic = 0.044715f;

struct Gate {
    Vector open;    // s
    Vector closed;  // 1 - s, without the cancellation
};

inline Gate gelu_gate(Vector x) {
    const Vector e = exponential(-kTwiceSqrtTwoOverPi * (x + kGeluCubic * x * x * x));
    const Vector open = 1.0f / (1.0f + e);
    return {open, e * open};
}

inline Vector gelu(Vector x) { return x * gelu_gate(x).open; }

// gelu'(x) = s + x s (1 - s) 2 u'
inline Vector gelu_derivative(Vector x, const Gate& gate) {
    const Vector twice_slope = kTwiceSqrtTwoOverPi * (1.0f + 3.0f * kGeluCubic * x * x);
    return gate.open + x * gate.open * gate.closed * twice_slope;
}

}  // namespace
