"""The live display of `andrea train`: one line at the foot of the terminal that always fits it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from .display import Display, Progress, Rows, row_lines, sample_lines, wrap

_GAP = "  "
_SMALLEST_BAR = 8
_LARGEST_BAR = 60
# What a narrow line leaves out first.
_EXPENDABLE = ("speed", "validation", "left", "loss")
_SPINNER = "|/-\\"


def bar(fraction: float, width: int, *, ascii_only: bool = False) -> Text:
    """A bar of `width` columns, filled to `fraction`."""
    done = round(min(max(fraction, 0.0), 1.0) * width)
    full, empty = ("#", "-") if ascii_only else ("━", "─")
    return Text.assemble((full * done, "green"), (empty * (width - done), "bright_black"))


def progress_line(progress: Progress, width: int, *, ascii_only: bool = False) -> Text:
    """The progress in exactly one line of at most `width` columns.

    Fields give way in the order of `_EXPENDABLE` until a bar fits; then the bar takes what is left.
    """
    fields = progress.fields()

    def room() -> int:
        return width - sum(len(text) + len(_GAP) for text in fields.values())

    for name in _EXPENDABLE:
        if room() >= _SMALLEST_BAR:
            break
        fields.pop(name, None)
    left = fields.pop("left", None)
    line = Text(_GAP.join(fields.values()), no_wrap=True, overflow="crop")
    free = width - len(line) - len(_GAP) - (len(left) + len(_GAP) if left else 0)
    if free >= 1:
        line.append(_GAP)
        line.append(bar(progress.fraction, min(free, _LARGEST_BAR), ascii_only=ascii_only))
    if left:
        line.append(_GAP + left)
    line.truncate(width)
    return line


class _Status:
    """What the foot line shows now; drawn by rich's refresh thread."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.updated = time.monotonic()
        self.activity = ""
        self.fraction: float | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.monotonic()
        # Room for the ^C that a terminal echoes: if it wrapped, the wrong line would be redrawn.
        width = max(options.max_width - 3, 1)
        ascii_only = not options.encoding.startswith("utf")
        if self.activity:
            turn = _SPINNER[int(now * 8) % len(_SPINNER)]
            line = Text(f"{turn} {self.activity}", no_wrap=True, overflow="crop")
            room = width - len(line) - len(_GAP) - 5
            if self.fraction is not None and room >= _SMALLEST_BAR:
                line.append(_GAP)
                size = min(room, _LARGEST_BAR)
                line.append(bar(self.fraction, size, ascii_only=ascii_only))
                line.append(f" {self.fraction:4.0%}")
            line.truncate(width)
            yield line
        elif self.progress is not None:
            progress = self.progress
            if progress.seconds_left is not None:
                # A slow step must not freeze the clock.
                left = max(progress.seconds_left - (now - self.updated), 0.0)
                progress = replace(progress, seconds_left=left)
            yield progress_line(progress, width, ascii_only=ascii_only)


class LiveDisplay(Display):
    """Prints what is to stay, and keeps the progress line below it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._status = _Status()
        self._live = Live(self._status, console=self._console, refresh_per_second=8, transient=True)
        self._closing = threading.Lock()
        self._open = False
        self._closed = False

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a line above the foot line."""
        for part in wrap(text, self._console.width, "  "):
            self._print(Text(part, style=style))

    def rows(self, rows: Rows) -> None:
        """Print the rows in two columns, names in bold."""
        for name, parts in row_lines(rows, self._console.width):
            for number, part in enumerate(parts):
                label = (name, "bold") if number == 0 else " " * len(name)
                self._print(Text.assemble(label, part))

    def sample(self, text: str) -> None:
        """Print the text behind a coloured margin, wrapped to the terminal."""
        for line in sample_lines(text):
            body = Text(line.expandtabs(4))
            for part in body.wrap(self._console, max(self._console.width - 5, 8)):
                part.rstrip()
                self._print(Text.assemble(("  | ", "green"), part))

    def activity(self, text: str, fraction: float | None = None) -> None:
        """Show what goes on in the foot line."""
        self._status.fraction = fraction
        self._status.activity = text
        self._begin()

    def progress(self, progress: Progress) -> None:
        """Show the progress in the foot line."""
        self._status.progress = progress
        self._status.updated = time.monotonic()
        self._status.activity = ""
        self._begin()

    def milestone(self, progress: Progress, remark: str) -> None:
        """Print the progress above the foot line."""
        fields = progress.fields()
        fields.pop("speed", None)  # the foot line shows it
        left = fields.pop("left", None)
        self.line(_GAP.join(part for part in (*fields.values(), remark, left) if part))
        self.progress(progress)

    def close(self) -> None:
        """Remove the foot line and show the cursor again."""
        with self._closing:
            if self._open and not self._closed:
                self._live.stop()
            self._closed = True

    def _begin(self) -> None:
        if not self._open and not self._closed:
            self._open = True
            self._live.start()

    def _print(self, text: Text) -> None:
        text.no_wrap = True
        text.overflow = "ignore"
        self._console.print(text, soft_wrap=True)
