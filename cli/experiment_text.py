"""`andrea experiment` as lines of text: the plan, the runs as they end, the tables and verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .info_text import table_lines, text_lines
from .screen.display import Rows, wrap
from .screen.formats import count, duration, plural, size

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.lessons.experiments import Experiment, Progress, Results, Run, Runner
    from andrea.lessons.experiments.experiment import Table

    from .texts import TextRequest

# What a narrow terminal can do without; the page has it.
_SPARE = ("parameters", "± sd")


def plan_rows(
    experiment: Experiment,
    runner: Runner,
    request: TextRequest,
    data: PreparedData,
    folder: str,
) -> Rows:
    """What is going to be done."""
    seeds = plural(len(runner.seeds), "seed")
    return [
        ("claim", experiment.claim),
        ("text", f"{request.describe()}: {size(data.num_bytes)}, {len(data.train):,} tokens"),
        (
            "runs",
            f"{plural(len(experiment.variants), 'variant')} x {seeds} ({experiment.mode} mode), "
            f"{count(runner.operations)} operations",
        ),
        ("folder", folder),
    ]


def activity_line(progress: Progress) -> str:
    """What goes on."""
    return (
        f"{progress.variant}, seed {progress.seed}: step {progress.step:,} of "
        f"{progress.steps:,}, loss {progress.loss:.3f}"
    )


def run_line(run: Run) -> str:
    """What a run gave."""
    told = f"loss {run.loss:.4f}" if run.diverged is None else f"diverged: {run.diverged}"
    return f"seed {run.seed}, {run.variant}: {told}"


def result_lines(results: Results, took: tuple[float, float], width: int) -> Iterator[str]:
    """The tables, each claim with its verdict, and the whole in a line.

    took: seconds, and seconds of all processors together.
    """
    from andrea.lessons.experiments.page import about, headline, keys, noise

    for table in results.tables():
        yield ""
        yield from wrap(table.title, width)
        yield from _fitting(table, width)
    yield ""
    losses = "losses: nats per token, of the validation text."
    yield from wrap(" ".join(filter(None, (losses, keys(results), noise(results)))), width)
    yield ""
    rows = [("claim", results.experiment.claim)]
    for one in results.judged:
        rows.append((one.verdict.outcome, f"{one.contrast.claim}: {one.verdict.why}"))
    rows.append(("verdict", headline(results)))
    rows.append(("", about(results)))
    rows.append(("took", f"{duration(took[0])}; {duration(took[1])} of processor time"))
    rows += [("note", note) for note in results.experiment.notes]
    yield from text_lines(rows, width)


def _fitting(table: Table, width: int) -> Iterator[str]:
    header, rows = table.header, table.rows
    lines = list(table_lines(header, rows, table.left))
    for spare in _SPARE:
        if spare in header and max(map(len, lines)) > width:
            place = header.index(spare)
            header = header[:place] + header[place + 1 :]
            rows = tuple(row[:place] + row[place + 1 :] for row in rows)
            lines = list(table_lines(header, rows, table.left))
    yield from lines
