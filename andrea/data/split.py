"""Training and validation text: split by documents where there are enough, else the tail is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_ENOUGH_DOCUMENTS = 10


class Split(Protocol):
    """Says of every piece of text, document by document in order, which side it belongs to."""

    validation_documents: int

    def parts(self, pieces: Iterator[str]) -> Iterator[tuple[bool, str]]:
        """Yield (is validation, text) for the pieces of the next document."""


class DocumentSplit:
    """Documents go to one side as a whole."""

    def __init__(self, is_validation: NDArray[np.bool_]) -> None:
        """Take one truth value per document."""
        self.validation_documents = int(is_validation.sum())
        self._is_validation = is_validation
        self._next = 0

    def parts(self, pieces: Iterator[str]) -> Iterator[tuple[bool, str]]:
        """Yield the pieces with their document's side."""
        side = self._next < len(self._is_validation) and bool(self._is_validation[self._next])
        self._next += 1
        for piece in pieces:
            yield side, piece


class TailSplit:
    """The text from a byte position on is for validation; a document may lie on both sides."""

    validation_documents = 0

    def __init__(self, train_bytes: int) -> None:
        """Take the position; a character that lies across it goes to validation."""
        self._room = train_bytes

    def parts(self, pieces: Iterator[str]) -> Iterator[tuple[bool, str]]:
        """Yield the pieces, the one at the position in two."""
        for piece in pieces:
            data = piece.encode("utf-8")
            head = piece
            if len(data) > self._room:
                head = data[: max(self._room, 0)].decode("utf-8", "ignore")
            self._room -= len(data)
            if head:
                yield False, head
            if len(head) < len(piece):
                yield True, piece[len(head) :]


def plan_split(sizes: Sequence[int], digests: Sequence[int], fraction: float) -> Split:
    """Decide the split from each document's bytes and content digest.

    Documents are taken for validation in the order of their digests, which neither the order of
    the files nor added ones change much, until they make `fraction` of the bytes. With few
    documents, or if no choice reaches half of that, the last `fraction` of the text is taken.
    """
    total = sum(sizes)
    tail = TailSplit(int(total * (1 - fraction)))
    if len(sizes) < _ENOUGH_DOCUMENTS or fraction == 0:
        return tail
    wanted = total * fraction
    is_validation = np.zeros(len(sizes), dtype=np.bool_)
    chosen = 0
    for index in _by_digest(np.asarray(digests, dtype=np.uint64), fraction):
        if chosen >= wanted:
            break
        if chosen + sizes[index] <= 1.5 * wanted:
            is_validation[index] = True
            chosen += sizes[index]
    return DocumentSplit(is_validation) if chosen >= 0.5 * wanted else tail


def _by_digest(digests: NDArray[np.uint64], fraction: float) -> Iterator[int]:
    """Yield all documents in the order of their digests.

    Those that are usually enough are sorted first: of many documents an order of all takes memory.
    """
    is_small = digests < np.uint64(min(2 * fraction, 0.99) * 2**64)
    for part in (is_small, ~is_small):
        places = np.flatnonzero(part)
        for index in places[np.argsort(digests[places], kind="stable")]:
            yield int(index)
