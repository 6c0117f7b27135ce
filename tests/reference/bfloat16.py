"""bfloat16 in NumPy: float32 rounded to its upper 16 bits, to nearest, ties to even.

For tests of the engine's precision bf16: values that survive the way into an Element and back.
"""

from __future__ import annotations

import numpy as np

from .ops import Array

# Rounding changes a number by at most this much of its size: a bfloat16 has 8 significant bits.
UNIT = 2.0**-8


def to_bits(values: Array) -> Array:
    """The uint16 bits of float32 values rounded to bfloat16; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet, nearest).astype(np.uint16)


def from_bits(bits: Array) -> Array:
    """The float32 values of bfloat16 bits (uint16)."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: Array) -> Array:
    """float32 values rounded to bfloat16, as float32."""
    return from_bits(to_bits(values))
