"""The text of a run: what the command line names, how it is read, what it turned out to be."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import Failure
from .screen.display import Display, Rows, note_row
from .screen.formats import plural, size

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.tokenizers import Tokenizer

STANDARD_INPUT = "-"
_STAGES = {
    "read": "reading the text",
    "scan": "reading the text",
    "tokenizer": "learning the tokenizer",
    "encode": "turning text into tokens",
    "check": "checking the tokens",
}
_SHOWN_NAMES = 3


@dataclass(frozen=True)
class TextRequest:
    """Where text comes from and how it is read; what a run records, so that it can be resumed.

    `sources` are absolute paths, or "-" for standard input; none: the text every Python carries.
    """

    sources: tuple[str, ...] = ()
    text_key: str | None = None
    encoding: str | None = None
    skip_bad: bool = False

    def to_record(self) -> dict[str, Any]:
        """The request as plain data."""
        return {
            "sources": list(self.sources),
            "text_key": self.text_key,
            "encoding": self.encoding,
            "skip_bad": self.skip_bad,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TextRequest:
        """The request that `to_record` wrote.

        Raises:
            Failure: the record holds no text, as that of a run made by another program.
        """
        if "sources" not in record:
            raise Failure(
                "this run does not say what text it learned from: "
                "give it, andrea train --resume RUN TEXT"
            )
        return cls(
            sources=tuple(str(source) for source in record["sources"]),
            text_key=record.get("text_key"),
            encoding=record.get("encoding"),
            skip_bad=bool(record.get("skip_bad")),
        )

    def describe(self) -> str:
        """The sources by name."""
        if not self.sources:
            return "the Python language reference (pydoc_data.topics)"
        names = [
            "standard input"
            if source == STANDARD_INPUT
            else os.path.basename(source) + ("/" if os.path.isdir(source) else "")
            for source in self.sources
        ]
        if len(names) <= _SHOWN_NAMES:
            return ", ".join(names)
        return f"{', '.join(names[:_SHOWN_NAMES])} and {len(names) - _SHOWN_NAMES} more"


def absolute_sources(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The named texts as a resumed run finds them again, from whatever folder."""
    return tuple(text if text == STANDARD_INPUT else os.path.abspath(text) for text in texts)


def default_folder(sources: tuple[str, ...], parent: Path) -> Path:
    """A folder for a new run, named after its first text; numbered when that is taken."""
    stem = "python-reference"
    if sources:
        stem = "standard-input"
        if sources[0] != STANDARD_INPUT:
            name = os.path.basename(sources[0]).removesuffix(".gz")
            stem = os.path.splitext(name)[0] or name or "text"
    path, number = parent / stem, 1
    while os.path.lexists(path):
        number += 1
        path = parent / f"{stem}-{number}"
    return path


def prepare_text(
    request: TextRequest,
    display: Display,
    *,
    tokenizer: str | Tokenizer,
    vocab_size: int | None = None,
    cache: str | None = None,
    validation_fraction: float = 0.1,
) -> PreparedData:
    """Read, tokenize and split the text, showing how far that is.

    With a validation_fraction of 0 all of it is `train`.

    Raises:
        DataError: the text cannot be read or used.
        TokenizerError: the tokenizer cannot be made, or does not know the text.
    """
    import platformdirs

    from andrea.data import prepare

    shown, shown_stage = 0.0, ""

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal shown, shown_stage
        now = time.monotonic()
        if stage == shown_stage and now - shown < 0.1:
            return
        shown, shown_stage = now, stage
        amount = f"{size(done)} of {size(total)}" if total else size(done)
        fraction = min(done / total, 1.0) if total else None
        display.activity(f"{_STAGES.get(stage, stage)}: {amount}", fraction)

    return prepare(
        request.sources,
        cache_dir=cache or platformdirs.user_cache_dir("andrea"),
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        encoding=request.encoding,
        text_key=request.text_key,
        skip_bad=request.skip_bad,
        progress=tell,
        validation_fraction=validation_fraction,
    )


def data_record(data: PreparedData) -> dict[str, Any]:
    """What a run records of its text, to know it again and to tell about it."""
    return {
        "fingerprint": data.fingerprint,
        "documents": data.documents,
        "train_tokens": len(data.train),
        "validation_tokens": len(data.validation),
        "num_bytes": data.num_bytes,
    }


def text_rows(request: TextRequest, data: PreparedData) -> Rows:
    """What the text is, for people."""
    amount = f"{plural(data.documents, 'document')}, {size(data.num_bytes)}"
    notes = [note_row(note) for note in data.notes]
    if not any(name == "tokenizer" for name, _ in notes):
        notes.insert(0, ("tokenizer", data.tokenizer.describe()))
    return [
        ("text", f"{request.describe()}: {amount}"),
        *notes,
        ("tokens", f"{len(data.train):,} to learn from, {len(data.validation):,} to validate"),
    ]
