"""`andrea import PATH`: a model that another program made, as a run of Andrea's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .dialect_options import dialect_options, given_switches
from .errors import Failure
from .export import ORDERS
from .option_kinds import SectionCommand, SomePath, option, stack
from .options import at_least_1, complete_presets

if TYPE_CHECKING:
    from andrea.config import ModelConfig

_EPILOG = """\b
andrea import gpt2-folder --out runs/gpt2
andrea import gpt2_124M.bin --tokenizer gpt2-folder --out runs/gpt2
andrea import 12m.bin --preset andrea-12m --tokenizer runs/a --out runs/b
"""
_SHAPE = ("block_size", "n_layer", "n_head", "n_embd")


_shape_options = stack(
    option(
        "--preset",
        section="Model",
        metavar="NAME",
        shell_complete=complete_presets,
        help="Of andrea, whose file doesn't say it: the shape.  [default: that of --tokenizer RUN]",
    ),
    option("--block-size", section="Model", type=at_least_1, help="Of andrea: tokens it sees."),
    option("--n-layer", section="Model", type=at_least_1, help="Of andrea: blocks."),
    option("--n-head", section="Model", type=at_least_1, help="Of andrea: attention heads."),
    option("--n-embd", section="Model", type=at_least_1, help="Of andrea: width."),
)


@click.command(
    "import", cls=SectionCommand, short_help="Take in a model of another program.", epilog=_EPILOG
)
@click.argument("path", type=SomePath(path_type=Path), metavar="PATH")
@option(
    "--out",
    section="Run",
    type=SomePath(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="The folder of the run to make; sample, eval, export and train --init-from take it.",
)
@option(
    "--tokenizer",
    section="Data",
    metavar="PLACE",
    help="Where a file has none: a run, a folder of Hugging Face, a tokenizer.json, or byte.",
)
@option(
    "--format",
    "format_name",
    section="Options",
    type=click.Choice(["hf", "llmc", "andrea"]),
    help="What PATH is.  [default: found out]",
)
@option(
    "--order",
    section="Options",
    type=click.Choice(ORDERS),
    default="layers",
    help="Of andrea: tensors layer by layer, one kind of all layers first, or layers after the "
    "head.  [default: layers]",
)
@_shape_options
@dialect_options
def command(
    path: Path, out: Path, tokenizer: str | None, format_name: str | None, **options: Any
) -> None:
    """Make a run of the model at PATH.

    PATH is a GPT-2 folder of Hugging Face, a model file of llm.c, or a checkpoint of the ANDREA
    family. A token file of llm.c becomes a text, JSON lines at --out, which andrea train takes.
    The family's file says neither its sizes nor its dialect: the sizes are named, and its count of
    parameters tells the layout; options of the dialect say what no count can tell.
    """
    from andrea.formats.family import layout_name
    from andrea.formats.imported import write_run
    from andrea.formats.llmc import is_tokens
    from andrea.formats.opening import format_of, open_model
    from andrea.planning.dialects import describe_dialect
    from andrea.planning.sizes import num_parameters
    from andrea.runs.folder import refuse_used

    if format_name is None and is_tokens(path):
        _import_tokens(path, tokenizer, out)
        return
    refuse_used(out)
    name = format_name or format_of(path)
    given = _known(options)
    if name != "andrea" and given:
        flag = "--" + next(iter(given)).replace("_", "-")
        raise Failure(f"{path} says what model it holds: leave out {flag} and its like")
    config, known = _shape(path, tokenizer, options, given) if name == "andrea" else (None, None)
    if name != "hf" and tokenizer is None:
        raise Failure(
            f"{path} carries no tokenizer: name one with --tokenizer, a run, a folder of Hugging "
            "Face, a tokenizer.json, or byte"
        )
    order = options["order"]
    with open_model(
        path, format_name=name, tokenizer=tokenizer, config=config, known=known, order=order
    ) as weights:
        write_run(weights, out, origin=name)
        found = weights.tokenizer.describe() if weights.tokenizer else ""
        click.echo(f"made {out}: {num_parameters(weights.config):,} parameters, {found}")
        if name == "andrea":
            click.echo(f"layout: {layout_name(weights.config)}; order: {order}")
        dialect = describe_dialect(weights.config)
        if dialect:
            click.echo(f"dialect: {dialect}")
    click.echo(f'try:  andrea sample {out} --prompt "..."')


def _import_tokens(path: Path, tokenizer: str | None, out: Path) -> None:
    from andrea.formats.llmc_text import import_tokens
    from andrea.formats.opening import tokenizer_at
    from andrea.words import plural

    if tokenizer is None:
        raise Failure(f"{path} holds tokens: name the tokenizer that made them with --tokenizer")
    documents = import_tokens(path, tokenizer_at(tokenizer), out)
    click.echo(f"wrote {out}: {plural(documents, 'document')}")
    click.echo(f"try:  andrea train {out}")


def _shape(
    path: Path, tokenizer: str | None, options: dict[str, Any], given: dict[str, Any]
) -> tuple[ModelConfig, dict[str, Any]]:
    """The sizes that the options say, or those of the run whose tokenizer is taken; and what is
    known of the dialect."""
    from andrea.config import PRESETS, ModelConfig
    from andrea.formats.opening import tokenizer_at
    from andrea.planning.dialects import preset_sizes
    from andrea.runs.folder import RunFolder

    sizes = {name: options[name] for name in _SHAPE if options[name] is not None}
    if options["preset"] is not None:
        sizes = {**preset_sizes(options["preset"]), **sizes}
    if not sizes and tokenizer is not None and (Path(tokenizer) / "checkpoints").is_dir():
        with RunFolder.open(Path(tokenizer)) as run:
            config = ModelConfig.from_dict({**run.info.model.to_dict(), **given})
            return config, {**config.dialect(), **given}
    missing = [name for name in _SHAPE if name not in sizes]
    if missing:
        flags = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise Failure(
            f"{path} does not say its shape, if it is a checkpoint of the family: name it with "
            f"--preset ({', '.join(PRESETS)}) or {flags}"
        )
    if tokenizer is not None:
        sizes["vocab_size"] = tokenizer_at(tokenizer).vocab_size
    elif not sizes.get("vocab_size"):
        raise Failure(f"{path} carries no tokenizer: name one with --tokenizer")
    config = ModelConfig(**{**sizes, **given})
    return config, {**config.dialect(), **given}


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """What the options say of the dialect; a dialect that is named says all of it."""
    from andrea.config import DIALECT_SETTINGS, ModelConfig
    from andrea.planning.dialects import dialect_settings

    given = given_switches(options)
    if options["dialect"] is None:
        return given
    named = ModelConfig(1, 1, 1, 1, 1, **dialect_settings(options["dialect"])).to_full_dict()
    named = {name: named[name] for name in DIALECT_SETTINGS if name != "mlp_dim"}
    return {**named, **given}
