"""What an MLP's activation lets through: each as a gate from 0 to 1 times what comes to it.

  relu, relu2   1 where x > 0, else 0
  gelu_erf      Phi(x), the normal distribution: GELU is by its authors' definition what is left on
                average of an x that is kept with that probability, and else set to 0 (Hendrycks &
                Gimpel 2016, section 2)
  gelu          its tanh form, 1/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  swiglu        sigmoid(a) of the gate's half a of a row (Shazeer 2020)

So a unit counts as let through where its gate is more than half open. In all of them that is where
the number that opens it is above 0, and for GELU it reads: where x is kept more often than not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .trace_forward import Array

OPEN = 0.5
"""A gate above this lets its unit through."""


def gate_and_output(activation: str, hidden: Array) -> tuple[Array, Array]:
    """Gates from 0 to 1 and the activation's output, (..., mlp_dim) each, float64.

    Args:
        activation: its name in ModelConfig.
        hidden: (..., hidden_dim), what the MLP's first layer puts out.
    """
    if activation == "swiglu":
        opening, passed = np.split(hidden, 2, axis=-1)
        gate = _sigmoid(opening)
        return gate, gate * opening * passed
    gate = _GATES[activation](hidden)
    output = gate * hidden
    return gate, output * hidden if activation == "relu2" else output


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1.0 + small)


def _normal_distribution(x: Array) -> Array:
    # erfc: 1 + erf would lose the digits of what is far below 0.
    return 0.5 * np.array([math.erfc(each) for each in (-x.ravel() / math.sqrt(2.0))]).reshape(
        x.shape
    )


def _tanh_gate(x: Array) -> Array:
    return _sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))


def _step(x: Array) -> Array:
    return (x > 0).astype(np.float64)


_GATES: dict[str, Callable[[Array], Array]] = {
    "gelu": _tanh_gate,
    "gelu_erf": _normal_distribution,
    "relu": _step,
    "relu2": _step,
}
