"""`andrea experiment NAME [TEXT...]`: the course's claims, tried on models trained side by side."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from .errors import Failure
from .option_kinds import SectionCommand, SomePath, option
from .options import at_least_1, reading_options, text_argument
from .screen.display import Display, QuietDisplay, open_display
from .screen.steady_display import SteadyDisplay
from .texts import TextRequest, absolute_sources, prepare_text
from .training.follow import shell_path
from .training.signals import StopSignals

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.lessons.experiments import Experiment, Results, Runner

# In the folder of an experiment that runs.
_MARK = ".running"
_TELLING_SECONDS = 2.0
_EPILOG = """\b
andrea experiment residual
andrea experiment residual book.txt --full --out residual-of-my-book
andrea experiment custom --vary n_layer=2,4,8 --vary learning_rate=0.003
"""


def _complete_names(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from andrea.lessons.experiments import NAMES

    items = NAMES.items()
    return [CompletionItem(name, help=what) for name, what in items if name.startswith(incomplete)]


class _ExperimentCommand(SectionCommand):
    """A command whose help lists the experiments."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the text, and the experiments with what each compares."""
        from andrea.lessons.experiments import NAMES

        super().format_help_text(ctx, formatter)
        with formatter.section("Experiments"):
            formatter.write_dl(list(NAMES.items()))


@click.command(
    "experiment",
    cls=_ExperimentCommand,
    short_help="Try a claim on models trained side by side.",
    epilog=_EPILOG,
)
@click.argument("name", metavar="NAME", required=False, shell_complete=_complete_names)
@text_argument
@option(
    "--quick/--full",
    "quick",
    section="Length",
    default=True,
    help="Minutes on two cores, or hours: more seeds, steps and sizes.  [default: --quick]",
)
@option("--seeds", section="Length", type=at_least_1, help="Seeds of each variant.")
@option("--steps", section="Length", type=at_least_1, help="Steps of each run.")
@option(
    "--vary",
    section="Model",
    multiple=True,
    metavar="NAME=VALUES",
    help="For custom: a setting and its values, n_layer=2,4,8; one value holds for all. May be "
    "repeated.",
)
@option(
    "--tokenizer",
    section="Data",
    type=click.Choice(["byte", "char", "bpe", "auto"]),
    default="byte",
    help="How text becomes tokens.  [default: byte, so that models are small]",
)
@reading_options
@option(
    "--device",
    section="Machine",
    metavar="NAME",
    help="auto, cpu, cuda or cuda:N; auto is a GPU where one can be used.  [default: auto]",
)
@option(
    "--precision",
    section="Machine",
    metavar="NAME",
    default="fp32",
    help="fp32, bf16 or auto.  [default: fp32, which has room for small gradients]",
)
@option(
    "--threads",
    section="Machine",
    type=at_least_1,
    help="Threads of the engine on the CPU.  [default: one per core]",
)
@option(
    "--out",
    section="Options",
    type=SomePath(path_type=Path),
    metavar="FOLDER",
    help="A new folder for page, numbers and pictures.  [default: experiments/NAME]",
)
@option("--json", "as_json", section="Options", is_flag=True, help="Print JSON for programs.")
@click.pass_context
def command(
    click_context: click.Context, /, name: str | None, text: tuple[str, ...], **options: Any
) -> None:
    """Train the variants of an experiment on the same TEXT and seeds, and judge its claim.

    Without TEXT it is the language reference that every Python carries. Ctrl-C ends it with what
    was measured so far.
    """
    from andrea.lessons.experiments import NAMES

    if name is None:
        raise click.UsageError(f"name an experiment: {', '.join(NAMES)}")
    if name not in NAMES:
        near = difflib.get_close_matches(name[:60].lower(), NAMES, 1)
        hint = f"did you mean {near[0]}? there is" if near else "there is"
        raise Failure(f"no experiment is called {name!r:.60}; {hint} {', '.join(NAMES)}")
    if (name == "custom") != bool(options["vary"]):
        told = "custom needs --vary" if name == "custom" else f"--vary is for custom, not {name}"
        raise Failure(f"{told}: andrea experiment custom --vary n_layer=2,4,8")
    if options["threads"] is not None:
        import andrea

        andrea.set_num_threads(options["threads"])
    stop = StopSignals(before_exit=lambda: display.close())
    display: Display = QuietDisplay()
    if not options["as_json"]:
        display = SteadyDisplay(open_display(), lambda: stop.requested)
    with stop:
        try:
            code = _run(name, text, options, display, stop)
        finally:
            display.close()
    click_context.exit(code)


def _run(
    name: str,
    text: tuple[str, ...],
    options: Mapping[str, Any],
    display: Display,
    stop: StopSignals,
) -> int:
    from andrea.lessons.experiments import Runner
    from andrea.lessons.experiments.report import PAGE, write_report

    request = TextRequest(
        absolute_sources(text),
        options["text_key"],
        options["encoding"],
        bool(options["skip_bad"]),
    )
    vary = _parsed(options["vary"])
    mode = "quick" if options["quick"] else "full"
    # A first look, before the text is read: what contradicts itself is refused at once.
    _experiment(name, mode, 257, vary, options["steps"])
    data = prepare_text(request, display, tokenizer=options["tokenizer"], cache=options["cache"])
    experiment = _experiment(name, mode, data.tokenizer.vocab_size, vary, options["steps"])
    runner = Runner(
        experiment,
        data,
        seeds=None if options["seeds"] is None else tuple(range(options["seeds"])),
        device=options["device"] or "auto",
        precision=options["precision"],
    )
    folder = _claimed(options["out"] or _default_folder(name))
    began, worked = time.monotonic(), time.process_time()
    try:
        _tell_plan(display, experiment, runner, request, data, folder)
        # Until all is written: a signal's request would else be given two seconds.
        told = threading.Event()
        with stop.postponed(lambda: _tell_stop(display, told)):
            _follow(runner, display, stop)
            if stop.requested:
                # The listening thread says so, and is to say it before what follows.
                told.wait(_TELLING_SECONDS)
            results = runner.results()
            if not results.runs:
                display.line("nothing was measured: it ended before the first run was done")
                return stop.exit_code
            display.activity("writing the page")
            missing = write_report(results, folder)
            display.close()
            took = time.monotonic() - began, time.process_time() - worked
            _tell(results, folder / PAGE, missing, took, as_json=options["as_json"])
    finally:
        _leave(folder)
    return stop.exit_code


def _tell(
    results: Results, page: Path, missing: str, took: tuple[float, float], *, as_json: bool
) -> None:
    if as_json:
        click.echo(json.dumps(results.to_dict(), allow_nan=False))
        return
    from .experiment_text import result_lines

    is_plain = bool(os.environ.get("NO_COLOR"))
    for line in result_lines(results, took, shutil.get_terminal_size().columns):
        is_verdict = line.startswith("verdict ") and not is_plain
        click.echo(click.style(line, bold=True) if is_verdict else line)
    click.echo(f"\nwrote {shell_path(page)}")
    if missing:
        click.echo(f"without pictures: {missing}")


def _parsed(vary: tuple[str, ...]) -> dict[str, Any]:
    from andrea.lessons.experiments.custom import parse_vary

    found: dict[str, Any] = {}
    for one in vary:
        name, values = parse_vary(one)
        if name in found:
            raise Failure(f"{name} is varied twice: --vary {name}=VALUE,VALUE names all values")
        found[name] = values
    return found


def _experiment(
    name: str, mode: str, vocab_size: int, vary: Mapping[str, Any], steps: int | None
) -> Experiment:
    from andrea.lessons.experiments import build
    from andrea.lessons.experiments.custom import custom

    if name == "custom":
        return custom(mode, vocab_size, vary, steps)
    return build(name, mode, vocab_size, steps)


def _default_folder(name: str) -> Path:
    """experiments/NAME; numbered when that is taken."""
    path, number = Path("experiments") / name, 1
    while os.path.lexists(path):
        number += 1
        path = Path("experiments") / f"{name}-{number}"
    return path


def _claimed(path: Path) -> Path:
    """A new folder, marked so that no other experiment takes it for an empty one meanwhile."""
    from andrea.lessons.experiments.report import new_folder

    if os.path.lexists(path / _MARK):
        raise Failure(
            f"{path} is that of an experiment that runs or was killed: name another with --out"
        )
    folder = new_folder(path)
    try:
        (folder / _MARK).touch()
    except OSError as error:
        raise Failure(f"cannot write into {folder}: {error.strerror or error}") from error
    return folder


def _leave(folder: Path) -> None:
    """Take the mark away, and the folder if it is empty."""
    with contextlib.suppress(OSError):
        (folder / _MARK).unlink(missing_ok=True)
        folder.rmdir()


def _tell_plan(
    display: Display,
    experiment: Experiment,
    runner: Runner,
    request: TextRequest,
    data: PreparedData,
    folder: Path,
) -> None:
    from .experiment_text import plan_rows

    if isinstance(display, QuietDisplay):
        return
    display.rows(plan_rows(experiment, runner, request, data, shell_path(folder)))
    display.line()


def _follow(runner: Runner, display: Display, stop: StopSignals) -> None:
    """Do the runs, a line for each, until all are done or a signal came."""
    from .experiment_text import activity_line, run_line

    is_quiet = isinstance(display, QuietDisplay)
    for progress in runner.progress():
        display.activity(activity_line(progress), progress.fraction)
        if progress.finished is not None and not is_quiet:
            style = "yellow" if progress.finished.diverged else ""
            display.line(run_line(progress.finished), style=style)
        if stop.requested:
            break


def _tell_stop(display: Display, told: threading.Event) -> None:
    if not isinstance(display, QuietDisplay):
        display.line("ending: runs that are done are kept; Ctrl-C again exits at once")
    told.set()
