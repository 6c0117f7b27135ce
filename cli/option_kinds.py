"""Types of values that click does not know, and help pages with titled sections."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .screen.formats import next_moment, parse_count, parse_duration

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
    _IntType = click.ParamType[int]
else:
    # Generic in click's types, but not at run time in its older versions.
    _FloatType = _IntType = click.ParamType

SECTIONS = (
    "Run",
    "Length",
    "Watching and saving",
    "Model",
    "Dialect",
    "Training",
    "Guards",
    "Data",
    "Sampling",
    "Serving",
    "Machine",
    "Options",
)
# Where a command keeps the words that it was called with.
WORDS = "andrea.words"


class Duration(_FloatType):
    """A length of time: 90, 90s, 20m, 1h30m, 2d; converted to seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds, or a usage error."""
        if isinstance(value, (int, float)):
            if not (value > 0 and math.isfinite(value)):
                self.fail(f"{value} must be a number of seconds above 0", param, ctx)
            return float(value)
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ClockTime(_FloatType):
    """A time of day, 07:30, or a date with one; converted to seconds since 1970."""

    name = "hh:mm"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The next moment at which a clock here shows this, or a usage error."""
        if isinstance(value, float):
            return value
        try:
            return next_moment(value, datetime.datetime.now())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Amount(_IntType):
    """A whole number above 0 with or without a unit: 800k, 10M, 1.5G."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or a usage error."""
        try:
            return parse_count(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SomePath(click.Path):
    """A path. An empty one, as a script's unset variable gives, is not the current folder."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """The path, or a usage error."""
        if not os.fspath(value):
            self.fail("the path is empty; . is the current folder", param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(_IntType):
    """An integer of at least `low`, shown as N: the help page needs no range at every option."""

    name = "n"

    def __init__(self, low: int) -> None:
        self._low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The integer, or a usage error."""
        number = int(click.INT.convert(value, param, ctx))
        if not self._low <= number < 2**63:
            most = "2**63 - 1 at most" if number >= 2**63 else f"{self._low} or more"
            self.fail(f"{value} must be a whole number, {most}", param, ctx)
        return number


class Number(_FloatType):
    """A finite number of at least 0, with `positive` above it, and of at most `most`."""

    name = "x"

    def __init__(self, *, positive: bool = False, most: float = math.inf) -> None:
        self._positive = positive
        self._most = most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number, or a usage error."""
        number = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(number) or number < 0 or (self._positive and number == 0):
            least = "above 0" if self._positive else "0 or more"
            self.fail(f"{value} must be a number {least}", param, ctx)
        if number > self._most:
            self.fail(f"{value} must be a number between 0 and {self._most:g}", param, ctx)
        return number


class SectionOption(click.Option):
    """An option that stands under a title on the help page."""

    def __init__(self, *declarations: Any, section: str = "Options", **settings: Any) -> None:
        super().__init__(*declarations, **settings)
        self.section = section

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option and its help; --report and --no-report as one word."""
        record = super().get_help_record(ctx)
        if record is None or self.secondary_opts != [f"--no-{self.opts[0][2:]}"]:
            return record
        return f"--[no-]{self.opts[0][2:]}", record[1]


class SectionCommand(click.Command):
    """A command whose help page lists its options by section, and that knows its own words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, and keep them: a proposal repeats them as they were typed."""
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one definition list for each section that has options."""
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # Arguments stand in the usage line.
            if record is not None and isinstance(parameter, click.Option):
                rows[getattr(parameter, "section", "Options")].append(record)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog, which holds commands to copy, under a title."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write_text(self.epilog)


def option(*declarations: str, section: str, **settings: Any) -> Callable[[F], F]:
    """A click option under a section's title."""
    return click.option(*declarations, cls=SectionOption, section=section, **settings)


def stack(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator out of several; help shows the options in the order given here."""

    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply
