"""`andrea params PRESET|RUN`: every parameter of a model counted, and what a change would do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .dialect_options import dialect_options, given_switches
from .info import preset_config, refuse_unknown
from .option_kinds import Number, SectionCommand, SomePath, option
from .options import (
    at_least_1,
    complete_runs_and_presets,
    device_options,
    size_options,
)
from .recorded import check_record

if TYPE_CHECKING:
    from andrea.config import ModelConfig
    from andrea.lessons import Count

_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
_EPILOG = """\b
andrea params andrea-120m
andrea params andrea-120m --mlp-ratio 2 --untied
andrea params runs/book --n-layer 24 --picture shares.svg
"""


@click.command(
    "params",
    cls=SectionCommand,
    short_help="Count a model's parameters, and what a change would do.",
    epilog=_EPILOG,
)
@click.argument("what", metavar="PRESET|RUN", shell_complete=complete_runs_and_presets)
@size_options
@option("--vocab-size", section="Model", type=at_least_1, help="Tokens that there are.")
@option(
    "--mlp-ratio",
    section="Model",
    type=Number(positive=True),
    help="Width of the MLP in widths of the model, instead of --mlp-dim.",
)
@option(
    "--untied",
    section="Model",
    is_flag=True,
    default=None,
    help="The head has a matrix of its own: --no-tie-embeddings.",
)
@dialect_options
@option(
    "--batch-size",
    section="Options",
    type=at_least_1,
    help="Sequences a batch, to tell the memory of.  [default: the run's; 1 for a preset]",
)
@option(
    "--picture",
    section="Options",
    type=SomePath(path_type=Path),
    metavar="FILE",
    help="Draw the shares into this file, over one that is there: .svg or .png.",
)
@option("--json", "as_json", section="Options", is_flag=True, help="Print JSON for programs.")
@device_options
def command(
    what: str, batch_size: int | None, picture: Path | None, as_json: bool, **options: Any
) -> None:
    """Count the parameters of PRESET, a known model, or of RUN, a run folder or checkpoint file.

    Every tensor with its arithmetic, and by kind; memory, and operations per token. Options of
    the model and its dialect say what to change: then both are shown, and the difference.
    """
    from andrea.lessons import Comparison, count_parameters

    if picture is not None:
        from andrea.lessons.pictures import check_picture_path

        check_picture_path(picture)
    change = _change(options)
    title, config, usual_batch = _model(what)
    machine = {"device": options["device"] or "auto", "precision": options["precision"] or "auto"}
    batch_size = batch_size or usual_batch
    count = count_parameters(config, batch_size, **machine)
    changed = None
    if change:
        from andrea.lessons import changed_config

        dialect, ratio = change.pop("dialect", None), change.pop("mlp_ratio", None)
        config = changed_config(config, change, dialect=dialect, mlp_ratio=ratio)
        changed = count_parameters(config, batch_size, **machine)
    if as_json:
        facts = {
            **title,
            "model": count.to_dict(),
            "changed": None if changed is None else changed.to_dict(),
            "difference": None if changed is None else Comparison(count, changed).to_dict(),
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        from .params_text import params_lines

        width = shutil.get_terminal_size().columns
        for line in params_lines(what, title, count, changed, width):
            click.echo(line)
    if picture is not None:
        _draw(picture, title, count, changed)
        if not as_json:
            click.echo(f"\nwrote {picture}")


def _change(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is to be changed, by ModelConfig's names, and "dialect" and "mlp_ratio".

    Raises:
        UsageError: options contradict each other.
    """
    given = {name: options[name] for name in (*_SIZES, "dialect", "mlp_ratio")}
    change = {name: value for name, value in given.items() if value is not None}
    change.update(given_switches(options))
    if options["untied"]:
        if change.get("tie_embeddings"):
            raise click.UsageError("--untied and --tie-embeddings contradict each other")
        change["tie_embeddings"] = False
    if "mlp_ratio" in change and "mlp_dim" in change:
        raise click.UsageError("give one of --mlp-ratio and --mlp-dim")
    return change


def _model(what: str) -> tuple[dict[str, Any], ModelConfig, int]:
    """What is counted, by "preset" or "run", its configuration, and the batches it trains with."""
    from andrea.config import PRESETS
    from andrea.runs.folder import RunFolder

    if what in PRESETS and not os.path.exists(what):
        from_text = not PRESETS[what]["vocab_size"]
        return {"preset": what, "vocab_size_from_text": from_text}, preset_config(what), 1
    refuse_unknown(what)
    with RunFolder.open(Path(what)) as run:
        check_record(run)
        batch_size = run.config.batch_size if run.info.train else 1
        return {"run": str(run.path)}, run.info.model, batch_size


def _draw(path: Path, title: Mapping[str, Any], count: Count, changed: Count | None) -> None:
    from andrea.lessons import draw_shares

    bars = {title.get("preset", "this run"): count}
    if changed is not None:
        bars["changed"] = changed
    draw_shares(bars).write(path)
