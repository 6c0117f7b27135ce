"""Sequences that share one decoder, and may join and leave between any two tokens.

The engine's decoder can only forget all of its sequences at once, so it has more places than are
ever in use: a sequence joins at a place that is still empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    history: list[int] = field(default_factory=list)
    fed: int = 0


class Batch:
    """At most `most` sequences that grow together; numbers name them. For one thread.

    A sequence sees what it would see alone, up to rounding, which depends on how many tokens are
    read at once.

    Raises:
        OutOfMemoryError: the cache of keys and values doesn't fit in memory.
    """

    def __init__(self, model: GPT, most: int) -> None:
        self.most = most
        self._decoder = model.decoder(most + most // 2 + 1)
        self._members: dict[int, _Member] = {}
        self._empty = list(range(self._decoder.batch_size))
        self._next_number = 0

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._members)

    def join(self, prompt: Sequence[int]) -> int:
        """Add a sequence that begins with these tokens (one at least); returns its number."""
        if not self._members:
            self.clear()
        elif not self._empty:
            self._read_anew()
        self._next_number += 1
        self._members[self._next_number] = _Member(self._empty.pop(), list(prompt))
        return self._next_number

    def append(self, number: int, token: int) -> None:
        """Let a sequence grow by a token."""
        self._members[number].history.append(token)

    def leave(self, number: int) -> None:
        """Take a sequence out; its place stays used until all of them are read anew."""
        del self._members[number]

    def clear(self) -> None:
        """Take all sequences out."""
        self._members.clear()
        self._decoder.reset()
        self._empty = list(range(self._decoder.batch_size))

    def logits(self) -> dict[int, NDArray[np.float32]]:
        """Read what is new; returns (V,) logits of each sequence that was read to its end.

        Raises:
            OutOfMemoryError: there is no room to read so many tokens; `clear` and begin again.
        """
        tokens: list[NDArray[np.int32]] = [_NOTHING] * self._decoder.batch_size
        for member in self._members.values():
            new = member.history[member.fed : member.fed + _CHUNK]
            tokens[member.place] = np.array(new, dtype=np.int32)
            member.fed += len(new)
        logits = self._decoder.feed(tokens)
        return {
            number: logits[member.place]
            for number, member in self._members.items()
            if member.fed == len(member.history)
        }

    def _read_anew(self) -> None:
        """Empty all places, and let the sequences that are left read their cached tokens again."""
        lengths = self._decoder.lengths
        self._decoder.reset()
        for place, member in enumerate(self._members.values()):
            # Just what was cached, from its first token on, so that positions stay as they were.
            start = member.fed - lengths[member.place]
            member.history = member.history[start:]
            member.place, member.fed = place, 0
        self._empty = list(range(len(self._members), self._decoder.batch_size))
