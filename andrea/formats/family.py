"""The ANDREA family's published checkpoint: int32 step, int32 n, float32 weights, m and v, n each.

The file says neither shapes nor order: the caller gives the shape, and n tells the layout.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from andrea.closing import Closing
from andrea.config import DIALECTS, ModelConfig
from andrea.errors import ArgumentError, CheckpointError, ConfigError
from andrea.planning.sizes import num_parameters
from andrea.runs.tensorfile import Tensor
from andrea.tokenizers import Tokenizer

from .raw import INT32, LARGEST_INT32, RawFile, raw_writer
from .weights import Weights, tensor_shapes

# Layer by layer, the head last; one kind of tensor of all layers, then the next, the head last; or
# layer by layer with the head after the two embeddings, as the ancestor's own program keeps it.
ORDERS = ("layers", "kinds", "head-first")
_HEAD = "lm_head.weight"
_HEADER = 8
_NUMBER = 4


@dataclass(frozen=True)
class Layout:
    """Which tensors a model of the family has, in words and as a dialect of Andrea's."""

    name: str
    dialect: Mapping[str, Any]

    def config(self, shape: ModelConfig, known: Mapping[str, Any]) -> ModelConfig:
        """The model of this layout with another one's sizes, and with what is known of it.

        Raises:
            ConfigError: that can't be together.
        """
        sizes = {name: getattr(shape, name) for name in _SIZES}
        return ModelConfig(**{**self.dialect, **known, **sizes})


_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "mlp_dim")
_NO_BIASES = {"attn_bias": False, "mlp_bias": False}
_UNTIED = {"tie_embeddings": False}
LAYOUTS = (
    Layout("tied, all biases, norms with gain and bias", {}),
    Layout("tied, MLP bias only, norms with gain and bias", {"attn_bias": False}),
    Layout("untied head, no biases, norms without parameters", DIALECTS["microgpt"]),
    Layout("untied head, no biases, norms with gain and bias", {**_UNTIED, **_NO_BIASES}),
    Layout("untied head, all biases, norms with gain and bias", _UNTIED),
)


def ordered(names: Mapping[str, Any], order: str) -> list[str]:
    """The tensors' names in one of ORDERS; `names` are in the engine's order.

    Raises:
        ArgumentError: there is no such order.
    """
    if order not in ORDERS:
        raise ArgumentError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    if order == "head-first":
        return list(names)
    found: dict[str, list[str]] = {}
    for name in names:
        is_of_layer = order == "kinds" and name.startswith("h.")
        kind = "h.*." + name.split(".", 2)[2] if is_of_layer else name
        found.setdefault(kind, []).append(name)
    head = found.pop(_HEAD, [])
    return [name for of_kind in found.values() for name in of_kind] + head


def layout_name(config: ModelConfig) -> str:
    """A model's layout in words, by the tensors that it has."""
    shape = dataclasses.replace(config, n_layer=1)
    tensors = tensor_shapes(shape)
    same = (layout for layout in LAYOUTS if tensor_shapes(layout.config(shape, {})) == tensors)
    return next((layout.name for layout in same), "a layout of its own")


def config_of(path: Path, count: int, shape: ModelConfig, known: Mapping[str, Any]) -> ModelConfig:
    """The model of `shape`'s sizes that has so many parameters and agrees with what is known.

    Raises:
        CheckpointError: none has, or more than one.
        ConfigError: what is known contradicts itself.
    """
    candidates = [LAYOUTS[0].config(shape, known)]
    for layout in LAYOUTS[1:]:
        with contextlib.suppress(ConfigError):
            candidates.append(layout.config(shape, known))
    counts = {config: num_parameters(config) for config in candidates}
    fitting = [config for config, needed in counts.items() if needed == count]
    # Of those with the same tensors the first has the least that is not known.
    if len({layout_name(config) for config in fitting}) == 1:
        return fitting[0]
    sizes = ", ".join(f"{name} {getattr(shape, name)}" for name in _SIZES)
    if fitting:
        names = " and ".join(dict.fromkeys(layout_name(config) for config in fitting))
        raise CheckpointError(
            f"{path} has {count:,} parameters, and more than one layout of {sizes} has so many: "
            f"{names}; say more of its dialect"
        )
    needs = {f"{needed:,} {layout_name(config)}": None for config, needed in counts.items()}
    raise CheckpointError(
        f"{path} has {count:,} parameters, and no layout of {sizes} has so many: "
        + "; ".join(needs)
    )


class FamilyFile(Closing):
    """A checkpoint of the family, open for reading; `weights` are read from it while it is open.

    Raises:
        ArgumentError: there is no such order.
        CheckpointError: the file can't be read, its size isn't what its count needs, or the count
            isn't what any layout of the shape needs.
        ConfigError: what is known contradicts itself.
    """

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        tokenizer: Tokenizer | None = None,
        *,
        order: str = "layers",
        known: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the file, a model of its sizes, and what is known of its dialect: where it is None,
        what of that model's isn't GPT-2's. The rest is the layout's that fits."""
        ordered({}, order)
        self._file = RawFile(path)
        try:
            step, count = self._header()
            # By arithmetic alone, so that the names of tensors are as many as the file can hold.
            config = config_of(path, count, config, config.dialect() if known is None else known)
            shapes = tensor_shapes(config)
            names = ordered(shapes, order)
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
        ArgumentError: there is no such order.
        CheckpointError: there are more parameters or steps than the file can count, or the disk
            refuses.
    """
    shapes = tensor_shapes(weights.config)
    names = ordered(shapes, order)
    count = num_parameters(weights.config)
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
