"""Derivatives by the complex step (Squire & Trapp 1998), for proofs of the analytic backwards.

f'(x) = Im f(x + ih) / h for a real analytic f: exact to rounding, since nothing is subtracted and h
may be as small as 1e-30.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .ops import Array

_STEP = 1e-30


def gradient(function: Callable[[Array], Any], x: Array) -> Array:
    """Gradient of a scalar function at x, one evaluation per coordinate."""
    result = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        moved = x.astype(np.complex128)
        moved[index] += 1j * _STEP
        result[index] = np.imag(function(moved)) / _STEP
    return result


def directional(
    function: Callable[[dict[str, Array]], Any],
    x: dict[str, Array],
    direction: dict[str, Array],
) -> float:
    """Derivative of a scalar function of several arrays along a direction, in one evaluation."""
    moved = {name: x[name] + 1j * _STEP * direction[name] for name in x}
    return float(np.imag(function(moved)) / _STEP)
