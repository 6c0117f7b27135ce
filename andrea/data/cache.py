"""The cache of prepared texts: token files under the hash of everything they came from.

An entry is built in a folder of its own and renamed into place, so that no reader ever sees half of
one, and is checked against its digests before it is served: a damaged one is built again. When all
of them take more than a limit, those that were not used for the longest time are removed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from andrea.data.token_file import TokenArray, TokenFileFacts, open_tokens
from andrea.errors import DataError
from andrea.tokenizers import TrainedTokenizer, tokenizer_from_dict
from andrea.words import size

_WORK_PREFIX = "unfinished-"
_ABANDONED_AFTER_SECONDS = 24 * 3600
_RECORD = "record.json"
# Nothing else is ever removed, whatever folder it is.
_OWN_NAME = re.compile(r"[0-9a-f]{32}(\.json)?")

CACHE_LIMIT = 20 * 10**9
"""Bytes that prepared texts may take together, unless one alone takes more."""


class _Item(NamedTuple):
    """Something in the cache, in the order of its last use."""

    last_use: int
    path: Path
    num_bytes: int


class TokenCache:
    """Prepared texts in one folder, shared by all processes of a user."""

    def __init__(self, folder: str | os.PathLike[str], limit: int = CACHE_LIMIT) -> None:
        """Create the folder if it is missing; DataError if that cannot be done.

        All texts together may take `limit` bytes.
        """
        self._folder = Path(folder)
        self._limit = limit
        with self.writing():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn a failed write into a DataError that names the folder."""
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                taken = size(cache_size(self._folder)[1])
                seen = (
                    f"the disk is full: free some space there (prepared texts take {taken} "
                    "and may be deleted), or"
                )
            else:
                seen = f"cannot be written ({error.strerror}):"
            raise DataError(
                f"{self._folder}: {seen} choose another cache folder with --cache"
            ) from None

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """Give a new folder on the cache's disk, which is removed at the end unless published."""
        with self.writing():
            folder = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=self._folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def load(
        self, key: str, on_read: Callable[[int, int], None] = lambda done, total: None
    ) -> tuple[TokenArray, TokenArray, dict[str, Any]] | None:
        """Return train and validation tokens and the record, or None if absent or damaged.

        All tokens are read for that; `on_read` hears how many bytes so far, and in all.
        """
        folder = self._folder / key
        record = read_sealed(folder / _RECORD)
        if record is None:
            return None
        facts = {name: TokenFileFacts(**record[name]) for name in ("train", "validation")}
        total = sum(of_file.num_bytes for of_file in facts.values())
        done = 0

        def add(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            on_read(done, total)

        train, validation = (
            open_tokens(folder / f"{name}.npy", of_file, add) for name, of_file in facts.items()
        )
        if train is None or validation is None:
            return None
        _mark_as_used(folder / _RECORD)
        return train, validation, record

    def publish(
        self,
        work: Path,
        key: str,
        train: TokenFileFacts,
        validation: TokenFileFacts,
        record: dict[str, Any],
    ) -> None:
        """Make the work folder, which holds train.npy and validation.npy, the entry of this key.

        A damaged entry of the key is moved beside the work folder, to be removed with it.
        """
        facts = {"train": asdict(train), "validation": asdict(validation)}
        write_sealed(work / _RECORD, record | facts)
        final = self._folder / key
        if final.exists() and self.load(key) is None:
            with suppress(FileNotFoundError):
                os.rename(final, work.with_name(f"{work.name}-damaged"))
        try:
            os.rename(work, final)
        except OSError:
            # Another process may have been faster, with the same tokens.
            if self.load(key) is None:
                raise
        self._remove_least_used(key)

    def load_tokenizer(self, request: str) -> TrainedTokenizer | None:
        """Return the tokenizer that was trained for this request, or None."""
        path = self._folder / f"{request}.json"
        stored = read_sealed(path)
        if stored is None:
            return None
        _mark_as_used(path)
        return TrainedTokenizer(tokenizer_from_dict(stored["tokenizer"]), stored["note"])

    def publish_tokenizer(self, work: Path, request: str, trained: TrainedTokenizer) -> None:
        """Keep the tokenizer that was trained for this request, by way of the work folder."""
        state = {"tokenizer": trained.tokenizer.to_dict(), "note": trained.note}
        with self.writing():
            write_sealed(work / "tokenizer.json", state)
            os.replace(work / "tokenizer.json", self._folder / f"{request}.json")

    def _remove_least_used(self, kept: str) -> None:
        """Remove entries until all take no more than the limit; `kept` is the one in use here.

        Other processes may have others mapped: those stay readable until they are closed.
        """
        items = _items(self._folder)
        taken = sum(item.num_bytes for item in items)
        for _, path, num_bytes in items:
            if taken <= self._limit:
                break
            if path.name != kept:
                # Renamed first, so that nobody finds half of it.
                doomed = self._folder / f"{_WORK_PREFIX}removal-{os.getpid()}-{path.name}"
                with suppress(OSError):
                    os.rename(path, doomed)
                    taken -= num_bytes
                    if doomed.is_file():
                        doomed.unlink()
                    else:
                        shutil.rmtree(doomed, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        """Remove work folders of processes that died, once nothing was written there for a day."""
        for folder in self._folder.glob(f"{_WORK_PREFIX}*"):
            with suppress(OSError):
                last_write = max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
                if time.time() - last_write > _ABANDONED_AFTER_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)


def cache_size(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """Return how many prepared texts a cache's folder holds, and the bytes of all it holds."""
    items = _items(Path(folder))
    return sum(not item.path.suffix for item in items), sum(item.num_bytes for item in items)


def _items(folder: Path) -> list[_Item]:
    """Return all entries and tokenizers, those that were not used for longest first."""
    items = []
    # What another process removes meanwhile is not there anymore.
    with suppress(OSError):
        for path in folder.iterdir():
            if not _OWN_NAME.fullmatch(path.name):
                continue
            with suppress(OSError):
                mark = path if path.is_file() else path / _RECORD
                files = [mark] if path.is_file() else path.iterdir()
                num_bytes = sum(file.stat().st_size for file in files)
                items.append(_Item(mark.stat().st_mtime_ns, path, num_bytes))
    return sorted(items)


def _mark_as_used(path: Path) -> None:
    # A cache that can only be read serves as well.
    with suppress(OSError):
        os.utime(path)


def digest_of(value: Any) -> str:
    """Return the hash of a JSON value, 32 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with its digest."""
    path.write_text(json.dumps({"digest": digest_of(content), "content": content}), "ascii")


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return what `write_sealed` wrote, or None if it is absent or not as it was written."""
    try:
        sealed = json.loads(path.read_text("ascii"))
        content = sealed["content"]
        intact = isinstance(content, dict) and digest_of(content) == sealed["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return content if intact else None
