"""Curves made of characters: braille dots where the terminal has them, plain ASCII elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

Points = Sequence[tuple[float, float]]

# The bit of a braille character for each dot: column by column, from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=#"
# The beginning of a loss curve is steep; the rest would be flat if all of it had to fit.
_STEEP_SHARE = 0.04


def columns(points: Points, number: int) -> list[float]:
    """Heights of a curve at `number` places from its first to its last point, ends included.

    Where several points fall on a place it is their mean, where none does, a line between.
    """
    first, last = points[0][0], points[-1][0]
    span = (last - first) or 1.0
    sums, counts = [0.0] * number, [0] * number
    for x, y in points:
        place = min(round((x - first) / span * (number - 1)), number - 1)
        sums[place] += y
        counts[place] += 1
    known = [place for place in range(number) if counts[place]]
    heights = [sums[place] / counts[place] if counts[place] else 0.0 for place in range(number)]
    for left, right in itertools.pairwise(known):
        for place in range(left + 1, right):
            share = (place - left) / (right - left)
            heights[place] = heights[left] + share * (heights[right] - heights[left])
    # Of a single point all places have its height.
    for place in range(known[-1] + 1, number):
        heights[place] = heights[known[-1]]
    return heights


def vertical_range(heights: Sequence[float], others: Iterable[float] = ()) -> tuple[float, float]:
    """The lowest and highest value to show; the steep beginning of a long curve may stand out."""
    tail = heights[round(len(heights) * _STEEP_SHARE) :] or heights
    values = [*tail, *others]
    low, high = min(values), max(values)
    if low == high:
        room = abs(low) / 2 or 0.5
        return low - room, high + room
    return low, high


def line_rows(
    heights: Sequence[float], rows: int, low: float, high: float, *, ascii_only: bool = False
) -> list[str]:
    """A curve as `rows` lines of text, a column a height; of braille two heights a column."""
    dots_across, dots_down = (1, 1) if ascii_only else (2, 4)
    tall = rows * dots_down
    grid = [[0] * (-(-len(heights) // dots_across)) for _ in range(rows)]
    before: int | None = None
    for place, height in enumerate(heights):
        now = dot(height, tall, low, high)
        # From the height before to this one: a steep curve has no holes.
        step = 0 if before is None or before == now else 1 if now > before else -1
        at = now if before is None or step == 0 else before + step
        while True:
            cell, part = divmod(at, dots_down)
            bit = 1 if ascii_only else _DOTS[place % 2][part]
            grid[cell][place // dots_across] |= bit
            if at == now:
                break
            at += step
        before = now
    if ascii_only:
        return ["".join("*" if cell else " " for cell in row) for row in grid]
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in grid]


def dot(value: float, tall: int, low: float, high: float) -> int:
    """The dot of a value, counted from the top of `tall` ones; what is outside is at the edge."""
    share = (high - value) / (high - low)
    return min(max(round(share * (tall - 1)), 0), tall - 1)


def sparkline(
    heights: Sequence[float], *, from_zero: bool = False, ascii_only: bool = False
) -> str:
    """A curve in one line of as many characters as it has heights."""
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    low, high = min(heights), max(heights)
    if from_zero:
        low = min(low, 0.0)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        return blocks[len(blocks) // 2] * len(heights)
    return "".join(
        blocks[min(int((height - low) / (high - low) * len(blocks)), len(blocks) - 1)]
        for height in heights
    )
