"""Stop sequences in a stream: what may become one is held back, so no part of one is ever shown.

For strings and for tuples of token ids alike; used by sampling.py and writing.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

Items = TypeVar("Items", str, tuple[int, ...])


class StopFinder(Generic[Items]):
    """Passes a stream on until the first stop sequence is complete.

    The result does not depend on how the stream is cut into pieces.
    """

    def __init__(self, stops: Iterable[Items], empty: Items) -> None:
        self._stops: list[Items] = [stop for stop in stops if len(stop)]
        self._held: Items = empty

    def push(self, piece: Items) -> tuple[Items, bool]:
        """What may be shown now, and whether a stop sequence ended the stream."""
        items = self._held + piece
        ends = [
            (start + len(stop), start)
            for stop in self._stops
            if (start := _find(items, stop)) is not None
        ]
        if ends:
            self._held = items[:0]
            return items[: min(ends)[1]], True
        held = max((_overlap(items, stop) for stop in self._stops), default=0)
        self._held = items[len(items) - held :]
        return items[: len(items) - held], False

    def finish(self) -> Items:
        """What was held back, once the stream has ended without a stop sequence."""
        held, self._held = self._held, self._held[:0]
        return held


def _find(items: Items, stop: Items) -> int | None:
    for start in range(len(items) - len(stop) + 1):
        if items[start : start + len(stop)] == stop:
            return start
    return None


def _overlap(items: Items, stop: Items) -> int:
    """Length of the longest end of `items` that is a beginning of `stop`."""
    for length in range(min(len(items), len(stop) - 1), 0, -1):
        if items[len(items) - length :] == stop[:length]:
            return length
    return 0
