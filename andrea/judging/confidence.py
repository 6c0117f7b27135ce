"""How far a ratio that was measured on some text may be from that of all such text.

A bootstrap over blocks of neighbouring passages (Carlstein 1986): blocks are drawn with
replacement, and what 95% of the draws give is the interval. Blocks, since neighbours are alike.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_BLOCKS = 200
_DRAWS = 2000
_LEVEL = 0.95


class Interval(NamedTuple):
    """Where 95% of the draws lie."""

    low: float
    high: float


def num_blocks(num_passages: int) -> int:
    """Into how many blocks of neighbours so many passages are gathered."""
    return min(num_passages, MAX_BLOCKS)


def ratio_interval(
    numerators: NDArray[np.float64], denominators: NDArray[np.floating | np.integer], seed: int = 0
) -> Interval | None:
    """The 95% interval of sum(numerators) / sum(denominators), both (S,); None for one passage.

    Of more than 200 passages neighbours are gathered into 200 blocks. With less than some 20 it is
    a rough figure, rather too narrow.
    """
    blocks = num_blocks(len(numerators))
    if blocks < 2:
        return None
    borders = np.arange(blocks) * len(numerators) // blocks
    above = np.add.reduceat(np.asarray(numerators, dtype=np.float64), borders)
    below = np.add.reduceat(np.asarray(denominators, dtype=np.float64), borders)
    drawn = np.random.default_rng(seed).integers(0, blocks, (_DRAWS, blocks))
    total = below[drawn].sum(axis=1)
    ratios = above[drawn].sum(axis=1)[total > 0] / total[total > 0]
    low, high = np.quantile(ratios, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(low), float(high))
