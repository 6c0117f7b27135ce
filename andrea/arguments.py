"""Checks of single arguments, for the calls that hand them to the engine."""

from __future__ import annotations

import math
import operator
from typing import Any

from .errors import ArgumentError, DTypeError


def number(name: str, value: Any) -> float:
    """`value` as a finite float.

    Raises:
        DTypeError: it is not a number.
        ArgumentError: it is not finite, in float32 too.
    """
    try:
        result = float(value)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{name} must be a number, got {value!r}") from error
    if math.isnan(result) or abs(result) > 3.4e38:
        raise ArgumentError(f"{name} must be finite, got {value!r}")
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
