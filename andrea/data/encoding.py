"""The second reading of a text: documents to tokens, on their side of the split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from andrea.data.split import Split
from andrea.data.token_file import TokenWriter
from andrea.tokenizers import Tokenizer

# Texts are encoded together until they hold this many characters.
_BATCH_CHARS = 1 << 20


class Segment(NamedTuple):
    """A stretch of a document that can be encoded without what is around it."""

    is_validation: bool
    starts_document: bool
    text: str


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
                yield Segment(side, starts, text[:cut])
                text = text[cut:]
                starts = False
            side = is_validation
            text += piece
        yield Segment(side, starts, text)


def encode_documents(
    documents: Iterator[Iterator[str]],
    split: Split,
    tokenizer: Tokenizer,
    train: TokenWriter,
    validation: TokenWriter,
) -> tuple[int, int]:
    """Write the tokens of each side, each document after a beginning-of-document token.

    Return the UTF-8 bytes of training and of validation text.
    """
    marker = np.array([tokenizer.beginning_of_document], dtype=np.int32)
    num_bytes = [0, 0]
    for batch in _batches(segments(documents, split, tokenizer)):
        encoded = tokenizer.encode_batch([segment.text for segment in batch])
        for segment, tokens in zip(batch, encoded, strict=True):
            writer = validation if segment.is_validation else train
            if segment.starts_document:
                writer.append(marker)
            writer.append(tokens)
            num_bytes[segment.is_validation] += len(segment.text.encode("utf-8"))
    return num_bytes[0], num_bytes[1]


def _batches(stream: Iterator[Segment]) -> Iterator[list[Segment]]:
    batch: list[Segment] = []
    size = 0
    for segment in stream:
        batch.append(segment)
        size += len(segment.text)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
