"""`andrea export RUN`: a trained model as a file for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from .option_kinds import SectionCommand, option
from .options import best_option, run_argument
from .recorded import check_record

_EPILOG = """\b
andrea export runs/book --format hf --out book-hf
andrea export runs/book --format gguf --precision q8_0 --out book.gguf
"""
# As in andrea.formats, which a help page needs not load.
_FORMATS = ("hf", "gguf", "llmc", "andrea", "safetensors")
_PRECISIONS = ("f32", "f16", "bf16", "q8_0")
ORDERS = ("layers", "kinds")


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
    "family's published checkpoint, moments included; safetensors: a checkpoint of the weights.",
)
@option(
    "--out",
    section="Options",
    type=click.Path(path_type=Path),
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
    help="Of andrea: tensors layer by layer, or one kind of all layers first.  [default: layers]",
)
def command(
    run: str, best: bool, format_name: str, out: Path, precision: str | None, order: str
) -> None:
    """Write the model of RUN, a run folder or a checkpoint file, in another format."""
    from andrea.formats.exporting import FORMATS, export
    from andrea.formats.weights import of_run
    from andrea.runs.folder import RunFolder
    from andrea.words import size

    with RunFolder.open(Path(run), best=best) as folder:
        check_record(folder)
        for line in folder.damaged:
            click.echo(f"andrea: {line}; using {folder.checkpoint_path}", err=True)
        export(of_run(folder), out, format_name, precision=precision, order=order)
    files = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    written = size(sum(path.stat().st_size for path in files))
    click.echo(f"wrote {out}, {written}: {FORMATS[format_name].told}")
