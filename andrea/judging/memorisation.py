"""How much of what a model writes stands in its training text, word for word.

For each text the longest stretch of bytes that is also in the training text: exact, whatever the
tokens are, in one reading of a training text of any length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .chunks import Tokens, token_chunks

if TYPE_CHECKING:
    from andrea.tokenizers import Tokenizer

Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]
Told = Callable[[int, int], None]

# No byte of UTF-8: nothing matches across the border of two documents.
_BORDER = b"\xff"
# A little first: what is found there spares most of the work on the rest.
_FIRST_TOKENS = 1 << 12
_CHUNK_TOKENS = 1 << 18
# The hash of bytes b is the sum of (b_i + 1) BASE^i, modulo 2^64; BASE is odd, so it can be undone.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
# High bits: the low ones of such a hash say little.
_FILTER_SHIFT = np.uint64(64 - 20)


@dataclass(frozen=True)
class Overlap:
    """The longest stretch of a text, in bytes of UTF-8, that stands in the training text too.

    start: its first byte in the text. place: its first byte in the training text, documents laid
    end to end, of the first such stretch there. passage: its whole characters.
    """

    num_bytes: int
    start: int
    place: int
    passage: str


def longest_overlaps(
    texts: Sequence[str], training: Tokens, tokenizer: Tokenizer, progress: Told | None = None
) -> list[Overlap]:
    """Find each text's longest overlap with the training text, (n,) tokens of the tokenizer.

    Documents are kept apart. Memory is bounded by the texts and a chunk of tokens. `progress` hears
    tokens done and all.
    """
    searches = [_Search(text.encode("utf-8", "replace")) for text in texts]
    longest = max((len(search.text) for search in searches), default=0)
    kept, place, done = b"", 0, 0
    for chunk in chain(
        token_chunks(training[:_FIRST_TOKENS]),
        token_chunks(training[_FIRST_TOKENS:], size=_CHUNK_TOKENS),
    ):
        # The end of the last piece again, so that a stretch as long as a text lies in one piece.
        piece = kept + _bytes_of(chunk, tokenizer)
        _look_in(piece, place, searches)
        kept = piece[max(len(piece) - longest, 0) :]
        gone = piece[: len(piece) - len(kept)]
        place += len(gone) - gone.count(_BORDER)
        done += len(chunk)
        if progress is not None:
            progress(done, len(training))
    return [search.result() for search in searches]


def _bytes_of(tokens: Tokens, tokenizer: Tokenizer) -> bytes:
    borders = np.flatnonzero(tokens == tokenizer.beginning_of_document)
    return _BORDER.join(tokenizer.decode_bytes(part) for part in np.split(tokens, borders))


class _Hashed:
    """Bytes whose stretches have a hash each, of any length, in one subtraction and a product."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        size = len(data)
        self._inverses = _powers(_INVERSE, size)
        values = np.frombuffer(data, dtype=np.uint8).astype(np.uint64) + np.uint64(1)
        self._sums = np.zeros(size + 1, dtype=np.uint64)
        np.cumsum(values * _powers(_BASE, size), out=self._sums[1:])

    def every(self, length: int) -> Hashes:
        """Hashes of all stretches of that length, in order; of none if it is too long."""
        count = max(len(self.data) - length + 1, 0)
        hashes: Hashes = self._sums[length : length + count] - self._sums[:count]
        hashes *= self._inverses[:count]
        return hashes

    def at(self, places: Places, length: int) -> Hashes:
        """Hashes of the stretches that begin at these places, each of which must fit."""
        hashes: Hashes = (self._sums[places + length] - self._sums[places]) * self._inverses[places]
        return hashes


def _powers(base: int, size: int) -> Hashes:
    """base^0, base^1, ... modulo 2^64."""
    powers = np.full(size, base, dtype=np.uint64)
    powers[:1] = 1
    np.cumprod(powers, out=powers)
    return powers


class _Search:
    """One text, and the longest stretch of it that was found so far."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.length = self._start = self._place = 0
        self._hashed = _Hashed(text)
        self._sort()

    @property
    def is_over(self) -> bool:
        """Whether the whole text was found."""
        return self.length == len(self.text)

    def hashes(self, length: int) -> Hashes:
        """Of all stretches of the text of that length."""
        return self._hashed.every(length)

    def look(self, piece: _Hashed, places: Places, before: int) -> None:
        """Look for longer stretches at some places of a piece; `before` bytes lie before it."""
        while not self.is_over:
            places = places[places + self.length < len(piece.data)]
            hashes = piece.at(places, self.length + 1)
            ranks = np.searchsorted(self._sorted, hashes)
            ranks[ranks == len(self._sorted)] = 0
            is_hit = self._sorted[ranks] == hashes
            places, ranks = places[is_hit], ranks[is_hit]
            if not len(places):
                return
            if not self._lengthen(piece.data, int(places[0]), int(ranks[0]), before):
                places = places[1:]  # equal hashes of other bytes

    def _lengthen(self, data: bytes, place: int, rank: int, before: int) -> bool:
        """Take the stretch at a place where the hash of one that is longer than the longest is."""
        wanted = data[place : place + self.length + 1]
        value = self._sorted[rank]
        while rank < len(self._sorted) and self._sorted[rank] == value:
            start = int(self._order[rank])
            if self.text.startswith(wanted, start):
                length, most = len(wanted), min(len(self.text) - start, len(data) - place)
                while length < most and self.text[start + length] == data[place + length]:
                    length += 1
                self.length, self._start = length, start
                self._place = before + place - data.count(_BORDER, 0, place)
                self._sort()
                return True
            rank += 1
        return False

    def _sort(self) -> None:
        hashes = self._hashed.every(self.length + 1)
        self._order = np.argsort(hashes, kind="stable")
        self._sorted = hashes[self._order]

    def result(self) -> Overlap:
        passage = self.text[self._start : self._start + self.length].decode("utf-8", "ignore")
        return Overlap(self.length, self._start, self._place, passage)


def _look_in(data: bytes, before: int, searches: Sequence[_Search]) -> None:
    # Searches for stretches of like length share the look at every place.
    groups: defaultdict[int, list[_Search]] = defaultdict(list)
    for search in searches:
        if not search.is_over:
            groups[(search.length + 1).bit_length()].append(search)
    if not groups:
        return
    piece = _Hashed(data)
    for group in groups.values():
        length = min(search.length for search in group) + 1
        is_there = np.zeros(1 << (64 - int(_FILTER_SHIFT)), dtype=np.bool_)
        for search in group:
            is_there[search.hashes(length) >> _FILTER_SHIFT] = True
        places: Any = np.flatnonzero(is_there[piece.every(length) >> _FILTER_SHIFT])
        for search in group:
            search.look(piece, places, before)
