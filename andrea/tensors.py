"""A model's tensors, one by one: views of the engine's memory, and copies where the host has none.

For `GPT` and for checkpoints, which must work on any device and never hold a whole model twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._library import check, ffi, lib
from .arrays import address, bfloat16, float32_pointer, gpu_view, view
from .errors import ArgumentError

Values = NDArray[np.float32]

KINDS = {
    "parameters": lib.MG_PARAMETERS,
    "gradients": lib.MG_GRADIENTS,
    "first_moments": lib.MG_MOMENT_1,
    "second_moments": lib.MG_MOMENT_2,
}


def is_host_readable(model: Any) -> bool:
    """Whether the host can read a model's memory as its own."""
    return bool(lib.mg_model_host_readable(model))


def device_number(device: str) -> int:
    """The number of a GPU by its device's name: 0 of "cuda", 1 of "cuda:1"."""
    return int(device.partition(":")[2] or 0)


@dataclass(frozen=True)
class Tensor:
    """One float32 tensor of a model, on whatever device; NumPy reads it like an array.

    offset counts floats from the start of all tensors of its kind.
    """

    model: Any
    kind: int
    name: str
    shape: tuple[int, ...]
    offset: int
    size: int

    def read(self) -> Values:
        """The values for the host: a view where it can read the memory, else a copy."""
        if is_host_readable(self.model):
            return self._view()
        values = np.empty(self.shape, dtype=np.float32)
        check(
            lib.mg_model_read(
                self.model, self.kind, self.offset, self.size, float32_pointer(values)
            )
        )
        return values

    def fill(self, write: Callable[[Values], object]) -> None:
        """Let `write` put all values into an array: the tensor's own memory where that can be."""
        if is_host_readable(self.model):
            write(self._view())
            return
        values = np.empty(self.shape, dtype=np.float32)
        write(values)
        check(
            lib.mg_model_write(
                self.model, self.kind, self.offset, self.size, float32_pointer(values)
            )
        )

    def _view(self) -> Values:
        memory = ffi.new("float **")
        check(lib.mg_model_memory(self.model, self.kind, memory))
        array: Values = view(self.model, memory[0] + self.offset, self.shape)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.read()
        return np.array(values, dtype=dtype) if copy else np.asarray(values, dtype=dtype)


def tensors(model: Any, kind: str) -> dict[str, Tensor]:
    """All tensors of a kind by GPT-2 name, in table order.

    Raises:
        ArgumentError: there is no such kind.
    """
    if kind not in KINDS:
        raise ArgumentError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    table = {}
    entry = ffi.new("mg_tensor *")
    for index in range(lib.mg_model_tensor_count(model)):
        check(lib.mg_model_tensor(model, index, entry))
        shape = tuple(int(length) for length in entry.shape[0 : entry.n_dims])
        name = ffi.string(entry.name).decode()
        table[name] = Tensor(model, KINDS[kind], name, shape, int(entry.offset), int(entry.size))
    return table


def views(model: Any, kind: str, device: str) -> dict[str, Any]:
    """Zero-copy arrays over all tensors of a kind: NumPy's, or CuPy's of a GPU.

    Raises:
        DeviceError: the model is on a GPU and CuPy is not installed.
    """
    memory = ffi.new("float **")
    check(lib.mg_model_memory(model, KINDS[kind], memory))
    return {
        name: _array(model, memory[0] + tensor.offset, tensor.shape, np.dtype(np.float32), device)
        for name, tensor in tensors(model, kind).items()
    }


def read_tensors(model: Any, kind: str) -> dict[str, Values]:
    """Copies of all tensors of a kind, for the host."""
    table = tensors(model, kind)
    if is_host_readable(model):
        return {name: np.array(tensor.read()) for name, tensor in table.items()}
    # All at once: each copy waits for the device.
    count = max(tensor.offset + tensor.size for tensor in table.values())
    memory = np.empty(count, dtype=np.float32)
    check(lib.mg_model_read(model, KINDS[kind], 0, count, float32_pointer(memory)))
    return {
        name: memory[tensor.offset : tensor.offset + tensor.size].reshape(tensor.shape)
        for name, tensor in table.items()
    }


def write_tensors(model: Any, kind: str, values: Any) -> None:
    """Write arrays, by name, to the tensors of a kind; those not named stay as they are.

    Raises:
        ArgumentError: a name is unknown or a shape differs; nothing was written then.
    """
    table = tensors(model, kind)
    arrays = {name: np.asarray(array, dtype=np.float32) for name, array in dict(values).items()}
    for name, array in arrays.items():
        if name not in table:
            raise ArgumentError(f"the model has no tensor {name!r}")
        if array.shape != table[name].shape:
            raise ArgumentError(f"{name} has shape {table[name].shape}, got {array.shape}")
    for name, array in arrays.items():
        table[name].fill(partial(_copy, array))


def _copy(source: Values, target: Values) -> None:
    np.copyto(target, source)


class ActivationOwner:
    """Keeps a model's memory for views of its activations, and tells that there are some."""

    def __init__(self, model: Any, positions: int) -> None:
        self.model = model
        self.positions = positions


def activations(model: Any, device: str) -> tuple[dict[str, Any], ActivationOwner]:
    """Zero-copy arrays over what the last forward kept, and the owner that all of them hold."""
    count = ffi.new("int32_t *")
    check(lib.mg_model_activation_count(model, count))
    entry = ffi.new("mg_activation *")
    arrays: dict[str, Any] = {}
    owner = ActivationOwner(model, 0)
    for index in range(count[0]):
        check(lib.mg_model_activation(model, index, entry))
        shape = tuple(int(length) for length in entry.shape[0 : entry.n_dims])
        owner.positions = shape[0] * shape[1]
        dtype = bfloat16() if entry.is_bf16 else np.dtype(np.float32)
        name = ffi.string(entry.name).decode()
        arrays[name] = _array(owner, entry.memory, shape, dtype, device)
    return arrays, owner


def _array(
    owner: Any, pointer: Any, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
) -> Any:
    model = owner.model if isinstance(owner, ActivationOwner) else owner
    if is_host_readable(model):
        return view(owner, pointer, shape, dtype)
    return gpu_view(owner, address(pointer), shape, dtype, device_number(device))
