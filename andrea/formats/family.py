"""The ANDREA family's published checkpoint: int32 step, int32 n, float32 weights, m and v, n each.

The file says neither shapes nor order: the caller gives the shape, and n tells the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from andrea.closing import Closing
from andrea.config import ModelConfig
from andrea.errors import ArgumentError, CheckpointError
from andrea.runs.tensorfile import Tensor
from andrea.tokenizers import Tokenizer

from .raw import INT32, LARGEST_INT32, RawFile, raw_writer
from .weights import Weights, tensor_shapes

# Of tensors with a layer's number: layer by layer, or first one kind of all layers, then the next.
ORDERS = ("layers", "kinds")
_HEADER = 8
_NUMBER = 4


@dataclass(frozen=True)
class Layout:
    """Which tensors a model of the family has; norms: gain and bias of the layer norms."""

    name: str
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    norms: bool

    def num_parameters(self, config: ModelConfig) -> int:
        """How many numbers a model of this layout and shape has."""
        width, hidden = config.n_embd, config.mlp_dim
        block = 4 * width * width + 2 * width * hidden
        block += 4 * width * self.attention_bias + (width + hidden) * self.mlp_bias
        block += 4 * width * self.norms
        tables = (2 - self.tied) * config.vocab_size + config.block_size
        return tables * width + config.n_layer * block + 2 * width * self.norms

    @property
    def is_ours(self) -> bool:
        """Whether Andrea's engine holds such a model."""
        return self.tied and self.attention_bias and self.mlp_bias and self.norms


LAYOUTS = (
    Layout("tied, all biases, norms with gain and bias", True, True, True, True),
    Layout("tied, MLP bias only, norms with gain and bias", True, False, True, True),
    Layout("untied head, no biases, norms without parameters", False, False, False, False),
    Layout("untied head, no biases, norms with gain and bias", False, False, False, True),
    Layout("untied head, all biases, norms with gain and bias", False, True, True, True),
)


def ordered(names: Mapping[str, tuple[int, ...]], order: str) -> list[str]:
    """The tensors' names in one of ORDERS; `names` are in the order "layers".

    Raises:
        ArgumentError: there is no such order.
    """
    if order not in ORDERS:
        raise ArgumentError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    if order == "layers":
        return list(names)
    found: dict[str, list[str]] = {}
    for name in names:
        kind = "h.*." + name.split(".", 2)[2] if name.startswith("h.") else name
        found.setdefault(kind, []).append(name)
    return [name for of_kind in found.values() for name in of_kind]


def layout_of(path: Path, count: int, config: ModelConfig) -> Layout:
    """The layout that has so many parameters at this shape.

    Raises:
        CheckpointError: none has, or one that Andrea's engine can't hold.
    """
    fitting = [layout for layout in LAYOUTS if layout.num_parameters(config) == count]
    if not fitting:
        known = "; ".join(f"{layout.num_parameters(config):,} {layout.name}" for layout in LAYOUTS)
        raise CheckpointError(
            f"{path} has {count:,} parameters, and no layout of vocab_size {config.vocab_size}, "
            f"block_size {config.block_size}, n_layer {config.n_layer}, n_embd {config.n_embd} "
            f"has so many: {known}"
        )
    for layout in fitting:
        if layout.is_ours:
            return layout
    raise CheckpointError(
        f"{path} is a model of another layout: {fitting[0].name}; "
        f"this Andrea trains models of the layout: {LAYOUTS[0].name}"
    )


class FamilyFile(Closing):
    """A checkpoint of the family, open for reading; `weights` are read from it while it is open.

    Raises:
        CheckpointError: the file can't be read, its size isn't what its count needs, or the count
            isn't what the shape needs.
    """

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        tokenizer: Tokenizer | None = None,
        *,
        order: str = "layers",
    ) -> None:
        shapes = tensor_shapes(config)
        names = ordered(shapes, order)
        self._file = RawFile(path)
        try:
            step, count = self._header()
            layout_of(path, count, config)
            parts: list[dict[str, Tensor]] = []
            offset = _HEADER
            for _ in range(3):
                place = {}
                for name in names:
                    place[name] = self._file.tensor(offset, shapes[name])
                    offset += _NUMBER * place[name].size
                parts.append({name: place[name] for name in shapes})
            self.weights = Weights(config, parts[0], tokenizer, parts[1], parts[2], step)
        except BaseException:
            self.close()
            raise

    def _header(self) -> tuple[int, int]:
        path, have = self._file.path, self._file.size
        if have < _HEADER:
            raise CheckpointError(f"{path} has {have} bytes, too few for a checkpoint's header")
        step, count = (int(number) for number in self._file.numbers(0, 2, INT32))
        need = _HEADER + 3 * _NUMBER * count
        if step < 0 or count < 1:
            raise CheckpointError(
                f"{path} is no checkpoint of the family: it begins with step {step}, "
                f"{count} parameters"
            )
        if have != need:
            raise CheckpointError(
                f"{path} has {have:,} bytes, but its {count:,} parameters need "
                f"8 + 12 x {count:,} = {need:,}: it is truncated or no checkpoint of the family"
            )
        return step, count

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def export_family(weights: Weights, path: Path, *, order: str = "layers") -> None:
    """Write a checkpoint of the family; moments that aren't known are zeros, of step 0.

    Raises:
        CheckpointError: there are more parameters or steps than the file can count, or the disk
            refuses.
    """
    shapes = tensor_shapes(weights.config)
    names = ordered(shapes, order)
    count = LAYOUTS[0].num_parameters(weights.config)
    moments = weights.first_moments, weights.second_moments
    step = 0 if None in moments else weights.step
    if max(count, step) > LARGEST_INT32:
        raise CheckpointError(
            f"the family's checkpoint counts up to {LARGEST_INT32:,}, "
            f"not {count:,} parameters and {step:,} steps"
        )
    with raw_writer(path) as writer:
        writer.numbers(np.array([step, count], dtype=INT32))
        for tensors in (weights.parameters, *moments):
            for name in names:
                if tensors is None:
                    writer.numbers(np.zeros(shapes[name], dtype=np.float32))
                else:
                    writer.tensor(tensors[name])
