"""The second reading of a text: documents to tokens, on their side of the split."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from andrea.data.decoding import decode_in_parts
from andrea.data.leakage import RepetitionCheck, Sketch, sketch
from andrea.data.split import Split
from andrea.data.token_file import TokenArray, TokenWriter, token_dtype
from andrea.data.workers import map_in_order
from andrea.tokenizers import Tokenizer

# Texts are encoded together until they hold this many bytes.
_BATCH_BYTES = 1 << 20

_UTF8 = codecs.getincrementaldecoder("utf-8")


class Segment(NamedTuple):
    """A stretch of a document that can be encoded without what is around it."""

    is_validation: bool
    starts_document: bool
    data: bytes
    """Its text in UTF-8."""


class EncodedBatch(NamedTuple):
    """What became of some segments; pairs are of the training and the validation side."""

    tokens: tuple[TokenArray, TokenArray]
    num_bytes: tuple[int, int]
    train_counts: NDArray[np.int64]
    """How often each token stands in the training side, (vocab_size,)."""
    starts_document: NDArray[np.bool_]
    sketch: Sketch


class Totals(NamedTuple):
    """What `encode_documents` counted."""

    train_bytes: int
    validation_bytes: int
    train_counts: NDArray[np.int64]


class BatchEncoder:
    """Encodes segments; the result depends on these alone, so that any process may do it."""

    def __init__(self, tokenizer: Tokenizer, passage_share: float) -> None:
        """Take the tokenizer and the share of passages to keep for the leakage check."""
        self.tokenizer = tokenizer
        self.passage_share = passage_share

    def __call__(self, batch: Sequence[Segment]) -> EncodedBatch:
        """Return the tokens, a beginning-of-document token before each document."""
        tokenizer = self.tokenizer
        dtype = token_dtype(tokenizer.vocab_size)
        marker = np.array([tokenizer.beginning_of_document], dtype=np.int32)
        parts: tuple[list[NDArray[np.int32]], ...] = ([marker[:0]], [marker[:0]])
        data = [segment.data for segment in batch]
        encoded = tokenizer.encode_batch([decode_in_parts(_UTF8(), text) for text in data])
        for segment, tokens in zip(batch, encoded, strict=True):
            side = parts[segment.is_validation]
            if segment.starts_document:
                side.append(marker)
            side.append(tokens)
        train, validation = (np.concatenate(side) for side in parts)
        is_validation = np.array([segment.is_validation for segment in batch])
        sizes = np.array(list(map(len, data)))
        return EncodedBatch(
            tokens=(train.astype(dtype), validation.astype(dtype)),
            num_bytes=(int(sizes[~is_validation].sum()), int(sizes[is_validation].sum())),
            train_counts=np.bincount(train, minlength=tokenizer.vocab_size),
            starts_document=np.array([segment.starts_document for segment in batch]),
            sketch=sketch(data, is_validation, self.passage_share),
        )


def segments(
    documents: Iterator[Iterator[str]], split: Split, tokenizer: Tokenizer
) -> Iterator[Segment]:
    """Yield all text in order, cut only where a cut does not change the tokens, or sides change."""
    for document in documents:
        text = ""
        side = starts = True
        for is_validation, piece in split.parts(document):
            if text:
                cut = tokenizer.safe_cut(text) if side == is_validation else len(text)
                yield Segment(side, starts, text[:cut].encode("utf-8"))
                text = text[cut:]
                starts = False
            side = is_validation
            text += piece
        yield Segment(side, starts, text.encode("utf-8"))


def encode_documents(
    documents: Iterator[Iterator[str]],
    split: Split,
    encoder: BatchEncoder,
    train: TokenWriter,
    validation: TokenWriter,
    check: RepetitionCheck,
    processes: int = 1,
) -> Totals:
    """Write the tokens of each side, with the help of more processes where there are any.

    Tokens, totals and what `check` hears are the same for any number of processes.
    """
    num_bytes = np.zeros(2, dtype=np.int64)
    counts = np.zeros(encoder.tokenizer.vocab_size, dtype=np.int64)
    batches = _batches(segments(documents, split, encoder.tokenizer))
    with closing(map_in_order(encoder, batches, processes)) as encoded:
        for batch in encoded:
            train.append(batch.tokens[0])
            validation.append(batch.tokens[1])
            num_bytes += batch.num_bytes
            counts += batch.train_counts
            check.add(batch.sketch, batch.starts_document)
    return Totals(int(num_bytes[0]), int(num_bytes[1]), counts)


def _batches(stream: Iterable[Segment]) -> Iterator[list[Segment]]:
    batch: list[Segment] = []
    size = 0
    for segment in stream:
        batch.append(segment)
        size += len(segment.data)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
