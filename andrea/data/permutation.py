"""A permutation of n items that is computed, not stored: a Feistel network with cycle walking.

Used to visit the windows of a text in another order each epoch, whatever their number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# With four rounds the few values of a small permutation are visibly not equally likely.
_ROUNDS = 8


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a well-mixed 64-bit hash of each value (the finaliser of SplitMix64, Steele 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(indices: NDArray[np.uint64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return where each index in [0, size) goes under the permutation of its key; all are (n,).

    A Feistel network permutes the next power of four; results outside [0, size) are sent through
    again until they fall inside, which keeps it a permutation (Black and Rogaway 2002).
    """
    half_bits = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    round_keys = mix(keys + np.arange(_ROUNDS, dtype=np.uint64)[:, None])
    places = _feistel(indices, half_bits, round_keys)
    while (outside := np.flatnonzero(places >= size)).size:
        places[outside] = _feistel(places[outside], half_bits, round_keys[:, outside])
    return places


def _feistel(
    values: NDArray[np.uint64], half_bits: np.uint64, round_keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = values >> half_bits, values & mask
    for keys in round_keys:
        left, right = right, left ^ (mix(right ^ keys) & mask)
    return (left << half_bits) | right
