"""GPT: the native model as a Python object, with zero-copy views of its memory.

Calls that take `wait=False` return when their work is queued, so that a GPU never waits for Python.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from ._library import check, ffi, has_simulated_gpu, lib, offer_cublaslt
from .arguments import choice, integer, limit, number
from .arrays import float32_pointer, int32_pointer, token_array
from .config import ModelConfig
from .decoder import Decoder
from .device_arrays import device_array, import_cupy
from .errors import ArgumentError, DeviceError, DTypeError
from .memory import ModelMemory, native_config


@dataclass(frozen=True)
class _Tokens:
    """Token ids where the engine finds them; `owner` keeps them there."""

    pointer: Any
    shape: tuple[int, ...]
    on_device: bool
    owner: object


class GPT(ModelMemory):
    """A GPT-2 style language model on one device: forward, backward and AdamW in native code.

    Shapes: B sequences of T tokens, T at most block_size; V is vocab_size. Token ids are int32
    arrays (other integers are converted); a model on a GPU also takes C-contiguous int32 arrays
    there, without a copy to the host: whatever has `__cuda_array_interface__`, or DLPack where CuPy
    is installed. Losses are means in nats over the targets that are not -1. One thread at a time
    may use a model.

    Args:
        config: the model's sizes and dialect.
        device: "cpu"; "cuda", the first GPU, or "cuda:1" and so on; or "auto": a GPU where one can
            be used, else the CPU.
        precision: "fp32"; "bf16", which multiplies and keeps activations in bfloat16, and sums in
            float32 (parameters, gradients and moments are float32 arrays in either); or "auto":
            bf16 where the device multiplies it natively, else fp32.
        seed: initial parameters; the same seed gives the same bits on every machine.

    Raises:
        DeviceError: the device or precision is not available.
        OutOfMemoryError: the parameters don't fit in memory.
    """

    def __init__(
        self, config: ModelConfig, *, device: str = "auto", precision: str = "auto", seed: int = 0
    ) -> None:
        if not isinstance(config, ModelConfig):
            raise DTypeError(f"config must be a ModelConfig, got {type(config).__name__}")
        offer_cublaslt(device)
        handle = ffi.new("mg_model **")
        check(
            lib.mg_model_create(
                native_config(config),
                choice("device", device),
                choice("precision", precision),
                integer("seed", seed, 0, 2**64 - 1),
                handle,
            )
        )
        super().__init__(handle[0])
        self._config = config
        self._gradient_norm: float | None = math.nan  # None: still to be asked for

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"{self.device}, {self.precision}"
        return f"GPT({self._config}, {state})"

    @property
    def config(self) -> ModelConfig:
        """The model's sizes and dialect."""
        return self._config

    @property
    def step_count(self) -> int:
        """Optimizer steps done; AdamW's bias correction depends on it."""
        count = ffi.new("int64_t *")
        check(lib.mg_model_step_count(self._model, count))
        return int(count[0])

    @step_count.setter
    def step_count(self, count: int) -> None:
        check(lib.mg_model_set_step_count(self._model, integer("step_count", count, 0, 2**63 - 1)))

    # ---- training

    def _tokens(self, name: str, values: Any) -> _Tokens:
        on_device = device_array(name, values, ndim=2)
        if on_device is None:
            array = token_array(name, values, ndim=2)
            return _Tokens(int32_pointer(array), array.shape, False, array)
        if self.device == "cpu":
            raise DeviceError(
                f"{name} is on a GPU but the model is on the CPU: copy it first, "
                "as with .get() of CuPy or .cpu() of PyTorch"
            )
        if on_device.stream is not None:
            check(lib.mg_model_wait(self._model, on_device.stream))
        pointer = int32_pointer(on_device.address)
        return _Tokens(pointer, on_device.shape, True, on_device.owner)

    def _batch(self, inputs: Any, targets: Any) -> tuple[_Tokens, _Tokens]:
        tokens, wanted = self._tokens("inputs", inputs), self._tokens("targets", targets)
        if tokens.shape != wanted.shape:
            raise ArgumentError(
                f"inputs and targets must have one shape, got {tokens.shape} and {wanted.shape}"
            )
        if tokens.on_device != wanted.on_device:
            raise ArgumentError("inputs and targets must both be on the host or both on the GPU")
        self._keep_activations(math.prod(tokens.shape))
        return tokens, wanted

    def _finish(self, wait: bool, *used: _Tokens) -> float | None:
        """The loss where it is wanted now; else what the queued work reads is kept."""
        if wait:
            return self.loss()
        self._in_use += [tokens.owner for tokens in used if tokens.on_device]
        return None

    @overload
    def forward(self, inputs: Any, targets: Any, *, wait: Literal[True] = ...) -> float: ...

    @overload
    def forward(self, inputs: Any, targets: Any, *, wait: bool) -> float | None: ...

    def forward(self, inputs: Any, targets: Any, *, wait: bool = True) -> float | None:
        """The mean loss of a batch, in nats; activations are kept for `backward`.

        Args:
            inputs: (B, T) token ids.
            targets: (B, T) token ids; -1 leaves a position out.
            wait: False returns None when the work is queued, and `loss` waits for it. Until then,
                arrays on a GPU must not be written to.

        Raises:
            ArgumentError: shapes differ, T exceeds block_size, an id is outside the vocabulary, or
                every target is -1.
            DTypeError: the arrays don't hold integers.
            DeviceError: the arrays are on a GPU and the model is not.
            StateError: the model is closed.
        """
        tokens, wanted = self._batch(inputs, targets)
        check(
            lib.mg_forward(self._model, tokens.pointer, wanted.pointer, *tokens.shape, ffi.NULL),
        )
        return self._finish(wait, tokens, wanted)

    def backward(self, loss_scale: float = 1.0) -> None:
        """Add loss_scale times the gradient of the last `forward`'s loss to the gradients.

        With accumulation over n batches, loss_scale 1/n makes it the gradient of their mean.

        Raises:
            StateError: no `forward` came before, or its backward is done already.
        """
        check(lib.mg_backward(self._model, number("loss_scale", loss_scale)))

    @overload
    def forward_backward(
        self, inputs: Any, targets: Any, loss_scale: float = ..., *, wait: Literal[True] = ...
    ) -> float: ...

    @overload
    def forward_backward(
        self, inputs: Any, targets: Any, loss_scale: float = ..., *, wait: bool
    ) -> float | None: ...

    def forward_backward(
        self, inputs: Any, targets: Any, loss_scale: float = 1.0, *, wait: bool = True
    ) -> float | None:
        """`forward` and `backward` in one, with the same bits and less work; returns the loss."""
        tokens, wanted = self._batch(inputs, targets)
        scale = number("loss_scale", loss_scale)
        check(
            lib.mg_forward_backward(
                self._model, tokens.pointer, wanted.pointer, *tokens.shape, scale, ffi.NULL
            )
        )
        return self._finish(wait, tokens, wanted)

    def loss(self) -> float:
        """The loss of the last batch; waits until it is known.

        Raises:
            ArgumentError: the batch was on a GPU and had ids outside the vocabulary, or no target;
                no update comes from it.
        """
        return self._told_by(lib.mg_loss)

    def update_loss(self) -> float:
        """The loss of the last `step`: the sum of its batches', each times its loss_scale; waits
        until it is known."""
        return self._told_by(lib.mg_update_loss)

    def _told_by(self, function: Any) -> float:
        """A number that the engine tells once all work before it is done."""
        value = ffi.new("float *")
        check(function(self._model, value))
        self._in_use.clear()
        return float(value[0])

    def zero_gradients(self) -> None:
        """Forget the gradients that were added up since the last `step`."""
        check(lib.mg_zero_gradients(self._model))

    @overload
    def step(
        self,
        learning_rate: float,
        *,
        beta1: float = ...,
        beta2: float = ...,
        eps: float = ...,
        weight_decay: float = ...,
        max_norm: float = ...,
        skip_loss_above: float = ...,
        skip_norm_above: float = ...,
        wait: Literal[True] = ...,
    ) -> float: ...

    @overload
    def step(
        self,
        learning_rate: float,
        *,
        beta1: float = ...,
        beta2: float = ...,
        eps: float = ...,
        weight_decay: float = ...,
        max_norm: float = ...,
        skip_loss_above: float = ...,
        skip_norm_above: float = ...,
        wait: bool,
    ) -> float | None: ...

    def step(
        self,
        learning_rate: float,
        *,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        max_norm: float = 1.0,
        skip_loss_above: float = math.inf,
        skip_norm_above: float = math.inf,
        wait: bool = True,
    ) -> float | None:
        """One AdamW update from the gradients, which end as 0 (Loshchilov & Hutter 2019).

        Matrices decay, biases and norms don't. Gradients are scaled down to a global norm of
        max_norm (0: never). Where `update_loss` is above skip_loss_above, or the norm before
        clipping above skip_norm_above, nothing is updated and step_count stays; the device
        compares, as float32. wait=False returns None when the work is queued;
        `last_gradient_norm` waits for it.

        Returns:
            The gradient norm before clipping. Where it is not finite, nothing was updated and
            step_count stayed; it is NaN, too, where the loss of a batch was not finite.

        Raises:
            ArgumentError: an option is out of its range.
        """
        options = ffi.new("mg_step_options *")
        options.struct_size = ffi.sizeof("mg_step_options")
        options.learning_rate = number("learning_rate", learning_rate)
        options.beta1 = number("beta1", beta1)
        options.beta2 = number("beta2", beta2)
        options.epsilon = number("eps", eps)
        options.weight_decay = number("weight_decay", weight_decay)
        options.max_norm = number("max_norm", max_norm)
        options.skip_loss_above = limit("skip_loss_above", skip_loss_above)
        options.skip_norm_above = limit("skip_norm_above", skip_norm_above)
        self._wait_for_cupy()
        check(lib.mg_step(self._model, options, ffi.NULL))
        self._gradient_norm = None
        return self.last_gradient_norm if wait else None

    @property
    def last_gradient_norm(self) -> float:
        """The gradient norm of the last `step`, NaN before the first; waits until it is known."""
        if self._gradient_norm is None:
            self._gradient_norm = self._told_by(lib.mg_gradient_norm)
        return self._gradient_norm

    def train_step(
        self, inputs: Any, targets: Any, learning_rate: float, **options: float
    ) -> float:
        """Forward, backward, clipping, AdamW, zeroed gradients; returns the loss before the update.

        `options` are those of `step`; its gradient norm is kept in `last_gradient_norm`.
        """
        self.forward_backward(inputs, targets, wait=False)
        self.step(learning_rate, **options, wait=False)
        return self.loss()

    def logits(self, tokens: Any) -> Any:
        """(B, T, V) float32 logits of (B, T) token ids, all at once: for small inputs.

        A NumPy array; of tokens on a GPU, and with CuPy installed, a CuPy array there.

        Raises:
            ArgumentError: T exceeds block_size, or an id is outside the vocabulary.
        """
        found = self._tokens("tokens", tokens)
        self._keep_activations(math.prod(found.shape))
        shape = (*found.shape, self._config.vocab_size)
        on_device = (
            found.on_device
            and not has_simulated_gpu()
            and importlib.util.find_spec("cupy") is not None
        )
        if on_device:
            out = import_cupy("logits on the GPU").empty(shape, dtype=np.float32)
            pointer = float32_pointer(int(out.data.ptr))
            self._wait_for_cupy()  # the array's memory may be one that CuPy's work still reads
        else:
            out = np.empty(shape, dtype=np.float32)
            pointer = float32_pointer(out)
        check(lib.mg_logits(self._model, found.pointer, *found.shape, pointer))
        if found.on_device:
            self.synchronize()
        return out

    # ---- sampling

    def decoder(self, batch_size: int = 1) -> Decoder:
        """Sequences that grow token by token with cached keys and values.

        Raises:
            OutOfMemoryError: the cache doesn't fit in memory.
        """
        return Decoder(self._model, self._config.vocab_size, batch_size)

    def generate(
        self,
        prompt_tokens: Any,
        *,
        max_tokens: int,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        stop: Sequence[Any] = (),
    ) -> Iterator[int]:
        """Yield up to max_tokens new token ids after the prompt; see `andrea.sampling.generate`."""
        from .sampling import generate

        return generate(
            self,
            prompt_tokens,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
        )
