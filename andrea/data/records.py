"""Documents out of record files: JSON lines and Parquet. One record is one document."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from andrea.data.decoding import CHUNK
from andrea.errors import DataError

BAD_LINES = "bad lines"

# A longer line means that the file is not JSON lines; reading on would fill the memory.
_LONGEST_LINE = 1 << 26
_SHOWN_AT_MOST = 8


def json_lines(
    pieces: Iterator[str], label: str, text_key: str, skip_bad: bool, counts: Counter[str]
) -> Iterator[str]:
    """Yield the text under `text_key` of each line's object; blank lines are passed over.

    Raises DataError with file and line number at a bad line, or counts it if `skip_bad`.
    """
    for number, line in enumerate(_lines(pieces, label), start=1):
        if not line or line.isspace():
            continue
        text, complaint = _text_of_line(line, text_key)
        if text is not None:
            yield text
        elif skip_bad:
            counts[BAD_LINES] += 1
        else:
            raise DataError(f"{label}:{number}: {complaint}; --skip-bad passes over such lines")


def _lines(pieces: Iterator[str], label: str) -> Iterator[str]:
    unfinished: list[str] = []
    size = 0
    for piece in pieces:
        *lines, rest = piece.split("\n")
        if lines:
            yield "".join([*unfinished, lines[0]])
            yield from lines[1:]
            unfinished, size = [], 0
        unfinished.append(rest)
        size += len(rest)
        if size > _LONGEST_LINE:
            raise DataError(
                f"{label}: a line is longer than {_LONGEST_LINE:,} characters: JSON lines have one "
                "record a line"
            )
    yield "".join(unfinished)


def _text_of_line(line: str, text_key: str) -> tuple[str | None, str]:
    """Return the text, or None and what is wrong with the line."""
    try:
        record = json.loads(line)
    except RecursionError:
        return None, "not a JSON object: nested too deeply"
    except ValueError as error:
        reason = str(error).replace("\n", " ")
        return None, f"not a JSON object: {reason}"
    if not isinstance(record, dict):
        return None, f"a JSON {_json_type(record)} where an object with {text_key!r} is needed"
    if text_key not in record:
        return None, f"no {text_key!r} {_choices(list(record))}"
    text = record[text_key]
    if not isinstance(text, str):
        return None, f"{text_key!r} is a {_json_type(text)}, not a text"
    return text, ""


def _choices(keys: list[str]) -> str:
    shown = ", ".join(repr(key) for key in keys[:_SHOWN_AT_MOST]) or "none at all"
    return f"among its keys ({shown}): name the right one with --text-key"


def _json_type(value: object) -> str:
    names = {dict: "object", list: "list", str: "text", bool: "truth value", type(None): "null"}
    return names.get(type(value), "number")


def parquet_rows(path: Path, label: str, text_key: str) -> Iterator[tuple[str, float]]:
    """Yield each text of one column and the share of rows read; no value is an empty text.

    Raises DataError if pyarrow is missing, the file is damaged, or the column is not there or not
    text.
    """
    try:
        arrow = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(
            f'{label}: reading Parquet needs pyarrow: pip install "andrea[parquet]"'
        ) from None
    try:
        # Without a buffer size a whole row group is read at once, which may be the whole file.
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=CHUNK) as file:
            _check_column(file.schema_arrow, label, text_key)
            rows = 0
            for batch in file.iter_batches(batch_size=256, columns=[text_key]):
                rows += batch.num_rows
                for value in batch.column(0):
                    yield value.as_py() or "", rows / file.metadata.num_rows
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{label}: damaged Parquet file: {reason}") from None


def _check_column(schema: Any, label: str, text_key: str) -> None:
    if text_key not in schema.names:
        raise DataError(f"{label}: no column {text_key!r} {_choices(schema.names)}")
    kind = str(schema.field(text_key).type)
    if kind not in ("string", "large_string", "string_view"):
        raise DataError(f"{label}: column {text_key!r} holds {kind}, not text")
