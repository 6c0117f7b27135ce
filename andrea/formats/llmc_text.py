"""Texts between Andrea and llm.c: prepared tokens as its token files, and those as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from andrea.errors import CheckpointError, DataError
from andrea.runs.whole_file import whole_file, write_all
from andrea.tokenizers import Tokenizer

from .llmc import read_tokens, write_tokens
from .new_folder import new_folder, refuse_existing

if TYPE_CHECKING:
    from andrea.data import PreparedData

TRAIN, VALIDATION = "train.bin", "val.bin"
_TOGETHER = 1 << 20


def export_tokens(data: PreparedData, path: Path) -> None:
    """Make a folder with a prepared text as llm.c's token files, train.bin and val.bin.

    Documents begin with the tokenizer's own token for that, as llm.c's begin with <|endoftext|>.

    Raises:
        CheckpointError: there is something at `path`, or the disk refuses.
        DataError: ids or counts are larger than the files can hold.
    """
    with new_folder(path) as folder:
        for name, tokens in ((TRAIN, data.train), (VALIDATION, data.validation)):
            if len(tokens):
                write_tokens(folder / name, _parts(tokens), len(tokens))


def _parts(tokens: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(tokens), _TOGETHER):
        yield tokens[start : start + _TOGETHER]


def import_tokens(source: Path, tokenizer: Tokenizer, path: Path) -> int:
    """Write the documents of an llm.c token file as JSON lines, {"text": ...}; returns how many.

    Raises:
        DataError: the file is damaged, or made by another tokenizer.
        CheckpointError: there is something at `path`, or the disk refuses.
    """
    tokens = read_tokens(source, tokenizer.vocab_size)
    refuse_existing(path)
    written = 0
    try:
        with whole_file(path) as descriptor:
            for document in _documents(tokens, tokenizer.beginning_of_document):
                line = {"text": tokenizer.decode(document)}
                write_all(descriptor, json.dumps(line, ensure_ascii=False).encode() + b"\n")
                written += 1
            if not written:
                raise DataError(f"{source} holds no text")
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    return written


def _documents(tokens: NDArray[Any], marker: int) -> Iterator[NDArray[Any]]:
    """What stands between markers, where that is anything."""
    start = 0
    for first in range(0, len(tokens), _TOGETHER):
        for place in np.flatnonzero(tokens[first : first + _TOGETHER] == marker):
            end = first + int(place)
            if end > start:
                yield tokens[start:end]
            start = end + 1
    if start < len(tokens):
        yield tokens[start:]
