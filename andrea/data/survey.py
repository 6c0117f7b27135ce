"""The first reading of a text: what documents there are, before tokenizer and split are decided."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from andrea.data.decoding import CHUNK, REPLACED, without_byte_order_mark
from andrea.data.sources import ReadOptions, Source
from andrea.tokenizers import TokenizerTrainer
from andrea.tokenizers.base import well_formed

EMPTY = "empty documents"


@dataclass
class Survey:
    """Bytes (of UTF-8) and content digest of each document, and what was passed over."""

    sizes: array[int] = field(default_factory=lambda: array("Q"))
    digests: array[int] = field(default_factory=lambda: array("Q"))
    counts: Counter[str] = field(default_factory=Counter)


def read_documents(
    sources: Sequence[Source], options: ReadOptions, counts: Counter[str]
) -> Iterator[Iterator[str]]:
    """Yield the documents that hold text, each in pieces of well-formed text.

    Empty and blank documents are counted. A document must be used up before the next is asked for.
    """
    for source in sources:
        for document in source.documents(options, counts):
            pieces = _well_formed_pieces(without_byte_order_mark(document, counts), counts)
            blank_start = []
            for piece in pieces:
                blank_start.append(piece)
                if not piece.isspace():
                    yield chain(blank_start, pieces)
                    break
            else:
                counts[EMPTY] += 1


def _well_formed_pieces(pieces: Iterator[str], counts: Counter[str]) -> Iterator[str]:
    for piece in pieces:
        fixed = well_formed(piece)
        if fixed is not piece:
            counts[REPLACED] += fixed.count("\ufffd") - piece.count("\ufffd")
        # A record can be long: it is handed on in pieces as a file is.
        for start in range(0, len(fixed), CHUNK):
            yield fixed[start : start + CHUNK]


def survey(
    sources: Sequence[Source],
    options: ReadOptions,
    trainer: TokenizerTrainer | None,
) -> Survey:
    """Read everything once and show the text to the trainer."""
    found = Survey()
    for document in read_documents(sources, options, found.counts):
        size = 0
        digest = b""
        for piece in document:
            data = piece.encode("utf-8")
            # The first piece (a megabyte) tells documents apart well enough for the split.
            digest = digest or hashlib.blake2b(data, digest_size=8).digest()
            size += len(data)
            if trainer is not None:
                trainer.add(piece)
        found.sizes.append(size)
        found.digests.append(int.from_bytes(digest, "little"))
    return found
