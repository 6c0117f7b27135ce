"""`andrea metrics`: what a run has measured, for other programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click

from .option_kinds import SectionCommand, SomePath, option
from .recorded import refuse_part_of_run


@click.command("metrics", cls=SectionCommand, short_help="Export what a run has measured.")
@click.argument("run", type=SomePath(path_type=Path), metavar="RUN")
@option(
    "--format",
    "kind",
    section="Options",
    type=click.Choice(["csv", "jsonl", "tensorboard"]),
    default="csv",
    show_default=True,
    help="A table with a row a step; the events as they were logged; or files for TensorBoard.",
)
@option(
    "--out",
    section="Options",
    type=SomePath(path_type=Path),
    metavar="PATH",
    help="Where to write it.  [default: standard output; for TensorBoard a folder in the run's]",
)
def command(run: Path, kind: str, out: Path | None) -> None:
    """Write the losses, learning rates, gradient norms, speeds and evaluations of a run.

    What a resume took back is left out: each step is there once.
    """
    from andrea.reporting.events import log_path

    log = log_path(run)
    if out is not None:
        refuse_part_of_run(out, log)
    if kind == "tensorboard":
        from andrea.reporting.tensorboard import FOLDER_NAME, export

        folder = out or log.parent / FOLDER_NAME
        export(log, folder)
        click.echo(f"wrote {folder}; show it with: tensorboard --logdir {folder}")
        return
    with _opened(out) as file:
        if kind == "csv":
            from andrea.reporting.csv_export import write_csv

            write_csv(log, file)
        else:
            import json

            from andrea.reporting.events import read_events

            for event in read_events(log):
                file.write(json.dumps(event) + "\n")
    if out is not None:
        click.echo(f"wrote {out}")


@contextlib.contextmanager
def _opened(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    with out.open("w", encoding="utf-8", newline="") as file:
        yield file
