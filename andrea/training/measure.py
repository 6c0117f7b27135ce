"""How large a model's tensors are on a batch, and which is the first that is not finite.

For the flight recorder: what a person looks at when a step went wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from andrea.errors import DeviceError

if TYPE_CHECKING:
    from andrea.data.batches import Batch
    from andrea.model import GPT

_CHUNK = 1 << 20


class Size(NamedTuple):
    """The L2 norm of a tensor's finite numbers, and how many are not finite."""

    norm: float
    not_finite: int


Sizes = Mapping[str, Size]


@dataclass(frozen=True)
class Measurement:
    """Sizes of a model's tensors by name, in the order of their computation.

    activations: of all micro-batches together; empty where the device's memory can't be read.
    losses: of each micro-batch, in nats. first_not_finite: such as "activations h.0.attn.heads".
    """

    parameters: Sizes
    first_moments: Sizes
    second_moments: Sizes
    activations: Sizes
    gradients: Sizes
    losses: tuple[float, ...]
    first_not_finite: str | None = field(default=None)

    def layers(self) -> Iterator[tuple[str, str, Size]]:
        """All sizes as (kind, name, size)."""
        for kind in KINDS:
            for name, size in getattr(self, kind).items():
                yield kind, name, size


KINDS = ("parameters", "first_moments", "second_moments", "activations", "gradients")


def measure(model: GPT, batches: Iterable[Batch]) -> Measurement:
    """Run a step's micro-batches forward and back, and measure everything on the way.

    Parameters, moments and step_count stay as they are; gradients end as 0. Sums are made in
    float64 and in a fixed order: equal tensors have equal sizes.
    """
    batches = list(batches)
    held = {kind: _sizes(model.tensors(kind)) for kind in KINDS[:3]}
    passes: list[dict[str, Size]] = []
    losses: list[float] = []
    model.zero_gradients()
    try:
        for inputs, targets in batches:
            losses.append(model.forward(inputs, targets))
            passes.append(_activations(model))
            model.backward(1.0 / len(batches))
        # Back from the end, as they are computed.
        gradients = _sizes(dict(reversed(model.tensors("gradients").items())))
    finally:
        model.zero_gradients()
    kinds = {**held, "activations": _together(passes), "gradients": gradients}
    bad = (f"{kind} {name}" for kind in KINDS for name, size in kinds[kind].items() if size[1])
    return Measurement(**kinds, losses=tuple(losses), first_not_finite=next(bad, None))


def _activations(model: GPT) -> dict[str, Size]:
    try:
        return _sizes(model.activations())
    except DeviceError:
        return {}


def _sizes(tensors: Mapping[str, Any]) -> dict[str, Size]:
    return {name: size_of(tensor) for name, tensor in tensors.items()}


def _together(passes: list[dict[str, Size]]) -> dict[str, Size]:
    return {
        name: Size(
            math.sqrt(math.fsum(sizes[name].norm ** 2 for sizes in passes)),
            sum(sizes[name].not_finite for sizes in passes),
        )
        for name in passes[0]
    }


def size_of(tensor: Any) -> Size:
    """The size of an array of float32 numbers, or of bfloat16 ones by their bits."""
    array = tensor.get() if hasattr(tensor, "get") else np.asarray(tensor)
    flat = array.reshape(-1)
    total, not_finite = 0.0, 0
    for start in range(0, flat.size, _CHUNK):
        values = _float64(flat[start : start + _CHUNK])
        finite = np.isfinite(values)
        if not finite.all():
            not_finite += int(np.count_nonzero(~finite))
            values = np.where(finite, values, 0.0)
        total += float(np.square(values).sum())
    return Size(math.sqrt(total), not_finite)


def _float64(values: NDArray[Any]) -> NDArray[np.float64]:
    if values.dtype.itemsize == 2:
        values = (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)
