"""A model's memory: how much it takes, arrays over it, copies of it, and the order of its work.

The floor under `GPT`, which adds what a model does: training and sampling.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._library import check, ffi, lib, offer_cublaslt
from .arguments import choice, integer
from .config import CHOICES, ModelConfig
from .device_arrays import current_stream
from .errors import ArgumentError, StateError
from .tensors import (
    ActivationOwner,
    Tensor,
    activations,
    is_host_readable,
    read_tensors,
    tensors,
    views,
    write_tensors,
)

# What memory is planned for, in the order of mg_use.
_USES = ("decoding", "training", "forward")


def native_config(config: ModelConfig) -> Any:
    """A configuration as the engine takes it."""
    native = ffi.new("mg_config *")
    native.struct_size = ffi.sizeof("mg_config")
    for name, value in config.to_full_dict().items():
        if isinstance(value, bool):
            value = lib.MG_ON if value else lib.MG_OFF
        setattr(native, name, CHOICES[name].index(value) if name in CHOICES else value)
    return native


def engine_memory(
    config: ModelConfig,
    batch_size: int,
    block_size: int | None = None,
    *,
    use: str = "training",
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, int]:
    """Bytes that a model takes with batches of (batch_size, block_size), by kind, before it exists.

    Kinds: parameters, gradients, moments, activations (kept from forward to backward, or a
    decoder's keys and values), workspace (whatever else lives during a step), and their total.

    Args:
        use: "training"; "forward", of `GPT.forward` alone; or "decoding", of a decoder of
            batch_size sequences that reads up to block_size tokens of each at once.

    Raises:
        ArgumentError: a size is out of range, or there is no such use.
        DeviceError: the device or precision is not available.
    """
    plan = ffi.new("mg_memory_plan *")
    B = integer("batch_size", batch_size, 1, 2**31 - 1)
    T = integer("block_size", config.block_size if block_size is None else block_size, 1, 2**31 - 1)
    if use not in _USES:
        raise ArgumentError(f"use must be one of {', '.join(_USES)}, got {use!r}")
    native = native_config(config)
    offer_cublaslt(device)
    check(
        lib.mg_plan_memory(
            native,
            choice("device", device),
            choice("precision", precision),
            B,
            T,
            _USES.index(use),
            plan,
        )
    )
    names = ("parameters", "gradients", "moments", "activations", "workspace", "total")
    return {name: int(getattr(plan, name)) for name in names}


class ModelMemory:
    """An engine's model by its handle: what lies in its memory, on whatever device."""

    def __init__(self, handle: Any) -> None:
        """Take over the engine's model."""
        # Views and decoders hold this object: the engine's memory goes when the last of them does.
        self._handle: Any = ffi.gc(handle, lib.mg_model_free)
        self._activation_owner: weakref.ref[ActivationOwner] | None = None
        # Arrays on the device that queued work still reads.
        self._in_use: list[object] = []

    @property
    def _model(self) -> Any:
        if self._handle is None:
            raise StateError("this model is closed")
        return self._handle

    @property
    def device(self) -> str:
        """The device the model lives on: "cpu", "cuda" or "cuda:1" and so on."""
        return str(ffi.string(lib.mg_model_device(self._model)).decode())

    @property
    def description(self) -> str:
        """The device by name, and the precision, in one line."""
        return str(ffi.string(lib.mg_model_description(self._model)).decode())

    @property
    def precision(self) -> str:
        """The precision of compute and saved activations: "fp32" or "bf16"."""
        return str(ffi.string(lib.mg_model_precision(self._model)).decode())

    @property
    def num_parameters(self) -> int:
        """The number of trained numbers, tied ones counted once."""
        return int(lib.mg_model_parameter_count(self._model))

    # ---- arrays and copies

    def _views(self, kind: str) -> dict[str, Any]:
        return views(self._model, kind, self.device)

    def parameters(self) -> dict[str, Any]:
        """Zero-copy float32 views of all parameters by GPT-2 name, in table order.

        NumPy arrays, or CuPy arrays of a model on a GPU. They stay valid after `close` and keep the
        memory alive. After writing to them, call `refresh`.

        Raises:
            DeviceError: the model is on a GPU and CuPy is not installed; `read` and `write` work.
        """
        return self._views("parameters")

    def gradients(self) -> dict[str, Any]:
        """Zero-copy views of the gradients, like `parameters`."""
        return self._views("gradients")

    def first_moments(self) -> dict[str, Any]:
        """Zero-copy views of AdamW's running means of gradients, like `parameters`."""
        return self._views("first_moments")

    def second_moments(self) -> dict[str, Any]:
        """Zero-copy views of AdamW's running means of squared gradients, like `parameters`."""
        return self._views("second_moments")

    def activations(self) -> dict[str, Any]:
        """Zero-copy views of what the last `forward` keeps for `backward`, to be read between both.

        (B, T, width) arrays by name, the residual stream before each block ("h.0.input"), outputs
        of its layers ("h.0.attn.c_attn"), and (B, T) statistics ("h.0.ln_1.mean") and losses.
        Those of layers are bfloat16 in that precision: of ml_dtypes' type where it is installed,
        else their bits as uint16. The next call of the model writes over them; a call with more
        tokens is refused while any of them is alive.

        Raises:
            StateError: no `forward` came before, or its `backward` is done.
            DeviceError: the model is on a GPU and CuPy is not installed.
        """
        arrays, owner = activations(self._model, self.device)
        self._activation_owner = weakref.ref(owner)
        return arrays

    def read(self, kind: str = "parameters") -> dict[str, NDArray[np.float32]]:
        """NumPy copies of all tensors of a kind by name, on any device and without CuPy.

        Args:
            kind: "parameters", "gradients", "first_moments" or "second_moments".

        Raises:
            ArgumentError: there is no such kind.
        """
        return read_tensors(self._model, kind)

    def write(self, values: Mapping[str, Any], kind: str = "parameters") -> None:
        """Write arrays by name, as `read` gave them; tensors that aren't named stay as they are.

        Raises:
            ArgumentError: a name is unknown or a shape differs; nothing was written then.
        """
        write_tensors(self._model, kind, values)
        if kind == "parameters":
            self.refresh()

    def tensors(self, kind: str = "parameters") -> dict[str, Tensor]:
        """The tensors of a kind by name, to be read and filled one at a time on any device."""
        return tensors(self._model, kind)

    def refresh(self) -> None:
        """Renew what the backend derives from the weights, after writing to `parameters` views."""
        self._wait_for_cupy()
        check(lib.mg_model_refresh(self._model))

    def reset(self, seed: int) -> None:
        """Start again: parameters from the seed; gradients, moments and step_count 0."""
        check(lib.mg_model_reset(self._model, integer("seed", seed, 0, 2**64 - 1)))

    def _keep_activations(self, positions: int) -> None:
        """A larger batch takes other memory for activations, and frees that of the views."""
        owner = None if self._activation_owner is None else self._activation_owner()
        if owner is not None and positions > owner.positions:
            raise StateError(
                f"arrays of activations() of {owner.positions} tokens are alive, and this batch of "
                f"{positions} needs their memory: copy what is wanted, and delete them"
            )

    # ---- the order of work on a GPU

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        check(lib.mg_model_synchronize(self._model))
        self._in_use.clear()

    @property
    def stream(self) -> int:
        """The CUDA stream that the model's work is queued on, as a number; 0 on the CPU."""
        return int(lib.mg_model_stream(self._model))

    def __cuda_stream__(self) -> tuple[int, int]:
        """What `cupy.cuda.Stream.from_external(model)` asks for: (version, stream)."""
        return 0, self.stream

    def _wait_for_cupy(self) -> None:
        """Let the model's work wait for what CuPy, if in use, has queued: writes to views, say."""
        if not is_host_readable(self._model):
            stream = current_stream()
            if stream is not None:
                check(lib.mg_model_wait(self._model, stream))

    def close(self) -> None:
        """Let go of the engine's memory, which is freed once no view or decoder uses it."""
        self._handle = None
