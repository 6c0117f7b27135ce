"""`andrea doctor`: whether this installation works, line by line, with a verdict for each."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .option_kinds import SectionCommand, option

if TYPE_CHECKING:
    from andrea.doctor import Finding

_COLOURS = {"ok": "green", "missing": "yellow", "problem": "red"}


@click.command(
    "doctor", cls=SectionCommand, short_help="Look whether everything here works, and say so."
)
@option("--json", "as_json", section="Options", is_flag=True, help="Print JSON for programs.")
@click.pass_context
def command(click_context: click.Context, as_json: bool) -> None:
    """Look at versions, processor, memory, disk and GPUs, and compare each device with NumPy.

    "missing" is what is not here and not needed; "problem" is what should work and does not: then
    the exit code is 1.
    """
    import platformdirs

    from andrea.doctor import examine

    folders = [("folder", Path.cwd()), ("cache", Path(platformdirs.user_cache_dir("andrea")))]
    findings = []
    section = ""
    for finding in examine(folders):
        findings.append(finding)
        if not as_json:
            if finding.section != section and section:
                click.echo()
            section = finding.section
            _show(finding)
    problems = [finding for finding in findings if finding.verdict == "problem"]
    if as_json:
        report = {
            "healthy": not problems,
            "findings": [dataclasses.asdict(finding) for finding in findings],
        }
        click.echo(json.dumps(report, indent=2))
    else:
        names = ", ".join(finding.name for finding in problems)
        click.echo()
        click.echo(f"problems: {names}" if problems else "Everything that is here works.")
    click_context.exit(1 if problems else 0)


_NAME_WIDTH = 13
_VERDICT_WIDTH = 9


def _show(finding: Finding) -> None:
    """Write a finding in three columns; its text wraps in its own one."""
    from .screen.display import wrap

    width = shutil.get_terminal_size().columns - _NAME_WIDTH - _VERDICT_WIDTH
    parts = wrap(finding.text, max(width, 16))
    name = finding.name.ljust(_NAME_WIDTH)
    verdict = finding.verdict.ljust(_VERDICT_WIDTH)
    if not os.environ.get("NO_COLOR"):
        # click drops colours by itself where standard output is no terminal.
        verdict = click.style(verdict, fg=_COLOURS[finding.verdict])
    click.echo(f"{name}{verdict}{parts[0]}")
    for part in parts[1:]:
        click.echo(" " * (_NAME_WIDTH + _VERDICT_WIDTH) + part)
