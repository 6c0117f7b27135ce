"""Comparison of measured arrays with expected ones, and the list of all errors measured so far.

The error of a tensor is max |measured - expected| / max |expected|: relative to the tensor's
largest element, so that elements near zero don't drown the figure. Where everything expected is
zero, it is max |measured|.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

import numpy as np


class Measurement(NamedTuple):
    """One comparison of the session: which test, which tensor, how far off, how far was allowed."""

    test: str
    name: str
    measured: float
    tolerance: float


MEASURED: list[Measurement] = []


def relative_error(measured: Any, expected: Any, unit: float = 0.0) -> float:
    """max |measured - expected| / max |expected|; infinite where any value is not finite.

    Of each element's difference, unit * |expected| is left out: its own rounding.
    """
    measured, expected = np.asarray(measured), np.asarray(expected)
    assert measured.shape == expected.shape, f"shape {measured.shape}, expected {expected.shape}"
    if expected.size == 0:
        return 0.0
    if not (np.isfinite(measured).all() and np.isfinite(expected).all()):
        return float("inf")
    wide = np.result_type(np.float64, expected.dtype)
    size = np.abs(expected.astype(wide))
    beyond = np.abs(measured.astype(wide) - expected.astype(wide)) - unit * size
    difference = max(0.0, float(beyond.max()))
    largest = float(size.max())
    return difference / largest if largest > 0 else difference


def assert_close(
    name: str, measured: Any, expected: Any, tolerance: float, unit: float = 0.0
) -> float:
    """Record and return the relative error of a tensor.

    unit is bfloat16.UNIT for a tensor whose elements were rounded to bfloat16: each may then be
    off by that much of its own size, beside the tolerance. Rounding the wrong way is twice that.

    Raises:
        AssertionError: the error passes the tolerance, with both in the message; or shapes differ.
    """
    error = relative_error(measured, expected)
    _record(name, error, tolerance + unit)
    if unit:
        beyond = relative_error(measured, expected, unit)
        assert beyond <= 1.01 * tolerance, (
            f"{name}: relative error {error:.3g}, of which {beyond:.3g} is more than rounding the "
            f"result, tolerance {tolerance:.3g}"
        )
    else:
        assert error <= tolerance, f"{name}: relative error {error:.3g}, tolerance {tolerance:.3g}"
    return error


def assert_same_direction(name: str, measured: Any, expected: Any, tolerance: float) -> float:
    """Record and return 1 - cosine of the angle between two tensors taken as vectors.

    Raises:
        AssertionError: it passes the tolerance, or what is measured isn't finite. Where everything
            expected is zero, there is no direction, and all measured must be below the tolerance.
    """
    a, b = (np.asarray(each, np.float64).reshape(-1) for each in (measured, expected))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if not b.any():
        apart = relative_error(a, b)
    else:
        apart = 1.0 - float(a @ b) / lengths if lengths > 0 else 1.0
    apart = max(0.0, apart) if np.isfinite(a).all() else float("inf")
    _record(name, apart, tolerance)
    assert apart <= tolerance, f"{name}: 1 - cosine is {apart:.3g}, tolerance {tolerance:.3g}"
    return apart


def _record(name: str, measured: float, tolerance: float) -> None:
    """Add to the table, where what a test measured in bf16 has rows of its own."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if re.search(r"[\[-]bf16[-\]]", test):
        tensor, comma, what = name.rpartition(", ")
        name = f"{tensor}{comma}bf16 {what}"
    MEASURED.append(Measurement(test.split(" ")[0], name, measured, tolerance))
