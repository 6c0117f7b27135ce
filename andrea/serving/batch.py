"""Sequences that share one decoder, and may join and leave between any two tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from andrea.model import GPT

# So many tokens of a prompt are read between two tokens of the others, which wait meanwhile.
_CHUNK = 256
_NOTHING = np.empty(0, dtype=np.int32)


@dataclass
class _Member:
    place: int
    unread: list[int]


class Batch:
    """At most `most` sequences that grow together; numbers name them. For one thread.

    A sequence sees what it would see alone, up to rounding, which depends on how many tokens are
    read at once.

    Raises:
        OutOfMemoryError: the cache of keys and values doesn't fit in memory.
    """

    def __init__(self, model: GPT, most: int) -> None:
        self.most = most
        self._decoder = model.decoder(most)
        self._members: dict[int, _Member] = {}
        self._empty = list(range(most))
        self._next_number = 0

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._members)

    def join(self, prompt: Sequence[int]) -> int:
        """Add a sequence that begins with these tokens (one at least); returns its number.

        There is room for it only where there are fewer than `most`.
        """
        self._next_number += 1
        self._members[self._next_number] = _Member(self._empty.pop(), list(prompt))
        return self._next_number

    def append(self, number: int, token: int) -> None:
        """Let a sequence grow by a token."""
        self._members[number].unread.append(token)

    def leave(self, number: int) -> None:
        """Take a sequence out; its place is free for the next one."""
        place = self._members.pop(number).place
        self._decoder.forget(place)
        self._empty.append(place)

    def clear(self) -> None:
        """Take all sequences out."""
        self._members.clear()
        self._decoder.reset()
        self._empty = list(range(self.most))

    def logits(self) -> dict[int, NDArray[np.float32]]:
        """Read what is new; returns (V,) logits of each sequence that was read to its end.

        Raises:
            OutOfMemoryError: there is no room to read so many tokens; `clear` and begin again.
        """
        tokens: list[NDArray[np.int32]] = [_NOTHING] * self.most
        for member in self._members.values():
            tokens[member.place] = np.array(member.unread[:_CHUNK], dtype=np.int32)
            del member.unread[:_CHUNK]
        logits = self._decoder.feed(tokens)
        return {
            number: logits[member.place]
            for number, member in self._members.items()
            if not member.unread
        }
