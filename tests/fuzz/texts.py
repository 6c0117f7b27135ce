"""Damaged texts: JSON lines, plain, gzipped and Parquet, beside a second reading of the same bytes.

What `prepare` takes must be what a plain reader of Python finds there, to the last character.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from andrea.data import PreparedData, prepare
from andrea.errors import DataError

from .damage import damage_bytes, damage_json

_WORDS = ("the", "café", "straße", "東京", "😀", "a", "line\nbreak", '"quoted"', "back\\slash", "")


def some_text(random: Random) -> str:
    return " ".join(random.choice(_WORDS) for _ in range(random.randint(1, 30)))


def read(path: Path, folder: Path, **settings: Any) -> PreparedData:
    """Prepare a file by bytes, without a cache from before."""
    cache = folder / "cache"
    return prepare([path], cache_dir=cache, tokenizer="byte", validation_fraction=0, **settings)


def documents_of(data: PreparedData) -> list[str]:
    """The documents, from the tokens."""
    tokens = np.asarray(data.train)
    starts = np.flatnonzero(tokens == data.tokenizer.beginning_of_document)
    if len(starts) == 0:
        return [data.tokenizer.decode(tokens)]
    pieces = np.split(tokens, starts)
    return [data.tokenizer.decode(piece) for piece in pieces if len(piece)]


def expected(texts: list[str]) -> list[str]:
    """Documents that hold text, as `prepare` states it: without a mark at the start."""
    kept = []
    for text in texts:
        well_formed = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        well_formed = well_formed.removeprefix("\ufeff")
        if well_formed and not well_formed.isspace():
            kept.append(well_formed)
    return kept


def is_readable(content: bytes) -> bool:
    """Whether bytes are text without an encoding's name: all of it UTF-8, no NUL."""
    try:
        return "\0" not in content.decode("utf-8")
    except UnicodeDecodeError:
        return False


class JsonLines:
    """Records with wrong keys and types, broken lines, broken characters."""

    def __init__(self, _folder: Path) -> None:
        """Nothing to prepare."""

    def case(self, random: Random, folder: Path) -> str:
        lines = []
        for _ in range(random.randint(1, 6)):
            record: Any = {"text": some_text(random), "id": random.randrange(9)}
            if random.random() < 0.2:
                record = damage_json(random, record)
            lines.append(json.dumps(record, ensure_ascii=random.random() < 0.5))
        end = random.choice(("\n", "\r\n", "\n\n"))
        content = (end.join(lines) + end).encode("utf-8", "surrogatepass")
        if random.random() < 0.5:
            content = damage_bytes(random, content)
        path = folder / "records.jsonl"
        path.write_bytes(content)
        texts, bad = self._by_hand(content)
        skips = random.random() < 0.5
        is_fine = is_readable(content) and bool(expected(texts)) and (skips or not bad)
        try:
            data = read(path, folder, skip_bad=skips)
        except DataError:
            assert not is_fine, "refused without a reason"
            raise
        assert is_fine, f"accepted, with {bad} bad lines"
        assert data.skipped.get("bad lines", 0) == bad
        assert documents_of(data) == expected(texts)
        return "read with bad lines" if bad else "read"

    @staticmethod
    def _by_hand(content: bytes) -> tuple[list[str], int]:
        """The texts, and how many lines have none."""
        texts, bad = [], 0
        for line in content.decode("utf-8", "replace").removeprefix("\ufeff").split("\n"):
            if not line or line.isspace():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict) and isinstance(record.get("text"), str):
                texts.append(record["text"])
            else:
                bad += 1
        return texts, bad


class PlainText:
    """Bytes that are UTF-8 are the text; others are refused, or replaced where that is asked."""

    def __init__(self, _folder: Path) -> None:
        """Nothing to prepare."""

    def case(self, random: Random, folder: Path) -> str:
        content = damage_bytes(random, some_text(random).encode())
        path = folder / "text.txt"
        path.write_bytes(content)
        if random.random() < 0.5:
            encoding = random.choice(("utf-8", "latin-1", "cp1252", "utf-16", "ascii", "utf-8-sig"))
            data = read(path, folder, encoding=encoding)
            text = content.decode(encoding, "replace")
        else:
            text = content.decode("utf-8", "replace")
            is_fine = is_readable(content) and bool(expected([text]))
            try:
                data = read(path, folder)
            except DataError:
                assert not is_fine, "refused without a reason"
                raise
            assert is_fine
        assert documents_of(data) == expected([text])
        return "read"


class GzippedText:
    """A checksum is in the file: what is read is what was packed."""

    def __init__(self, _folder: Path) -> None:
        """Nothing to prepare."""

    def case(self, random: Random, folder: Path) -> str:
        text = some_text(random) + "."
        packed = bytearray(gzip.compress(text.encode(), mtime=0))
        content = damage_bytes(random, bytes(packed))
        path = folder / random.choice(("text.txt.gz", "text.txt"))
        path.write_bytes(content)
        documents = documents_of(read(path, folder))
        # Two copies after one another are one text; a header's flags and time are not content.
        whole = gzip.decompress(content).decode() if content[:2] == b"\x1f\x8b" else None
        if whole is None:
            whole = content.decode("utf-8")
        assert documents == expected([whole])
        return "read"


class Parquet:
    """A format without a checksum: whatever stands there, refused or read, but no crash."""

    def __init__(self, folder: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        path = folder / "good.parquet"
        rows = {"text": [f"row {number} is a text" for number in range(60)], "id": list(range(60))}
        pyarrow.parquet.write_table(pyarrow.table(rows), path, compression="snappy")
        self.good = path.read_bytes()

    def case(self, random: Random, folder: Path) -> str:
        path = folder / "damaged.parquet"
        path.write_bytes(damage_bytes(random, self.good))
        data = read(path, folder)
        if not data.train.size:
            raise DataError("no text")
        return "read"
