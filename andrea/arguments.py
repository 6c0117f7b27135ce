"""Checks of single arguments, for the calls that hand them to the engine."""

from __future__ import annotations

import math
import operator
from typing import Any

from .errors import ArgumentError, DeviceError, DTypeError


def number(name: str, value: Any) -> float:
    """`value` as a finite float.

    Raises:
        DTypeError: it is not a number.
        ArgumentError: it is not finite, in float32 too.
    """
    try:
        result = float(value)
    except OverflowError as error:
        raise ArgumentError(f"{name} must be finite, and the number given is too large") from error
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{name} must be a number, got {value!r}") from error
    if math.isnan(result) or abs(result) > 3.4e38:
        raise ArgumentError(f"{name} must be finite, got {value!r}")
    return result


def limit(name: str, value: Any) -> float:
    """`value` as a float above 0; infinity, what is above all float32 numbers too, is no limit.

    Raises:
        DTypeError: it is not a number.
        ArgumentError: it is 0 or less, or NaN.
    """
    result = math.inf if isinstance(value, (int, float)) and value > 3.4e38 else number(name, value)
    if not result > 0:
        raise ArgumentError(f"{name} must be above 0, or infinite for no limit, got {value!r}")
    return result


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
