"""`andrea train`: a new run from a text, or a recorded run continued."""

from __future__ import annotations

from typing import Any

import click

from .dialect_options import dialect_options
from .option_kinds import SectionCommand
from .options import data_options, machine_options, text_argument
from .training.options import (
    guard_options,
    length_options,
    model_options,
    run_options,
    training_options,
    watch_options,
)

_EPILOG = """\b
andrea train book.txt                          learn a file, for five minutes
andrea train notes/ --for 2h                   learn a folder, for two hours
andrea train --resume runs/book                go on where that run stopped
andrea train new.txt --init-from runs/book     let that model learn more
andrea train --config runs/book/config.toml    repeat that run
"""


@click.command(
    "train", cls=SectionCommand, short_help="Train a model on your text.", epilog=_EPILOG
)
@text_argument
@run_options
@length_options
@watch_options
@model_options
@dialect_options
@training_options
@guard_options
@data_options
@machine_options
@click.pass_context
def command(click_context: click.Context, /, **options: Any) -> None:
    """Train a model on TEXT: files, folders, or - for standard input.

    Plain text, JSON lines and Parquet are read, gzipped or not. Without TEXT the model learns the
    language reference that every Python carries. What you leave out is chosen from the amount of
    text, the machine and the time.
    """
    from .screen.display import open_display
    from .screen.steady_display import SteadyDisplay
    from .training.settings import settle
    from .training.signals import StopSignals

    options = settle(click_context, options)
    if options["threads"] is not None:
        import andrea

        andrea.set_num_threads(options["threads"])
    if options["resume"] is None:
        from .training.new_run import start
    else:
        from .training.resumed_run import start
    stop = StopSignals(before_exit=lambda: display.close())
    display = SteadyDisplay(open_display(), lambda: stop.requested)
    with stop:
        try:
            code = start(options, display, stop)
        finally:
            display.close()
    click_context.exit(code)
