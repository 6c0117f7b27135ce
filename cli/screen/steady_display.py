"""A display that never ends a run: what cannot be written is left out, and training goes on."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from .display import Display, Progress, Rows


class SteadyDisplay(Display):
    """Passes on to another display, whatever becomes of the disk or terminal behind it.

    A closed pipe is an error, for whoever read it has left; but not while `is_stopping`: Ctrl-C
    reaches all programs of a pipeline, and some end before this one.
    """

    def __init__(self, inner: Display, is_stopping: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_stopping = is_stopping

    def line(self, text: str = "", *, style: str = "") -> None:
        """Tell a line."""
        with self._steadily():
            self._inner.line(text, style=style)

    def rows(self, rows: Rows) -> None:
        """Tell rows."""
        with self._steadily():
            self._inner.rows(rows)

    def sample(self, text: str) -> None:
        """Show a text."""
        with self._steadily():
            self._inner.sample(text)

    def activity(self, text: str, fraction: float | None = None) -> None:
        """Tell what goes on."""
        with self._steadily():
            self._inner.activity(text, fraction)

    def progress(self, progress: Progress) -> None:
        """Tell how far it is."""
        with self._steadily():
            self._inner.progress(progress)

    def milestone(self, progress: Progress, remark: str) -> None:
        """Tell how far it is."""
        with self._steadily():
            self._inner.milestone(progress, remark)

    def close(self) -> None:
        """Leave the terminal as it was found, and nothing that Python would try to write later."""
        with self._steadily():
            self._inner.close()
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            _discard_output()

    @contextlib.contextmanager
    def _steadily(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            if not self._is_stopping():
                raise
            _discard_output()
        except OSError:
            pass  # the next line is tried again: a disk may have room by then


def _discard_output() -> None:
    """Let what standard output holds, and whatever follows, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        sys.stdout.flush()
