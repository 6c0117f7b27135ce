"""Comparison of measured arrays with expected ones, and the list of all errors measured so far.

The error of a tensor is max |measured - expected| / max |expected|: relative to the tensor's
largest element, so that elements near zero don't drown the figure. Where everything expected is
zero, it is max |measured|.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np


class Measurement(NamedTuple):
    """One comparison of the session: which test, which tensor, how far off, how far was allowed."""

    test: str
    name: str
    measured: float
    tolerance: float


MEASURED: list[Measurement] = []


def relative_error(measured: Any, expected: Any) -> float:
    """max |measured - expected| / max |expected|; infinite where any value is not finite."""
    measured, expected = np.asarray(measured), np.asarray(expected)
    assert measured.shape == expected.shape, f"shape {measured.shape}, expected {expected.shape}"
    if expected.size == 0:
        return 0.0
    if not (np.isfinite(measured).all() and np.isfinite(expected).all()):
        return float("inf")
    wide = np.result_type(np.float64, expected.dtype)
    difference = float(np.abs(measured.astype(wide) - expected.astype(wide)).max())
    largest = float(np.abs(expected.astype(wide)).max())
    return difference / largest if largest > 0 else difference


def assert_close(name: str, measured: Any, expected: Any, tolerance: float) -> float:
    """Record and return the relative error of a tensor.

    Raises:
        AssertionError: the error passes the tolerance, with both in the message; or shapes differ.
    """
    error = relative_error(measured, expected)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
    MEASURED.append(Measurement(test, name, error, tolerance))
    assert error <= tolerance, f"{name}: relative error {error:.3g}, tolerance {tolerance:.3g}"
    return error
