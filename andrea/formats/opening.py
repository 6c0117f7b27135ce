"""Models of other programs, opened by their path: what they are is found out, or said.

For `andrea import`, and for new runs that begin with such weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from andrea.config import ModelConfig
from andrea.errors import ArgumentError, CheckpointError, TokenizerError
from andrea.runs.folder import RunFolder
from andrea.runs.store import FOLDER_NAME
from andrea.tokenizers import ByteTokenizer, Tokenizer

from .family import FamilyFile
from .hf import CONFIG, HFFolder, is_hf_folder
from .llmc import LlmcFile, magic_of
from .safetensors_file import read_json
from .tokenizer_json import from_tokenizer_json
from .weights import Weights

FORMATS = ("hf", "llmc", "andrea")


def format_of(path: Path) -> str:
    """Which of FORMATS a path holds; "andrea", which has no mark of its own, is the last guess.

    Raises:
        CheckpointError: there is nothing, or nothing that can be read.
    """
    if path.is_dir():
        if is_hf_folder(path):
            return "hf"
        if (path / FOLDER_NAME).is_dir():
            raise CheckpointError(f"{path} is a run of Andrea already: nothing is to be imported")
        if (path / CONFIG).is_file():
            raise CheckpointError(
                f"{path} has no model.safetensors: other files of weights are not read; let "
                "transformers save it again"
            )
        raise CheckpointError(f"{path} holds no model: a folder of Hugging Face has a {CONFIG}")
    if not path.exists():
        raise CheckpointError(f"{path} isn't there")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path} is a part of a model: name the folder that it is in")
    kind = magic_of(path)
    if kind == "tokens":
        raise CheckpointError(f"{path} holds tokens, not a model")
    return "llmc" if kind == "model" else "andrea"


@contextlib.contextmanager
def open_model(
    path: Path,
    *,
    format_name: str | None = None,
    tokenizer: str | None = None,
    config: ModelConfig | None = None,
    known: Mapping[str, Any] | None = None,
    order: str = "layers",
) -> Iterator[Weights]:
    """The weights at a path, readable within the `with`.

    tokenizer: where one is, as of `tokenizer_at`, instead of the model's own. config, known and
    order: of "andrea", whose file doesn't say its shape; see `FamilyFile`.

    Raises:
        ArgumentError: there is no such format or order, or the shape is missing.
        CheckpointError: the model is damaged, or one that Andrea can't hold.
        TokenizerError: the tokenizer is one that Andrea can't use.
    """
    name = format_name or format_of(path)
    file: HFFolder | LlmcFile | FamilyFile
    if name == "andrea":
        file = _family_file(path, config, known, order)
    else:
        file = _opened(path, name, tokenizer is None)
    with file:
        weights = file.weights
        if tokenizer is not None:
            made = tokenizer_at(tokenizer, weights.config.vocab_size)
            weights = dataclasses.replace(weights, tokenizer=made)
        yield weights


def _opened(path: Path, name: str, with_tokenizer: bool) -> HFFolder | LlmcFile:
    if name == "hf":
        return HFFolder(path, with_tokenizer=with_tokenizer)
    if name == "llmc":
        return LlmcFile(path)
    raise ArgumentError(f"format must be one of {', '.join(FORMATS)}, got {name!r}")


def _family_file(
    path: Path, config: ModelConfig | None, known: Mapping[str, Any] | None, order: str
) -> FamilyFile:
    if config is None:
        raise ArgumentError(
            f"{path} does not say its shape, if it is a checkpoint of the family: name it"
        )
    return FamilyFile(path, config, order=order, known=known)


def tokenizer_at(place: str, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer that a run has, a tokenizer.json describes, or of the name "byte".

    vocab_size: of the model that it is for, which may have more tokens than a tokenizer.json.

    Raises:
        RunError, CheckpointError: there is none.
        TokenizerError: it is one that Andrea can't use.
    """
    path = Path(place)
    if place == "byte" and not path.exists():
        return ByteTokenizer()
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if path.suffix != ".json":
        with RunFolder.open(path) as run:
            return run.tokenizer()
    description = read_json(path)
    if vocab_size is None:
        vocab_size = _largest_id(description) + 1
    return from_tokenizer_json(description, vocab_size)


def _largest_id(description: dict[str, Any]) -> int:
    """The highest id that a tokenizer.json names."""
    model, added = description.get("model"), description.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if isinstance(added, list):
        ids += [one.get("id") for one in added if isinstance(one, dict)]
    known = [number for number in ids if type(number) is int and 0 <= number < 2**31]
    if not known:
        raise TokenizerError("the tokenizer.json has no vocabulary")
    return max(known)
