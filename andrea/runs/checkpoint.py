"""Checkpoints: a model, its tokenizer and everything a run needs to go on, in one safetensors file.

Parameters have GPT-2's names; AdamW's moments are "optimizer.m.<name>" and "optimizer.v.<name>".
Nothing in a file depends on when or where it was written: equal states give equal bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from andrea.closing import Closing
from andrea.config import ModelConfig
from andrea.errors import CheckpointError, ConfigError
from andrea.planning.sizes import each_tensor

from .tensorfile import TensorFile, Tensors, canonical_json, parse_json, write_tensor_file

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tensors import Tensor
    from andrea.tokenizers import Tokenizer

_VERSION_KEY = "andrea_checkpoint"
_VERSION = "1"
_FIRST_MOMENT = "optimizer.m."
_SECOND_MOMENT = "optimizer.v."
_OPTIMIZER_STEPS = "optimizer_steps"
# How a model began says nothing of the tensors that it has.
_OF_NEW_MODELS = ("scaled_init", "init_std")
_COUNT = re.compile("[0-9]{1,18}")


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint holds besides tensors; all plain data, as in JSON.

    train and state are TrainConfig and TrainState as dictionaries, None where only weights were
    saved; record is whatever else the run wants back at resume.
    """

    model: ModelConfig
    tokenizer: Mapping[str, Any]
    train: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None
    record: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(path: Path, model: GPT, info: CheckpointInfo) -> int:
    """Write a checkpoint atomically and return its size in bytes.

    With info.state the moments are saved too, else the weights alone. Memory grows by no more than
    a tensor.

    Raises:
        CheckpointError: a value is not finite, or the disk is full or refuses; the file that was
            there is as it was.
    """
    tensors = state_tensors(model, moments=info.state is not None)
    return write_checkpoint(path, tensors, metadata_of(info, model.step_count))


def write_checkpoint(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> int:
    """Write tensors by the names of `state_tensors`, with `metadata_of` them; size in bytes.

    Raises:
        CheckpointError: a value is not finite, or the disk is full or refuses; the file that was
            there is as it was.
    """
    for name, tensor in tensors.items():
        values = np.asarray(tensor)
        # Sums could overflow, and comparing every value would need an array of results.
        if not (math.isfinite(values.min()) and math.isfinite(values.max())):
            raise CheckpointError(
                f"{path} was not written: {name} holds values that are not finite"
            )
    return write_tensor_file(path, tensors, metadata)


def metadata_of(info: CheckpointInfo, optimizer_steps: int) -> dict[str, str]:
    """What a checkpoint says besides its tensors, as texts."""
    metadata = {
        _VERSION_KEY: _VERSION,
        "model": canonical_json(info.model.to_dict()),
        "tokenizer": canonical_json(info.tokenizer),
        "record": canonical_json(info.record),
    }
    if info.state is not None:
        metadata["train"] = canonical_json(info.train)
        metadata["state"] = canonical_json(info.state)
        metadata[_OPTIMIZER_STEPS] = str(optimizer_steps)
    return metadata


def moment_names() -> tuple[str, str]:
    """Where the first and the second moment of the parameter "{}" are in a file."""
    return _FIRST_MOMENT + "{}", _SECOND_MOMENT + "{}"


def state_tensors(model: GPT, *, moments: bool) -> dict[str, Tensor]:
    """Names in the file -> the model's tensors, on whatever device."""
    tensors = dict(model.tensors("parameters"))
    if moments:
        for prefix, kind in ((_FIRST_MOMENT, "first_moments"), (_SECOND_MOMENT, "second_moments")):
            tensors.update({prefix + name: t for name, t in model.tensors(kind).items()})
    return tensors


class Checkpoint(Closing):
    """A checkpoint opened for reading; its content is verified, whatever happens to its path later.

    Raises:
        CheckpointError: the file is missing, truncated, altered or not a checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = TensorFile(path)
        try:
            self.info = _read_info(path, self._file.metadata)
            self._check_tensors()
        except BaseException:
            self.close()
            raise

    @property
    def has_moments(self) -> bool:
        """Whether AdamW's moments are there; else the file holds weights only."""
        return self.info.state is not None

    @property
    def tensors(self) -> TensorFile:
        """The file's tensors by the names of `state_tensors`, to be read one at a time."""
        return self._file

    @property
    def optimizer_steps(self) -> int:
        """Updates that the optimizer did, on which its bias correction depends.

        Raises:
            CheckpointError: the file does not say, as one of weights doesn't.
        """
        steps = self._file.metadata.get(_OPTIMIZER_STEPS, "")
        if not _COUNT.fullmatch(steps):
            raise CheckpointError(f"{self.path} does not say how many steps its optimizer did")
        return int(steps)

    def load(self, model: GPT, *, moments: bool) -> None:
        """Read parameters, and moments and the step count where asked, into the model's memory.

        Raises:
            CheckpointError: the model has another shape, or moments are asked of a file of weights.
        """
        if moments and not self.has_moments:
            raise CheckpointError(no_way_on(self.path, self.info))
        steps = self.optimizer_steps if moments else 0
        self._check_shape(model.config)
        for name, tensor in state_tensors(model, moments=moments).items():
            tensor.fill(partial(self._file.read_into, name))
        model.refresh()
        if moments:
            model.step_count = steps

    def _check_tensors(self) -> None:
        """Refuse tensors that are not exactly those of the model and of its moments, before anybody
        makes memory for it."""
        left = self._file.shapes
        for pattern in ("{}", *moment_names()) if self.has_moments else ("{}",):
            # The first that is missing ends it: a damaged model may claim any number of blocks.
            for parameter, shape in each_tensor(self.info.model):
                name = pattern.format(parameter)
                found = left.pop(name, None)
                if found != shape:
                    raise CheckpointError(
                        f"{self.path}: {name} is {found or 'missing'}, the model needs {shape}"
                    )
        if left:
            raise CheckpointError(f"{self.path}: {min(left)!r:.80} is no tensor of its model")

    def _check_shape(self, config: ModelConfig) -> None:
        wanted = config.to_full_dict()
        for name, value in self.info.model.to_full_dict().items():
            if value != wanted[name] and name not in _OF_NEW_MODELS:
                raise CheckpointError(
                    f"{self.path} has {name} {value}, but the model has {name} {wanted[name]}"
                )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def tokenizer_of(path: Path, info: CheckpointInfo) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Raises:
        CheckpointError: its vocabulary is not the model's.
        TokenizerError: it is none.
    """
    from andrea.tokenizers import tokenizer_from_dict

    tokenizer = tokenizer_from_dict(info.tokenizer)
    if tokenizer.vocab_size != info.model.vocab_size:
        raise CheckpointError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, "
            f"the model {info.model.vocab_size}"
        )
    return tokenizer


def no_way_on(path: Path, info: CheckpointInfo) -> str:
    """What to say where training is to go on from a file that lacks its state or its settings."""
    held = "weights only" if info.state is None else "moments but not how they were trained"
    return (
        f"{path} holds {held}, so no run can go on from it; "
        f"a new one can start from its weights: --init-from {path}"
    )


def _read_info(path: Path, metadata: Mapping[str, str]) -> CheckpointInfo:
    version = metadata.get(_VERSION_KEY)
    if version != _VERSION:
        raise CheckpointError(
            f"{path} is a checkpoint of format {version!r:.60}, this Andrea reads {_VERSION!r}"
        )
    try:
        parts = {
            key: parse_json(metadata[key])
            for key in ("model", "tokenizer", "train", "state", "record")
            if key in metadata
        }
        for key, part in parts.items():
            if not isinstance(part, dict) and not (part is None and key in ("train", "state")):
                raise ConfigError(f"{key} is {part!r:.60}")
        return CheckpointInfo(**{**parts, "model": ModelConfig.from_dict(parts["model"])})
    except (KeyError, TypeError, ValueError, RecursionError, ConfigError) as error:
        raise CheckpointError(f"{path} has metadata that can't be read: {error}") from error
