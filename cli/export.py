"""`andrea export RUN`: a trained model as a file for other programs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .option_kinds import SectionCommand, SomePath, option
from .options import best_option, run_argument
from .recorded import check_record
from .screen.display import answer_display
from .texts import TextRequest, absolute_sources, prepare_text

if TYPE_CHECKING:
    from andrea.runs.folder import RunFolder

_EPILOG = """\b
andrea export runs/book --format hf --out book-hf
andrea export runs/book --format gguf --precision q8_0 --out book.gguf
"""
# As in andrea.formats, which a help page needs not load.
_TOKENS = "llmc-tokens"
_FORMATS = ("hf", "gguf", "llmc", "andrea", "safetensors", _TOKENS)
_PRECISIONS = ("f32", "f16", "bf16", "q8_0")
ORDERS = ("layers", "kinds", "head-first")


@click.command(
    "export", cls=SectionCommand, short_help="Write a model for other programs.", epilog=_EPILOG
)
@run_argument
@best_option
@option(
    "--format",
    "format_name",
    section="Options",
    type=click.Choice(_FORMATS),
    required=True,
    help="hf: a folder for transformers; gguf: a file for llama.cpp; llmc: for llm.c; andrea: the "
    "family's published checkpoint, moments included; safetensors: a checkpoint of the weights; "
    "llmc-tokens: a folder with --text in the run's tokens, for llm.c.",
)
@option(
    "--out",
    section="Options",
    type=SomePath(path_type=Path),
    required=True,
    metavar="PATH",
    help="The folder or file to write, which must not be there yet.",
)
@option(
    "--precision",
    section="Options",
    type=click.Choice(_PRECISIONS),
    help="Of gguf any; of llmc f32 or bf16.  [default: f32]",
)
@option(
    "--order",
    section="Options",
    type=click.Choice(ORDERS),
    default="layers",
    help="Of andrea: tensors layer by layer, one kind of all layers first, or layers after the "
    "head.  [default: layers]",
)
@option(
    "--text",
    section="Options",
    type=SomePath(),
    multiple=True,
    metavar="TEXT",
    help="Of llmc-tokens: the file or folder whose tokens are wanted. May be repeated.",
)
def command(
    run: str,
    best: bool,
    format_name: str,
    out: Path,
    precision: str | None,
    order: str,
    text: tuple[str, ...],
) -> None:
    """Write the model of RUN, a run folder or a checkpoint file, in another format."""
    if bool(text) != (format_name == _TOKENS):
        raise click.UsageError(f"--text and --format {_TOKENS} go together")
    from andrea.formats.exporting import FORMATS, export
    from andrea.formats.family import layout_name
    from andrea.formats.weights import of_run
    from andrea.runs.folder import RunFolder
    from andrea.words import size

    with RunFolder.open(Path(run), best=best) as folder:
        check_record(folder)
        for line in folder.damaged:
            click.echo(f"andrea: {line}; using {folder.checkpoint_path}", err=True)
        if format_name == _TOKENS:
            told = _export_tokens(folder, text, out)
        else:
            weights = of_run(folder)
            export(weights, out, format_name, precision=precision, order=order)
            told = FORMATS[format_name].told
            if format_name == "andrea":
                told += f"; layout: {layout_name(weights.config)}; order: {order}"
    files = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    written = size(sum(path.stat().st_size for path in files))
    click.echo(f"wrote {out}, {written}: {told}")


def _export_tokens(run: RunFolder, text: tuple[str, ...], out: Path) -> str:
    from andrea.formats.llmc_text import export_tokens
    from andrea.formats.new_folder import refuse_existing

    refuse_existing(out)
    with contextlib.closing(answer_display(False)) as display:
        request = TextRequest(absolute_sources(text))
        data = prepare_text(request, display, tokenizer=run.tokenizer())
    export_tokens(data, out)
    return f"{len(data.train):,} tokens to learn from, {len(data.validation):,} to validate"
