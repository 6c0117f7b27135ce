"""Repetition in a text: validation passages that training holds too, documents that come twice.

Both are seen in hashes of short stretches of bytes. Of the hashes only the smallest are kept, a
share that is set beforehand: so equal stretches are kept or dropped alike wherever they stand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from andrea.data.permutation import mix

PASSAGE_BYTES = 64
"""Length of the passages that are looked for in the training text."""

SHINGLE_BYTES = 32
"""Length of the stretches by which documents are compared."""

# Passages of the whole text that are kept at most, 8 bytes each. Of a small one every fourth.
_MOST_PASSAGES = 1 << 20
_LARGEST_SHARE = 0.25
# Documents that are compared at most: the first ones, some 60 bytes each.
_MOST_DOCUMENTS = 1 << 20
# Documents are alike if one of two signatures is: three minima of hashes each (Broder 1997, with
# the buckets of Li, Owen and Zhang 2012). That is so for 98% of those that have 95% of their
# shingles in common, for 57% of those with 70%, and for 5% of those with 30%.
_SIGNATURES = 2
_BUCKETS = 3 * _SIGNATURES
_SHINGLE_SHARE = 1 / 8
_NO_SHINGLE = np.uint32(2**32 - 1)

# Bytes worked on at a time: what is computed of them stays in a core's cache.
_BLOCK = 1 << 14
_MULTIPLIER = 0x9E3779B1
_FINISHER = np.uint32(0x85EBCA77)


@dataclass(frozen=True)
class Repetition:
    """What repeats in a prepared text.

    Of `passages` of the validation text (of `PASSAGE_BYTES`, or whole shorter documents; sampled)
    `leaked` stand in the training text, too. Of the first `documents` documents `repeated` equal an
    earlier one, and `near_repeated` others have most of their text in common with an earlier one.
    """

    passages: int
    leaked: int
    documents: int
    repeated: int
    near_repeated: int

    @property
    def leaked_share(self) -> float:
        """Share of the validation passages that stand in the training text: 0 to 1."""
        return self.leaked / self.passages if self.passages else 0.0

    def notes(self) -> Iterator[str]:
        """Yield sentences about what a user should know: one percent and more."""
        if self.leaked >= 0.01 * max(self.passages, 1):
            yield (
                f"leakage: {self.leaked_share:.0%} of the validation text stands in the training "
                "text word for word: its loss looks better than it is"
            )
        if self.repeated + self.near_repeated >= 0.01 * max(self.documents, 1):
            are = "is a copy" if self.repeated == 1 else "are copies"
            yield (
                f"repetition: {self.repeated:,} of {self.documents:,} documents {are} of an "
                f"earlier one, {self.near_repeated:,} more nearly so"
            )


class Sketch(NamedTuple):
    """What is kept of a batch of segments."""

    train: NDArray[np.uint64]
    """Different hashes of passages of training text, (n,)."""
    validation: NDArray[np.uint64]
    """Different hashes of passages of validation text, (m,)."""
    validation_counts: NDArray[np.intp]
    """How often each of them was there, (m,)."""
    minima: NDArray[np.uint32]
    """Smallest shingle hash by segment and bucket, (segments, 6); 2^32 - 1 if there is none."""


def passage_share(num_bytes: int) -> float:
    """Return which share of the passages is kept of a text of so many bytes."""
    return min(_MOST_PASSAGES / max(num_bytes, 1), _LARGEST_SHARE)


def sketch(segments: Sequence[bytes], is_validation: NDArray[np.bool_], share: float) -> Sketch:
    """Return what is kept of segments of documents, (n,), and the side each is on, (n,)."""
    ends = np.cumsum([len(segment) for segment in segments])
    data = np.frombuffer(b"".join(segments), dtype=np.uint8)
    minima = np.full((len(segments), _BUCKETS), _NO_SHINGLE)
    sides: tuple[list[NDArray[np.uint64]], ...] = ([], [])
    for first in range(0, len(data), _BLOCK):
        block = data[first : first + _BLOCK + PASSAGE_BYTES - 1]
        shingles, passages = _window_hashes(block)
        places, owners = _inside(_small(shingles, _SHINGLE_SHARE), first, ends, SHINGLE_BYTES)
        mixed = mix(shingles[places].astype(np.uint64))
        buckets = (mixed % np.uint64(_BUCKETS)).astype(np.int64)
        values = (mixed >> np.uint64(32)).astype(np.uint32)
        np.minimum.at(minima.reshape(-1), owners * _BUCKETS + buckets, values)
        places, owners = _inside(_small(passages, share), first, ends, PASSAGE_BYTES)
        hashes = _long_hashes(block, places)
        for side, kept in enumerate(sides):
            kept.append(hashes[is_validation[owners] == bool(side)])
    for segment, side in zip(segments, is_validation.tolist(), strict=True):
        if 0 < len(segment) < PASSAGE_BYTES:
            value = int.from_bytes(hashlib.blake2b(segment, digest_size=8).digest(), "little")
            if value < share * 2**64:
                sides[side].append(np.array([value], dtype=np.uint64))
    # A text may repeat one passage without end.
    (train, _), (validation, counts) = (
        np.unique(np.concatenate([_NOTHING, *kept]), return_counts=True) for kept in sides
    )
    return Sketch(train, validation, counts, minima)


_NOTHING = np.zeros(0, dtype=np.uint64)


class RepetitionCheck:
    """Takes the sketches of all segments in order and tells what repeats."""

    def __init__(self) -> None:
        """Start with no text."""
        self._train = [_NOTHING]
        self._validation = [_NOTHING]
        self._validation_counts = [np.zeros(0, dtype=np.intp)]
        self._minima: list[NDArray[np.uint32]] = []
        self._num_documents = 0

    def add(self, found: Sketch, starts_document: NDArray[np.bool_]) -> None:
        """Take a batch's sketch, and which of its segments start a document."""
        self._train.append(found.train)
        self._validation.append(found.validation)
        self._validation_counts.append(found.validation_counts)
        starts = np.flatnonzero(starts_document)
        going_on = starts[0] if len(starts) else len(found.minima)
        if going_on and self._num_documents <= _MOST_DOCUMENTS:
            open_document = self._minima[-1][-1]
            np.minimum(open_document, found.minima[:going_on].min(axis=0), out=open_document)
        if len(starts) and self._num_documents < _MOST_DOCUMENTS:
            self._minima.append(np.minimum.reduceat(found.minima, starts, axis=0))
        self._num_documents += len(starts)

    def finish(self, sizes: Sequence[int], digests: Sequence[int]) -> Repetition:
        """Return what repeats, given the bytes and the content digest of each document."""
        train, validation = np.concatenate(self._train), np.concatenate(self._validation)
        counts = np.concatenate(self._validation_counts)
        train.sort()
        found = np.searchsorted(train, validation, "right") > np.searchsorted(train, validation)
        minima = np.concatenate([np.zeros((0, _BUCKETS), np.uint32), *self._minima])
        minima = minima[: min(len(sizes), _MOST_DOCUMENTS)]
        count = len(minima)
        equal = _seen_before(
            mix(np.asarray(sizes[:count], np.uint64)) ^ np.asarray(digests[:count], np.uint64)
        )
        alike = np.zeros(count, dtype=np.bool_)
        for signature in np.split(minima, _SIGNATURES, axis=1):
            complete = np.flatnonzero((signature != _NO_SHINGLE).all(axis=1))
            alike[complete] |= _seen_before(_combine(signature[complete].T))
        return Repetition(
            passages=int(counts.sum()),
            leaked=int(counts[found].sum()),
            documents=count,
            repeated=int(equal.sum()),
            near_repeated=int((alike & ~equal).sum()),
        )


def _window_hashes(data: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return a 32-bit hash of the shingle and of the passage from each byte on, as many as fit.

    The hash of a window is a polynomial in its bytes; that of a window twice as wide follows from
    two neighbours.
    """
    hashes = data.astype(np.uint32) * np.uint32(_MULTIPLIER)
    shingles = passages = hashes[:0]
    width = 1
    while width < PASSAGE_BYTES and len(hashes) > width:
        power = np.uint32(pow(_MULTIPLIER, width, 2**32))
        hashes = hashes[:-width] * power + hashes[width:]
        width *= 2
        if width == SHINGLE_BYTES:
            shingles = hashes * _FINISHER
        elif width == PASSAGE_BYTES:
            passages = hashes * _FINISHER
    return shingles, passages


def _small(hashes: NDArray[np.uint32], share: float) -> NDArray[np.intp]:
    return np.flatnonzero(hashes < np.uint32(share * (2**32 - 1)))


def _inside(
    places: NDArray[np.intp], first: int, ends: NDArray[np.intp], width: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the places of windows that lie in one segment, and the segments' numbers."""
    owners = np.searchsorted(ends, places + first, side="right")
    inside = places + first + width <= ends[owners]
    return places[inside], owners[inside]


def _long_hashes(data: NDArray[np.uint8], places: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of the passage from each place on, (n,)."""
    if not len(places):
        return _NOTHING
    passages = np.lib.stride_tricks.sliding_window_view(data, PASSAGE_BYTES)[places]
    return _combine(np.ascontiguousarray(passages).view("<u8").T)


def _combine(columns: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a 64-bit hash over each column, (n,), of integers, (rows, n)."""
    hashes = np.zeros(columns.shape[1], dtype=np.uint64)
    for row in columns:
        hashes = mix(hashes ^ row.astype(np.uint64))
    return hashes


def _seen_before(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Tell for each value whether it stands further in front, too."""
    order = np.argsort(values, kind="stable")
    in_order = values[order]
    before = np.zeros(len(values), dtype=np.bool_)
    before[order[1:]] = in_order[1:] == in_order[:-1]
    return before
