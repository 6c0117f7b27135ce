"""Checks of single arguments, for the calls that hand them to the engine."""

from __future__ import annotations

import math
import operator
from typing import Any

from .errors import ArgumentError, DeviceError, DTypeError

_LEAST, _MOST = 1.2e-38, 3.4e38
"""The positive numbers that float32 holds to full precision."""


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{name} must be a number, got {value!r}") from error


def number(name: str, value: Any) -> float:
    """`value` as a finite float.

    Raises:
        DTypeError: it is not a number.
        ArgumentError: it is not finite, in float32 too.
    """
    result = _float(name, value)
    if math.isnan(result) or abs(result) > _MOST:
        raise ArgumentError(f"{name} must be finite, got {result!r}")
    return result


def limit(name: str, value: Any) -> float:
    """`value` as a float above 0, in float32 too; infinity is no limit.

    Raises:
        DTypeError: it is not a number.
        ArgumentError: it is 0 or less, or NaN.
    """
    result = _float(name, value)
    if not result > 0:
        raise ArgumentError(f"{name} must be above 0, or infinite for no limit, got {result!r}")
    return math.inf if result > _MOST else max(result, _LEAST)


def integer(name: str, value: Any, low: int, high: int) -> int:
    """`value` as an int in [low, high].

    Raises:
        DTypeError: it is not an integer.
        ArgumentError: it is out of range.
    """
    try:
        result = operator.index(value)
    except TypeError as error:
        raise DTypeError(f"{name} must be an integer, got {value!r}") from error
    if not low <= result <= high:
        raise ArgumentError(f"{name} must be between {low} and {high}, got {result}")
    return result


def choice(name: str, value: Any) -> bytes:
    """`value`, the name of a device or precision, as the engine takes it.

    Raises:
        DTypeError: it is not a string.
        DeviceError: no name can look like that.
    """
    if not isinstance(value, str):
        raise DTypeError(f"{name} must be a string, got {value!r}")
    if not value.isascii() or not value.isprintable():
        raise DeviceError(f"there is no {name} {value!r}")
    return value.encode("ascii")
