"""Formats that a model can be written in, by name: what `andrea export` offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from andrea.errors import ArgumentError, CheckpointError
from andrea.runs.checkpoint import CheckpointInfo, metadata_of, write_checkpoint

from .family import export_family
from .gguf import PRECISIONS, export_gguf
from .hf import export_hf
from .llmc import export_llmc
from .new_folder import refuse_existing
from .weights import Weights


@dataclass(frozen=True)
class Format:
    """A format: what it is, in which precisions it can be written, the first by default."""

    told: str
    write: Callable[[Weights, Path, str, str], None]
    precisions: tuple[str, ...] = ("f32",)


def export_checkpoint(weights: Weights, path: Path) -> None:
    """Write a checkpoint of Andrea's own that holds the weights alone.

    Raises:
        CheckpointError: there is no tokenizer, a value is not finite, or the disk refuses.
    """
    if weights.tokenizer is None:
        raise CheckpointError("a checkpoint has a tokenizer, but these weights come without one")
    info = CheckpointInfo(weights.config, weights.tokenizer.to_dict())
    write_checkpoint(path, weights.parameters, metadata_of(info, 0))


FORMATS: dict[str, Format] = {
    "hf": Format(
        "a folder for transformers: GPT2LMHeadModel, AutoTokenizer",
        lambda weights, path, _precision, _order: export_hf(weights, path),
    ),
    "gguf": Format(
        "a file for llama.cpp",
        lambda weights, path, precision, _order: export_gguf(weights, path, precision=precision),
        PRECISIONS,
    ),
    "llmc": Format(
        "a model file of llm.c",
        lambda weights, path, precision, _order: export_llmc(weights, path, precision=precision),
        ("f32", "bf16"),
    ),
    "andrea": Format(
        "a checkpoint as the family publishes them, with moments",
        lambda weights, path, _precision, order: export_family(weights, path, order=order),
    ),
    "safetensors": Format(
        "a checkpoint of Andrea's own with the weights alone",
        lambda weights, path, _precision, _order: export_checkpoint(weights, path),
    ),
}


def export(
    weights: Weights,
    path: Path,
    format_name: str,
    *,
    precision: str | None = None,
    order: str = "layers",
) -> None:
    """Write a model in one of FORMATS; `path` must be free. order: of "andrea" alone.

    Raises:
        ArgumentError: there is no such format, or not in this precision.
        CheckpointError: there is something at `path`, the format can't hold the model, or the disk
            refuses.
        TokenizerError: the format can't hold the tokenizer.
    """
    if format_name not in FORMATS:
        raise ArgumentError(f"format must be one of {', '.join(FORMATS)}, got {format_name!r}")
    chosen = FORMATS[format_name]
    precision = precision or chosen.precisions[0]
    if precision not in chosen.precisions:
        raise ArgumentError(
            f"{format_name} is written in {' or '.join(chosen.precisions)}, not in {precision}"
        )
    refuse_existing(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot make {path.parent}: {error.strerror}") from error
    chosen.write(weights, path, precision, order)
