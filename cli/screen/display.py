"""Where a training run tells what it does: the interface, and the plain display for logs and pipes.

`open_display` chooses: a live progress line on a terminal (live_display.py), plain lines elsewhere
and with NO_COLOR. Both tell the same things; the plain one writes no control codes.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import click

from .formats import count, duration, printable

Rows = Sequence[tuple[str, str]]

_SAMPLE_LINES = 8


@dataclass(frozen=True)
class Progress:
    """How far training is; what is None is not known (yet)."""

    step: int
    steps: int | None
    fraction: float
    loss: float | None = None
    validation_loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None

    def fields(self) -> dict[str, str]:
        """The progress in words, by name, in reading order."""
        if self.steps is None:
            told = {"step": f"step {self.step:,}"}
        else:
            told = {"step": f"step {self.step:>{len(f'{self.steps:,}')},}/{self.steps:,}"}
        if self.loss is not None:
            told["loss"] = f"loss {self.loss:.4f}"
        if self.validation_loss is not None:
            told["validation"] = f"val {self.validation_loss:.4f}"
        if self.tokens_per_second is not None:
            told["speed"] = f"{count(self.tokens_per_second):>6} tok/s"
        if self.seconds_left is not None and self.fraction < 1:
            told["left"] = f"{duration(self.seconds_left):>7} left"
        return told


class Display(ABC):
    """What a training run can tell a person."""

    @abstractmethod
    def line(self, text: str = "", *, style: str = "") -> None:
        """Tell a line; it wraps between words on a narrow terminal."""

    @abstractmethod
    def rows(self, rows: Rows) -> None:
        """Tell pairs of a name and what there is to say about it, in two columns."""

    @abstractmethod
    def sample(self, text: str) -> None:
        """Show text that the model wrote, set apart from what andrea says."""

    @abstractmethod
    def activity(self, text: str, fraction: float | None = None) -> None:
        """Tell what goes on while no step is counted: reading, measuring, saving."""

    @abstractmethod
    def progress(self, progress: Progress) -> None:
        """Tell how far training is; a display may leave most of these out."""

    @abstractmethod
    def milestone(self, progress: Progress, remark: str) -> None:
        """Tell how far training is at a step worth keeping on the screen."""

    @abstractmethod
    def close(self) -> None:
        """Leave the terminal as it was found; may be called from another thread, and twice."""


def wrap(
    text: str, width: int | None, indent: str = "", *, breaks_words: bool = False
) -> list[str]:
    """Lines of at most `width` columns, broken between words; all but the first are indented.

    A longer word, such as a path that is to be copied, stays whole unless `breaks_words`.
    """
    text = printable(text)  # names of files may hold anything
    if width is None or len(text) <= width:
        return [text]
    lines = textwrap.wrap(
        text,
        max(width, len(indent) + 8),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=breaks_words,
        replace_whitespace=False,
    )
    return lines or [""]


def note_row(note: str) -> tuple[str, str]:
    """A sentence such as `validation: the last tenth` as a row; others stand without a name."""
    name, colon, rest = note.partition(": ")
    return (name, rest) if colon and name.isalpha() else ("", note)


def sample_lines(text: str) -> list[str]:
    """The lines of a sample as a glance shows them: some, and of several empty ones one."""
    lines: list[str] = []
    for line in printable(text).splitlines():
        if line.strip() or (lines and lines[-1]):
            lines.append(line.rstrip())
    shown = lines[:_SAMPLE_LINES]
    while shown and not shown[-1]:
        shown.pop()
    return shown or ["(blank)"]


def row_lines(rows: Rows, width: int | None) -> list[tuple[str, list[str]]]:
    """Each row's padded name and the wrapped lines of its text."""
    column = max((len(name) for name, _ in rows), default=0) + 2
    room = None if width is None else max(width - column, 16)
    return [(name.ljust(column), wrap(text, room)) for name, text in rows]


class PlainDisplay(Display):
    """Lines for a log: no control codes, and progress at intervals that grow with the run."""

    def __init__(self) -> None:
        # A log has no width; a terminal with NO_COLOR has one.
        terminal = sys.stdout.isatty()
        self._width = shutil.get_terminal_size().columns if terminal else None
        self._start = time.monotonic()
        self._last = -1e9

    def line(self, text: str = "", *, style: str = "") -> None:
        """Write a line."""
        for part in wrap(text, self._width, "  "):
            click.echo(part)

    def rows(self, rows: Rows) -> None:
        """Write the rows in two columns."""
        for name, parts in row_lines(rows, self._width):
            for number, part in enumerate(parts):
                click.echo((name if number == 0 else " " * len(name)) + part)

    def sample(self, text: str) -> None:
        """Write the text behind a margin."""
        for line in sample_lines(text):
            width = None if self._width is None else max(self._width - 4, 8)
            for part in wrap(line, width, breaks_words=True):
                click.echo(f"  | {part}".rstrip())

    def activity(self, text: str, fraction: float | None = None) -> None:
        """Write what takes long, at the pace of progress lines."""
        if self._due():
            share = "" if fraction is None else f" {fraction:.0%}"
            click.echo(f"{text}{share}")

    def progress(self, progress: Progress) -> None:
        """Write the progress when it is due."""
        if self._due() or progress.step == 1:
            self._write(progress)

    def milestone(self, progress: Progress, remark: str) -> None:
        """Write the progress now."""
        self._write(progress, remark)

    def close(self) -> None:
        """Nothing to put back."""

    def _due(self) -> bool:
        now = time.monotonic()
        running = now - self._start
        interval = 5.0 if running < 30 else 15.0 if running < 300 else 60.0
        if now - self._last < interval:
            return False
        # The first call only starts the clock: what is over at once needs no line.
        first, self._last = self._last < 0, now
        return not first

    def _write(self, progress: Progress, remark: str = "") -> None:
        self._last = time.monotonic()
        fields = {name: " ".join(text.split()) for name, text in progress.fields().items()}
        # Losses, what there is to say about them, and how it goes on: as on a terminal.
        pace = [fields.pop(name, "") for name in ("speed", "left")]
        self.line("  ".join(filter(None, [*fields.values(), remark, *pace])))


class QuietDisplay(PlainDisplay):
    """Tells nothing of what goes on: standard output is for a command's answer."""

    def activity(self, text: str, fraction: float | None = None) -> None:
        """Nothing."""


def answer_display(is_json: bool) -> Display:
    """Where a command that ends with an answer tells what goes on before: to who watches it."""
    return open_display() if sys.stdout.isatty() and not is_json else QuietDisplay()


def open_display() -> Display:
    """A live display on a terminal that may show colours, a plain one otherwise."""
    colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")
    if sys.stdout.isatty() and colours:
        from .live_display import LiveDisplay

        return LiveDisplay()
    return PlainDisplay()
