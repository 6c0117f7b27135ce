"""The functions between an MLP's two layers in NumPy, and their derivatives.

As in ops.py forwards accept complex input, so that complex-step derivatives can prove the
backwards; comparisons then look at the real part. All are elementwise but for swiglu, of whose
input each row holds a gate [M] and then what it lets through [M].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .ops import Array

_GELU_SCALE = np.sqrt(2.0 / np.pi)
_GELU_CUBIC = 0.044715


def forward(name: str, x: Array) -> Array:
    """The activation of that name: x (..., hidden_dim) -> (..., mlp_dim)."""
    return _FUNCTIONS[name][0](x)


def backward(name: str, dout: Array, x: Array) -> Array:
    """Gradient dx of the activation of that name."""
    return _FUNCTIONS[name][1](dout, x)


# --- gelu: out = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))


def gelu_forward(x: Array) -> Array:
    """GELU in its tanh form (Hendrycks & Gimpel 2016), elementwise."""
    return 0.5 * x * (1.0 + np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x)))


def gelu_backward(dout: Array, x: Array) -> Array:
    """Gradient dx."""
    tanh = np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))
    dinner = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * x * x)
    return dout * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * dinner)


# --- gelu_erf: out = x Phi(x), Phi the standard normal distribution, phi its density


def gelu_erf_forward(x: Array) -> Array:
    """GELU as it is defined (Hendrycks & Gimpel 2016), elementwise."""
    return x * _normal_distribution(x)


def gelu_erf_backward(dout: Array, x: Array) -> Array:
    """Gradient dx."""
    density = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    return dout * (_normal_distribution(x) + x * density)


def _normal_distribution(x: Array) -> Array:
    return 0.5 * erfc(-x / np.sqrt(2.0))


def erfc(z: Array) -> Array:
    """1 - erf(z), the complementary error function, of real or complex z.

    NumPy has none. Near 0, erf's series exp(-z^2) 2 z / sqrt(pi) (1 + (2 z^2) / 3 + (2 z^2)^2 /
    (3 5) + ...), whose terms all have one sign; elsewhere exp(-z^2) / sqrt(pi) over the continued
    fraction z + (1/2) / (z + (2/2) / (z + (3/2) / (z + ...))), which keeps a small erfc's relative
    accuracy (Abramowitz & Stegun 7.1.6 and 7.1.14). Both are analytic in z.
    """
    is_near = np.abs(z.real) < 1.5
    near = np.where(is_near, z, 0.0)
    term = total = 2.0 / np.sqrt(np.pi) * np.exp(-near * near) * near
    for n in range(1, 28):
        term = term * (2.0 * near * near) / (2 * n + 1)
        total = total + term
    sign = np.where(z.real < 0, -1.0, 1.0)
    far = np.where(is_near, 1.5, sign * z)
    fraction = far
    for k in range(60, 0, -1):
        fraction = far + 0.5 * k / fraction
    tail = np.exp(-far * far) / np.sqrt(np.pi) / fraction
    return np.where(is_near, 1.0 - total, np.where(sign > 0, tail, 2.0 - tail))


# --- relu: out = max(x, 0), and its square; where x is 0 the derivative is 0


def relu_forward(x: Array) -> Array:
    """max(x, 0), elementwise."""
    return np.where(x.real > 0, x, 0.0)


def relu_backward(dout: Array, x: Array) -> Array:
    """Gradient dx."""
    return np.where(x > 0, dout, 0.0)


def relu2_forward(x: Array) -> Array:
    """max(x, 0)^2, elementwise (So et al. 2021)."""
    return relu_forward(x) ** 2


def relu2_backward(dout: Array, x: Array) -> Array:
    """Gradient dx."""
    return dout * 2.0 * relu_forward(x)


# --- swiglu: out = silu(a) b, with silu(a) = a sigmoid(a), of the halves a and b of a row


def swiglu_forward(x: Array) -> Array:
    """A gated activation (Shazeer 2020): x (..., 2 M) -> (..., M)."""
    gate, passed = np.split(x, 2, axis=-1)
    return gate * sigmoid(gate) * passed


def swiglu_backward(dout: Array, x: Array) -> Array:
    """Gradient dx (..., 2 M)."""
    gate, passed = np.split(x, 2, axis=-1)
    share = sigmoid(gate)
    dgate = dout * passed * share * (1.0 + gate * (1.0 - share))
    return np.concatenate([dgate, dout * gate * share], axis=-1)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), elementwise, without an exp that could overflow."""
    small = np.exp(np.where(x.real < 0, x, -x))
    return np.where(x.real < 0, small, 1.0) / (1.0 + small)


_FUNCTIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "gelu": (gelu_forward, gelu_backward),
    "gelu_erf": (gelu_erf_forward, gelu_erf_backward),
    "relu": (relu_forward, relu_backward),
    "relu2": (relu2_forward, relu2_backward),
    "swiglu": (swiglu_forward, swiglu_backward),
}
NAMES = tuple(_FUNCTIONS)
