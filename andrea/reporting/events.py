"""The events of a run's log as a reader wants them: of the newest run, in order, nothing doubled.

A log that was cut off, damaged, or joined by several sessions is read for what it still tells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from andrea.errors import RunError

LOG_NAME = "log.jsonl"
Event = dict[str, Any]


def log_path(path: Path) -> Path:
    """The log of a run given by its folder, by a file in it (a checkpoint), or by the log itself.

    Raises:
        RunError: there is none.
    """
    candidates = [path / LOG_NAME] if path.is_dir() else []
    if path.suffix == ".jsonl":
        candidates.append(path)
    # A checkpoint lies in the run's folder, or in a folder of checkpoints inside it.
    candidates += [folder / LOG_NAME for folder in list(path.parents)[:2] if path.is_file()]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if path.is_dir():
        what = f"holds no log (no {LOG_NAME})"
    else:
        what = "is no file of a run" if path.exists() else "isn't there"
    raise RunError(f"{path} {what}; give the folder of a run, as `andrea train` printed it")


def read_events(log: Path) -> Iterator[Event]:
    """The events of the newest run in a log, without what a resume took back.

    Raises:
        RunError: the file cannot be read.
    """
    run_id, resumes = _survey(log)
    position = 0
    for number, event in enumerate(_all_events(log)):
        if event.get("run_id") != run_id:
            continue
        while position < len(resumes) and resumes[position][0] <= number:
            position += 1
        step = whole(event.get("step"))
        taken_back = min((start for _, start in resumes[position:]), default=None)
        if taken_back is not None and (
            (step is not None and step > taken_back) or event.get("type") == "run.end"
        ):
            continue
        yield event


def whole(value: Any) -> int | None:
    """A step number, or None for what is none."""
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if is_whole else None


def finite(value: Any) -> float | None:
    """A finite number as a float, or None for anything else."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class Timestamps:
    """Reads the times of events, those of a minute at the cost of one."""

    def __init__(self) -> None:
        self._minute = ""
        self._start = 0.0

    def parse(self, value: Any) -> float | None:
        """Seconds since 1970 of a time in ISO 8601 with its zone, or None for what is none."""
        if not isinstance(value, str):
            return None
        minute, rest = value[:17], value[17:]
        try:
            if rest.endswith("Z") and len(minute) == 17:
                if minute != self._minute:
                    # Python 3.10 does not read the Z of UTC.
                    self._start = datetime.fromisoformat(f"{minute}00+00:00").timestamp()
                    self._minute = minute
                return finite(self._start + float(rest[:-1]))
            when = datetime.fromisoformat(value)
            return when.timestamp() if when.tzinfo is not None else None
        except (ValueError, OverflowError):
            return None


def _survey(log: Path) -> tuple[Any, list[tuple[int, int]]]:
    """The newest run_id, and for each resume of that run (number of its event, step)."""
    run_id: Any = None
    resumes: list[tuple[int, int]] = []
    for number, event in enumerate(_all_events(log)):
        if number == 0:
            run_id = event.get("run_id")
        if event.get("type") != "run.start":
            continue
        if event.get("run_id") != run_id:
            run_id, resumes = event.get("run_id"), []
        step = whole(event.get("resumed_step"))
        if step is not None:
            resumes.append((number, step))
    return run_id, resumes


def _all_events(log: Path) -> Iterator[Event]:
    try:
        with log.open("rb") as file:
            for line in file:
                event = _parse(line)
                if event is not None:
                    yield event
    except OSError as error:
        raise RunError(f"cannot read {log}: {error.strerror or error}") from error


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
