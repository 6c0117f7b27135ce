"""The live display of `andrea train`: what is to stay scrolls by, the foot below it is kept."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .display import Display, Progress, Rows, row_lines, sample_lines, wrap
from .live_foot import Foot

_GAP = "  "


class LiveDisplay(Display):
    """Prints what is to stay, and keeps the foot below it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._foot = Foot()
        self._live = Live(self._foot, console=self._console, refresh_per_second=8, transient=True)
        self._closing = threading.Lock()
        self._open = False
        self._closed = False

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a line above the foot."""
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
        """Show what goes on in the last line of the foot."""
        self._foot.fraction = fraction
        self._foot.activity = text
        self._begin()

    def progress(self, progress: Progress) -> None:
        """Show the progress in the foot."""
        self._foot.add(progress)
        self._begin()

    def milestone(self, progress: Progress, remark: str) -> None:
        """Print the progress above the foot."""
        fields = progress.fields()
        fields.pop("speed", None)  # the foot shows it
        left = fields.pop("left", None)
        self.line(_GAP.join(part for part in (*fields.values(), remark, left) if part))
        self.progress(progress)

    def close(self) -> None:
        """Remove the foot and show the cursor again."""
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
