"""How far a ratio that was measured on some text may be from that of all such text.

A bootstrap over blocks of neighbouring text (Carlstein 1986): blocks are drawn with replacement,
and what 95% of the draws give is the interval. Blocks, since neighbours are alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_DRAWS = 2000
_LEVEL = 0.95


class Interval(NamedTuple):
    """Where 95% of the draws lie."""

    low: float
    high: float


def ratio_interval(
    numerators: NDArray[np.float64], denominators: NDArray[np.floating | np.integer], seed: int = 0
) -> Interval | None:
    """The 95% interval of sum(numerators) / sum(denominators), both (S,): a number for each block.

    None of less than two blocks. Of less than some 20 it is a rough figure, rather too narrow.
    """
    blocks = len(numerators)
    if blocks < 2:
        return None
    above = np.asarray(numerators, dtype=np.float64)
    below = np.asarray(denominators, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, blocks, (_DRAWS, blocks))
    total = below[drawn].sum(axis=1)
    ratios = above[drawn].sum(axis=1)[total > 0] / total[total > 0]
    low, high = np.quantile(ratios, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(low), float(high))
