"""The cache of prepared texts: token files under the hash of everything they came from.

An entry is built in a folder of its own and renamed into place, so that no reader ever sees half of
one, and is checked against its digests before it is served: a damaged one is built again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from andrea.data.token_file import TokenArray, TokenFileFacts, open_tokens
from andrea.errors import DataError
from andrea.tokenizers import TrainedTokenizer, tokenizer_from_dict

_WORK_PREFIX = "unfinished-"
_ABANDONED_AFTER_SECONDS = 24 * 3600
_RECORD = "record.json"


class TokenCache:
    """Prepared texts in one folder, shared by all processes of a user."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Create the folder if it is missing; DataError if that cannot be done."""
        self._folder = Path(folder)
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
                advice = "the disk is full: free some space there, or choose another cache folder"
            else:
                advice = f"cannot be written ({error.strerror}): choose another cache folder"
            raise DataError(f"{self._folder}: {advice}") from None

    @contextmanager
    def work_folder(self) -> Iterator[Path]:
        """Give a new folder on the cache's disk, which is removed at the end unless published."""
        with self.writing():
            folder = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=self._folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def load(self, key: str) -> tuple[TokenArray, TokenArray, dict[str, Any]] | None:
        """Return train and validation tokens and the record, or None if absent or damaged."""
        folder = self._folder / key
        record = read_sealed(folder / _RECORD)
        if record is None:
            return None
        train = open_tokens(folder / "train.npy", TokenFileFacts(**record["train"]))
        validation = open_tokens(folder / "validation.npy", TokenFileFacts(**record["validation"]))
        if train is None or validation is None:
            return None
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

    def load_tokenizer(self, request: str) -> TrainedTokenizer | None:
        """Return the tokenizer that was trained for this request, or None."""
        stored = read_sealed(self._folder / f"{request}.json")
        if stored is None:
            return None
        return TrainedTokenizer(tokenizer_from_dict(stored["tokenizer"]), stored["note"])

    def publish_tokenizer(self, work: Path, request: str, trained: TrainedTokenizer) -> None:
        """Keep the tokenizer that was trained for this request, by way of the work folder."""
        state = {"tokenizer": trained.tokenizer.to_dict(), "note": trained.note}
        with self.writing():
            write_sealed(work / "tokenizer.json", state)
            os.replace(work / "tokenizer.json", self._folder / f"{request}.json")

    def _remove_abandoned(self) -> None:
        """Remove work folders of processes that died, once nothing was written there for a day."""
        for folder in self._folder.glob(f"{_WORK_PREFIX}*"):
            with suppress(OSError):
                last_write = max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
                if time.time() - last_write > _ABANDONED_AFTER_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)


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
