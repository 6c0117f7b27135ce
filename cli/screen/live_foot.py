"""What stays at the foot of the terminal while a run trains: curves where it is tall, and a line.

Drawn by rich's refresh thread, some times a second, from numbers that training leaves here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from andrea.reporting.curve import Curve

from .display import Progress
from .formats import count
from .terminal_chart import columns, dot, line_rows, sparkline, vertical_range

_GAP = "  "
_SMALLEST_BAR = 8
_LARGEST_BAR = 60
# What a narrow line leaves out first.
_EXPENDABLE = ("speed", "validation", "left", "loss")
_SPINNER = "|/-\\"
_ECHO = len("^C^C")

# A terminal below this has room for the line alone.
TALL = 20
WIDE = 50
_MOST_ROWS = 12
_LARGEST_SPARK = 24
_MARK_EVERY = 4
_POINTS = 400
_ENOUGH = 3


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


class Foot:
    """What the foot shows now."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.updated = time.monotonic()
        self.activity = ""
        self.fraction: float | None = None
        self._loss, self._validation = Curve(_POINTS), Curve(_POINTS)
        self._rate, self._norm, self._speed = Curve(_POINTS), Curve(_POINTS), Curve(_POINTS)
        self._drawn: list[Segment] = []
        self._drawn_for: tuple[int, int, int, bool] | None = None

    def add(self, progress: Progress) -> None:
        """Take in how far training is; called at each step, so it only notes numbers."""
        before, self.progress = self.progress, progress
        self.updated = time.monotonic()
        self.activity = ""
        step = progress.step
        if before is not None and before.step == step:
            return  # a milestone tells of its step twice
        for curve, value in (
            (self._loss, progress.loss),
            (self._rate, progress.learning_rate),
            (self._norm, progress.gradient_norm),
            (self._speed, progress.tokens_per_second),
        ):
            if value is not None and math.isfinite(value):
                curve.add(step, value)
        validation = progress.validation_loss
        # It is told with every step, and new after an evaluation only.
        is_new = validation is not None and (before is None or before.validation_loss != validation)
        if is_new and validation is not None and math.isfinite(validation):
            self._validation.add(step, validation)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Room for what a terminal echoes of two Ctrl-C, ^C^C: if that wrapped, the wrong line would
        # be redrawn.
        width = max(options.max_width - _ECHO - 1, 1)
        ascii_only = not options.encoding.startswith("utf")
        if options.size.height >= TALL and width >= WIDE and len(self._loss.buckets) >= _ENOUGH:
            rows = min(max(options.size.height // 3 - 3, 4), _MOST_ROWS)
            yield from self._curves(console, width, rows, ascii_only)
        if self.activity:
            yield self._activity_line(width, ascii_only)
        elif self.progress is not None:
            progress = self.progress
            if progress.seconds_left is not None:
                # A slow step must not freeze the clock.
                left = max(progress.seconds_left - (time.monotonic() - self.updated), 0.0)
                progress = replace(progress, seconds_left=left)
            yield progress_line(progress, width, ascii_only=ascii_only)

    def _curves(self, console: Console, width: int, rows: int, ascii_only: bool) -> list[Segment]:
        """The chart and the line below it, drawn anew once a second: they cost what 50 lines do."""
        key = (int(time.monotonic()), width, rows, ascii_only)
        if key != self._drawn_for:
            lines = [*self._chart(width, rows, ascii_only), self._sparks(width, ascii_only)]
            self._drawn = [segment for line in lines for segment in console.render(line)]
            self._drawn_for = key
        return self._drawn

    def _activity_line(self, width: int, ascii_only: bool) -> Text:
        turn = _SPINNER[int(time.monotonic() * 8) % len(_SPINNER)]
        line = Text(f"{turn} {self.activity}", no_wrap=True, overflow="crop")
        room = width - len(line) - len(_GAP) - 5
        if self.fraction is not None and room >= _SMALLEST_BAR:
            line.append(_GAP)
            line.append(bar(self.fraction, min(room, _LARGEST_BAR), ascii_only=ascii_only))
            line.append(f" {self.fraction:4.0%}")
        line.truncate(width)
        return line

    def _chart(self, width: int, rows: int, ascii_only: bool) -> list[Text]:
        """The loss over the steps: `rows` lines of curve between a title and the axis."""
        points = _points(self._loss)
        evaluations = _points(self._validation)
        margin = 8
        across = width - margin - 1
        heights = columns(points, across if ascii_only else 2 * across)
        shown = [y for x, y in evaluations if x > points[0][0]]
        low, high = vertical_range(heights, shown[len(shown) // 20 :])
        lines = line_rows(heights, rows, low, high, ascii_only=ascii_only)
        first, last = points[0][0], points[-1][0]
        places = {
            round((x - first) / ((last - first) or 1) * (across - 1)): y for x, y in evaluations
        }
        # The newest of those side by side: the curve between them is to be seen.
        newest = {place // _MARK_EVERY: (place, y) for place, y in places.items() if place >= 0}
        marks = {(dot(y, rows, low, high), place) for place, y in newest.values()}
        title = Text("loss, nats per token: ", style="dim", no_wrap=True)
        title.append("training", style="cyan")
        if marks:
            title.append(f"  {_mark(ascii_only)} validation", style="yellow")
        side = "|" if ascii_only else "│"
        drawn = [title]
        for row, line in enumerate(lines):
            labelled = row in (0, rows // 2, rows - 1)
            value = high - row / (rows - 1) * (high - low)
            label = f"{value:7.3f} " if labelled else " " * margin
            text = Text(label + side, style="dim", no_wrap=True, overflow="crop")
            done = 0
            for column in sorted(place for at, place in marks if at == row):
                text.append(line[done:column], style="cyan not dim")
                text.append(_mark(ascii_only), style="yellow not dim")
                done = column + 1
            text.append(line[done:], style="cyan not dim")
            drawn.append(text)
        ends = f"{round(first):,}", f"step {round(last):,}"
        axis = " " * (margin + 1) + ends[0] + ends[1].rjust(max(across - len(ends[0]), 0))
        drawn.append(Text(axis[:width], style="dim", no_wrap=True))
        return drawn

    def _sparks(self, width: int, ascii_only: bool) -> Text:
        """Learning rate, gradient norm and speed in a line: the name, the way here, the newest."""
        parts: list[tuple[str, Curve, Callable[[float], str]]] = [
            ("learning rate", self._rate, lambda value: f"{value:.2g}"),
            ("gradient norm", self._norm, lambda value: f"{value:.3g}"),
            ("tokens/s", self._speed, count),
        ]
        told = [(name, curve, text(_newest(curve))) for name, curve, text in parts if curve.buckets]
        line = Text(no_wrap=True, overflow="crop")
        if not told:
            return line
        words = sum(len(name) + len(value) + 2 for name, _, value in told)
        room = (width - words - 3 * (len(told) - 1)) // len(told)
        spark = min(room, _LARGEST_SPARK)
        for name, curve, value in told:
            if line:
                line.append("   ")
            line.append(f"{name} ", style="dim")
            if spark >= 4:
                drawn = sparkline(
                    columns(_points(curve), spark),
                    from_zero=curve is self._speed,
                    ascii_only=ascii_only,
                )
                line.append(drawn, style="cyan")
                line.append(" ")
            line.append(value)
        line.truncate(width)
        return line


def _mark(ascii_only: bool) -> str:
    return "o" if ascii_only else "•"


def _points(curve: Curve) -> list[tuple[float, float]]:
    return [((bucket.first + bucket.last) / 2, bucket.mean) for bucket in list(curve.buckets)]


def _newest(curve: Curve) -> float:
    return curve.buckets[-1].mean
