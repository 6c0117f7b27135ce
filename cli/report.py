"""`andrea report`: a run's curves, samples and numbers as one page for a browser."""

from __future__ import annotations

from pathlib import Path

import click

from .option_kinds import SectionCommand, SomePath, option
from .recorded import refuse_part_of_run


@click.command("report", cls=SectionCommand, short_help="Write a run's report as a web page.")
@click.argument("run", type=SomePath(path_type=Path), metavar="RUN")
@option(
    "--out",
    section="Options",
    type=SomePath(path_type=Path),
    metavar="FILE",
    help="Where to write it.  [default: report.html in the run's folder]",
)
def command(run: Path, out: Path | None) -> None:
    """Write what a run has told so far as one page: curves, samples, plan, data, machine.

    The page needs no network and no other file. While a run trains it keeps a page of its own
    current, report.html in its folder.
    """
    from andrea.reporting.events import log_path
    from andrea.reporting.metrics import Metrics
    from andrea.reporting.writer import REPORT_NAME, write_report

    log = log_path(run)
    path = out or log.parent / REPORT_NAME
    if path.is_dir():
        path /= REPORT_NAME
    refuse_part_of_run(path, log)
    write_report(Metrics.from_log(log), path, log.resolve().parent.name)
    click.echo(f"wrote {path}")
