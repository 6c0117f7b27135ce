"""Keeps report.html of a run current while it trains.

A page that cannot be written is no error of training: the next one may be.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from andrea.closing import Closing
from andrea.errors import RunError

from .events import LOG_NAME, Event
from .metrics import Metrics
from .page import render

REPORT_NAME = "report.html"

_LONGEST_INTERVAL = 30.0
_SHORTEST_INTERVAL = 2.0
# Of the time of training that pages may take.
_SHARE = 0.003
_EVENTS_AT_ONCE = 4096


def write_report(metrics: Metrics, path: Path, name: str) -> None:
    """Write the report of a run that is not followed; `name` is its heading.

    Raises:
        RunError: the file cannot be written.
    """
    try:
        _replace(path, render(metrics, name))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


class ReportWriter(Closing):
    """Writes the report of the run in a folder; give it each event of the log as it is logged.

    It begins with what the log holds already, and writes a first page at once. Later ones come
    after 2 seconds, then more rarely, at least every 30 seconds, and at the end of the run.

    problem: why there is no page any more, None while all is well.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / REPORT_NAME
        for left in folder.glob(f".{REPORT_NAME}.*.tmp"):  # by processes that were killed
            with contextlib.suppress(OSError):
                left.unlink()
        self._name = folder.resolve().name
        self._metrics = Metrics()
        with contextlib.suppress(RunError):
            if (folder / LOG_NAME).exists():
                self._metrics = Metrics.from_log(folder)
        self._waiting: list[Event] = []
        self._began = time.monotonic()
        self._due = self._began
        self._is_current = False
        self.problem: str | None = None
        self._write()

    def __call__(self, event: Event) -> None:
        """Take in an event as it stands in the log; now and then write the page."""
        if self.problem is not None:
            return
        self._waiting.append(event)
        self._is_current = False
        if event.get("type") == "run.end" or time.monotonic() >= self._due:
            self._write()
        elif len(self._waiting) >= _EVENTS_AT_ONCE:
            self._take_in()

    def close(self) -> None:
        """Write what came since the last page; a second call does nothing."""
        if not self._is_current:
            self._write()

    def _take_in(self) -> None:
        with self._surviving():
            for event in self._waiting:
                self._metrics.add(event)
        self._waiting.clear()

    def _write(self) -> None:
        started = time.monotonic()
        self._take_in()
        running = started - self._began
        interval = min(max(running / 2, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
        with self._surviving(), contextlib.suppress(OSError):
            page = render(self._metrics, self._name, live=True, reload_seconds=round(interval))
            _replace(self.path, page)
        self._is_current = True
        finished = time.monotonic()
        self._due = finished + max(interval, (finished - started) / _SHARE)

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is: weeks of training are worth more than a page
            self.problem = f"{type(error).__name__}: {error}"


def _replace(path: Path, page: str) -> None:
    """Put the page in place as a whole: a browser never reads half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8", errors="replace")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
