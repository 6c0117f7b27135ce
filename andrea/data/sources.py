"""Where text comes from: files, folders, standard input, and the text every Python carries.

A source yields documents, and its raw bytes for the content hash. To add a kind of source, subclass
Source and create it in `open_sources`.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import sys
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from andrea.data.decoding import CHUNK, decode
from andrea.data.records import json_lines, parquet_rows
from andrea.errors import DataError
from andrea.words import plural

OTHER_FILES = "other files"

TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst")
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIX = ".parquet"
_GZIP_MAGIC = b"\x1f\x8b"
# What the folder of a run holds. Its log is no text, and grows while a run learns from the folder
# around it.
_RUN_PARTS = ("checkpoints", "log.jsonl")


@dataclass(frozen=True)
class ReadOptions:
    """How files are read: their encoding, the key of a record's text, what a bad line does."""

    encoding: str | None = None
    text_key: str = "text"
    skip_bad: bool = False


class Source(ABC):
    """Yields documents; each is an iterator of text, used up before the next is asked for."""

    label: str
    kind: str
    size: int = 0
    """Raw bytes to read, for progress."""

    def __init__(self) -> None:
        """Start with nobody to tell."""
        self.on_read: Callable[[int], None] = lambda num_bytes: None
        """Hears how many raw bytes were read since it was last called."""

    @abstractmethod
    def raw_chunks(self) -> Iterator[bytes]:
        """Yield the bytes whose hash stands for this source."""

    @abstractmethod
    def documents(self, options: ReadOptions, counts: Counter[str]) -> Iterator[Iterator[str]]:
        """Yield the documents in order; DataError if the source cannot be read as text."""

    def version(self) -> object:
        """Return something that differs once the source was changed."""
        return None


class PythonReference(Source):
    """The language reference in `pydoc_data.topics`, one document per topic, by name."""

    label = "the Python language reference"
    kind = "pydoc"

    def __init__(self) -> None:
        """Load the topics; DataError if this Python comes without them."""
        super().__init__()
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise DataError(
                "this Python comes without pydoc_data, the default text: name a text file"
            ) from None
        self._topics = [topics[name] for name in sorted(topics)]
        self.size = sum(len(topic.encode()) for topic in self._topics)

    def raw_chunks(self) -> Iterator[bytes]:
        """Yield each topic with its length, so that borders count."""
        for topic in self._topics:
            data = topic.encode()
            self.on_read(len(data))
            yield len(data).to_bytes(8, "little") + data

    def documents(self, options: ReadOptions, counts: Counter[str]) -> Iterator[Iterator[str]]:
        """Yield the topics."""
        for topic in self._topics:
            self.on_read(len(topic.encode()))
            yield iter([topic])


class FileSource(Source):
    """One file: plain text is one document, records are one document each; gzip is recognised."""

    def __init__(self, path: Path, label: str | None = None, kind: str | None = None) -> None:
        """Take a regular file; `label` names it in messages, `kind` overrules its suffix."""
        super().__init__()
        self.label = label or str(path)
        self._path = path
        suffixes = [suffix.lower() for suffix in path.suffixes]
        self._named_gzip = suffixes[-1:] == [".gz"]
        inner = suffixes[-2 if self._named_gzip else -1 :][:1]
        self.kind = kind or _kind_of(inner[0] if inner else "")
        with _one_line_errors(self.label):
            self.size = path.stat().st_size

    def version(self) -> object:
        """Return size, time of change and number of the file."""
        with _one_line_errors(self.label):
            found = self._path.stat()
        return found.st_size, found.st_mtime_ns, found.st_ino

    def raw_chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes as they are on disk."""
        with _one_line_errors(self.label), open(self._path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                self.on_read(len(chunk))
                yield chunk

    def documents(self, options: ReadOptions, counts: Counter[str]) -> Iterator[Iterator[str]]:
        """Yield the file's text, or the text of its records."""
        if self.kind == "parquet":
            done = 0
            for text, share in parquet_rows(self._path, self.label, options.text_key):
                self.on_read(int(share * self.size) - done)
                done = int(share * self.size)
                yield iter([text])
            return
        pieces = decode(self._content(), self.label, options.encoding, counts)
        if self.kind == "text":
            yield pieces
            return
        for text in json_lines(pieces, self.label, options.text_key, options.skip_bad, counts):
            yield iter([text])

    def _content(self) -> Iterator[bytes]:
        """Yield the bytes of the text, decompressed where the file is gzip."""
        with _one_line_errors(self.label), open(self._path, "rb") as file:
            # No UTF-8 text begins with gzip's magic number, so that the name does not matter.
            compressed = file.peek(2)[:2] == _GZIP_MAGIC
            if self._named_gzip and not compressed:
                raise DataError(
                    f"{self.label}: is called .gz but does not start like gzip: damaged or misnamed"
                )
            stream = gzip.GzipFile(fileobj=file) if compressed else file
            done = 0
            while chunk := stream.read(CHUNK):
                self.on_read(file.tell() - done)
                done = file.tell()
                yield chunk


def _kind_of(suffix: str) -> str:
    if suffix == PARQUET_SUFFIX:
        return "parquet"
    return "jsonl" if suffix in JSON_LINES_SUFFIXES else "text"


def open_sources(
    paths: Sequence[str | os.PathLike[str]],
    *,
    spool_folder: Path,
    stdin_is_records: bool,
    stdin: BinaryIO | None,
    counts: Counter[str],
) -> list[Source]:
    """Return the sources of files, folders and "-"; of no paths, the Python language reference.

    What can be read only once (standard input, a pipe) is copied into `spool_folder` first.
    Files of a folder that are not taken are counted. DataError if there is nothing to read.
    """
    if not paths:
        return [PythonReference()]
    sources: list[Source] = []
    for path in paths:
        if os.fspath(path) == "-":
            stream = stdin or getattr(sys.stdin, "buffer", None)
            if stream is None:
                raise DataError("standard input is closed: name a file instead of -")
            kind = "jsonl" if stdin_is_records else "text"
            sources.append(_spool(stream, "standard input", kind, spool_folder))
            continue
        found = Path(path)
        label = str(found)
        with _one_line_errors(label):
            mode = found.stat().st_mode
            if stat.S_ISDIR(mode):
                sources.extend(FileSource(file) for file in _text_files(found, counts))
            elif stat.S_ISREG(mode):
                sources.append(FileSource(found))
            else:
                with open(found, "rb") as stream:
                    sources.append(_spool(stream, label, _kind_of(found.suffix), spool_folder))
    return sources


def _spool(stream: BinaryIO, label: str, kind: str, folder: Path) -> FileSource:
    copy = folder / f"input-{len(list(folder.iterdir()))}"
    try:
        with open(copy, "wb") as file:
            shutil.copyfileobj(stream, file, CHUNK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{label}: cannot be copied to {folder}: {reason}") from None
    return FileSource(copy, label=label, kind=kind)


def _text_files(folder: Path, counts: Counter[str]) -> list[Path]:
    """Return the text and record files below a folder, sorted.

    Hidden ones are not seen, nor are folders of runs.
    """

    def refuse(error: OSError) -> None:
        raise error

    taken: list[Path] = []
    others = 0
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if _may_hold_text(Path(parent, name))]
        for name in names:
            file = Path(parent, name)
            if _is_text_name(name) and file.is_file():
                taken.append(file)
            elif not name.startswith("."):
                others += 1
    if not taken:
        raise DataError(
            f"{folder}: no text in this folder, {plural(others, 'other file')}: it should hold "
            f"{', '.join((*TEXT_SUFFIXES, *JSON_LINES_SUFFIXES, PARQUET_SUFFIX))} (also .gz); "
            "files of other names must be named one by one"
        )
    counts[OTHER_FILES] += others
    return sorted(taken, key=lambda file: file.relative_to(folder).parts)


def _may_hold_text(folder: Path) -> bool:
    is_run = all((folder / name).exists() for name in _RUN_PARTS)
    return not folder.name.startswith(".") and not is_run


def _is_text_name(name: str) -> bool:
    plain = name.lower().removesuffix(".gz")
    return not name.startswith(".") and (
        plain.endswith((*TEXT_SUFFIXES, *JSON_LINES_SUFFIXES))
        or name.lower().endswith(PARQUET_SUFFIX)
    )


@contextmanager
def _one_line_errors(label: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{label}: no such file or folder") from None
    except PermissionError as error:
        raise DataError(f"{error.filename or label}: no permission to read it") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{label}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DataError(
            f"{error.filename or label}: cannot be read: {error.strerror or error}"
        ) from None
