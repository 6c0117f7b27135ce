"""A model between two files: its sizes, its tokenizer and its tensors, each read when it is asked.

Every format here is written from a `Weights` and read into one, so that no second model is held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from andrea.config import ModelConfig
from andrea.errors import CheckpointError
from andrea.planning.sizes import each_tensor
from andrea.runs.checkpoint import moment_names
from andrea.runs.tensorfile import Tensor, TensorFile

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder
    from andrea.tokenizers import Tokenizer

Array = NDArray[np.float32]

# Positions are cropped and repeated; and how a new model starts is over here.
_MAY_DIFFER = ("block_size", "scaled_init", "init_std")


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is elsewhere: `read` makes a float32 array of the shape, at each use."""

    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]] = field(repr=False)

    @property
    def size(self) -> int:
        """Numbers in all."""
        return math.prod(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.read(), dtype=dtype)


@dataclass(frozen=True)
class Weights:
    """A model's tensors by the names of the engine's table, linear weights as [out, in].

    first_moments and second_moments are AdamW's after `step` steps, None where only the parameters
    are known.
    """

    config: ModelConfig
    parameters: Mapping[str, Tensor]
    tokenizer: Tokenizer | None = None
    first_moments: Mapping[str, Tensor] | None = None
    second_moments: Mapping[str, Tensor] | None = None
    step: int = 0

    def __post_init__(self) -> None:
        for tensors in (self.parameters, self.first_moments, self.second_moments):
            if tensors is not None:
                check_shapes(tensors, self.config)

    def load(self, model: GPT) -> None:
        """Write the parameters into a model, which may see more or fewer positions.

        The first positions keep what they learned; more of them begin as these, over and over, as
        in Longformer (Beltagy et al. 2020).

        Raises:
            CheckpointError: the model has another shape or dialect.
        """
        theirs = model.config.to_full_dict()
        for name, value in self.config.to_full_dict().items():
            if theirs[name] != value and name not in _MAY_DIFFER:
                raise CheckpointError(
                    f"these weights have {name} {value}, but the model has {name} {theirs[name]}"
                )
        for name, tensor in model.tensors("parameters").items():
            tensor.fill(partial(_write, self.parameters[name]))
        model.refresh()


def _write(tensor: Tensor, target: Array) -> None:
    values = np.asarray(tensor)
    for start in range(0, len(target), len(values)):
        part = target[start : start + len(values)]
        np.copyto(part, values[: len(part)])


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in the order of the engine's table."""
    return dict(each_tensor(config))


def check_shapes(tensors: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Refuse tensors that are not exactly those of the model.

    Raises:
        CheckpointError: one is missing, unknown, or of another shape.
    """
    wanted = tensor_shapes(config)
    for name, shape in wanted.items():
        if name not in tensors:
            raise CheckpointError(f"the tensor {name} is missing: the model needs it as {shape}")
        if tensors[name].shape != shape:
            raise CheckpointError(f"{name} is {tensors[name].shape}, the model needs {shape}")
    unknown = next((name for name in tensors if name not in wanted), None)
    if unknown is not None:
        raise CheckpointError(f"{unknown!r:.80} is no tensor of a model of this kind")


def of_model(model: GPT, tokenizer: Tokenizer | None = None) -> Weights:
    """A model's own tensors, moments among them; nothing is copied until it is read."""
    return Weights(
        model.config,
        model.tensors("parameters"),
        tokenizer,
        model.tensors("first_moments"),
        model.tensors("second_moments"),
        model.step_count,
    )


def of_run(run: RunFolder) -> Weights:
    """The tensors of an opened checkpoint, with its tokenizer; readable while the run is open.

    Raises:
        CheckpointError: the tokenizer is not the model's.
        TokenizerError: it is none.
    """
    checkpoint = run.checkpoint
    file, config = checkpoint.tensors, run.info.model
    parameters = _stored(file, config, "{}")
    if not checkpoint.has_moments:
        return Weights(config, parameters, run.tokenizer())
    first, second = (_stored(file, config, pattern) for pattern in moment_names())
    steps = checkpoint.optimizer_steps
    return Weights(config, parameters, run.tokenizer(), first, second, steps)


def _stored(file: TensorFile, config: ModelConfig, pattern: str) -> dict[str, Tensor]:
    return {
        name: LazyTensor(shape, partial(_read, file, pattern.format(name)))
        for name, shape in each_tensor(config)
    }


def _read(file: TensorFile, name: str) -> Array:
    array = np.empty(file.shapes[name], dtype=np.float32)
    file.read_into(name, array)
    return array
