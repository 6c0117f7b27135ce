"""A run's log: JSON lines in the schema `unfirehose/1.0/training-run`, joined when a run goes on.

A full disk never stops training here: lines that can't be written wait for the next ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from andrea.errors import RunError

SCHEMA = "unfirehose/1.0/training-run"

# Seconds that losses may wait to be written; a killed process loses no more of its log.
_LONGEST_WAIT = 0.5

_BLOCK = 1 << 16
# Made once: json.dumps makes an encoder for each line.
_ENCODE = json.JSONEncoder(allow_nan=False).encode


class RunLog:
    """Appends to the log of one run.

    Losses come at every step: they reach the file together, twice a second; all else at once.

    Raises:
        RunError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self.run_id = run_id
        # Grows while a disk is full, without being copied for each line.
        self._waiting = bytearray()
        self._written = time.monotonic()
        self._time = _Timestamps()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                _drop_half_line(self._descriptor)
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error

    def write(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        """Append a line, and return it: type, run_id, ts (ISO 8601, UTC) and the fields, NaN as
        None."""
        line = {"type": kind, "run_id": self.run_id, "ts": self._time.now()}
        line.update({name: _finite_or_none(value) for name, value in fields.items()})
        self._waiting += _ENCODE(line).encode("ascii") + b"\n"
        now = time.monotonic()
        if kind != "run.loss" or now - self._written >= _LONGEST_WAIT:
            self._written = now
            with contextlib.suppress(OSError):
                self._write_waiting()
        return line

    def flush(self) -> None:
        """Write all lines to the file.

        Raises:
            RunError: the disk is full or refuses.
        """
        with self._telling():
            self._write_waiting()

    def sync(self) -> None:
        """Bring what was flushed to the disk; another thread may call it.

        Raises:
            RunError: the disk refuses.
        """
        with self._telling():
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._write_waiting()
            os.close(self._descriptor)
            self._descriptor = -1

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _write_waiting(self) -> None:
        while self._waiting:
            written = os.write(self._descriptor, self._waiting)
            del self._waiting[:written]


def _drop_half_line(descriptor: int) -> None:
    """Cut off the start of a line that a killed process left at the end: the next one would not
    be one, either."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(end - _BLOCK, 0)
        newline = _read(descriptor, start, end).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)


def _read(descriptor: int, start: int, end: int) -> bytes:
    """All bytes of a file from start to end: a single read may give fewer, and lines be lost."""
    os.lseek(descriptor, start, os.SEEK_SET)
    data = b""
    while part := os.read(descriptor, end - start - len(data)):
        data += part
    return data


class _Timestamps:
    """The time in ISO 8601; its first part is written anew only when the second changes."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def now(self) -> str:
        second, nanoseconds = divmod(time.time_ns(), 10**9)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._text}{nanoseconds // 10**6:03}Z"


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def newest_run_id(path: Path) -> str | None:
    """The run_id of the last run.start line of a log, None where none can be read."""
    run_id = None
    if not path.is_file():  # to open a pipe that nobody writes to would wait for ever
        return None
    with contextlib.suppress(OSError), path.open("rb") as file:
        for line in file:
            if b"run.start" in line:
                entry = _parse(line)
                if entry.get("type") == "run.start" and isinstance(entry.get("run_id"), str):
                    run_id = entry["run_id"]
    return run_id


def rewind(path: Path, run_id: str, step: int) -> None:
    """Drop from a log what the run wrote after `step`, so that it can be joined without doubles.

    Raises:
        RunError: the file cannot be read or written.
    """
    if path.exists() and not path.is_file():
        raise RunError(f"cannot rewrite {path}: it is not a file")
    temporary = path.with_name(path.name + ".tmp")
    try:
        with path.open("rb") as old, temporary.open("wb") as new:
            new.writelines(line for line in old if _is_kept(line, run_id, step))
            new.flush()
            os.fsync(new.fileno())
        os.replace(temporary, path)
    except FileNotFoundError:
        return
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise RunError(f"cannot rewrite {path}: {error.strerror or error}") from error


def _is_kept(line: bytes, run_id: str, step: int) -> bool:
    if not line.endswith(b"\n"):
        return False  # half a line: the process was killed while it wrote
    entry = _parse(line)
    if entry.get("run_id") != run_id:
        return True
    if entry.get("type") == "run.end" or _number(entry.get("resumed_step"), -1) >= step:
        return False
    return _number(entry.get("step"), 0) <= step


def _number(value: Any, otherwise: int) -> int:
    """A step as it stands in the log; what was damaged says nothing."""
    return value if isinstance(value, int) else otherwise


def _parse(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}
