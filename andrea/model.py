"""GPT: the native model as a Python object, with zero-copy views of its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._library import check, ffi, lib
from .arguments import choice, integer, number
from .arrays import float32_pointer, int32_pointer, token_array, view
from .config import ModelConfig
from .decoder import Decoder
from .errors import ArgumentError, DTypeError, StateError


def _native_config(config: ModelConfig) -> Any:
    native = ffi.new("mg_config *")
    native.struct_size = ffi.sizeof("mg_config")
    for name, value in config.to_dict().items():
        setattr(native, name, value)
    return native


def engine_memory(
    config: ModelConfig,
    batch_size: int,
    block_size: int | None = None,
    *,
    training: bool = True,
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, int]:
    """Bytes that a model takes with batches of (batch_size, block_size), by kind, before it exists.

    Kinds: parameters, gradients, moments, activations (kept from forward to backward), workspace
    (whatever else lives during a step), and their total.

    Raises:
        ArgumentError: a size is out of range.
        DeviceError: the device or precision is not available.
    """
    plan = ffi.new("mg_memory_plan *")
    B = integer("batch_size", batch_size, 1, 2**31 - 1)
    T = integer("block_size", config.block_size if block_size is None else block_size, 1, 2**31 - 1)
    native = _native_config(config)
    check(
        lib.mg_plan_memory(
            native,
            choice("device", device),
            choice("precision", precision),
            B,
            T,
            bool(training),
            plan,
        )
    )
    names = ("parameters", "gradients", "moments", "activations", "workspace", "total")
    return {name: int(getattr(plan, name)) for name in names}


class GPT:
    """A GPT-2 style language model on one device: forward, backward and AdamW in native code.

    Shapes: B sequences of T tokens, T at most block_size; V is vocab_size. Token ids are int32
    arrays (other integers are converted). Losses are means in nats over the targets that are
    not -1. One thread at a time may use a model.

    Args:
        config: the model's sizes.
        device: "cpu", or "auto" for the best this build has.
        precision: "fp32"; "bf16", which multiplies and keeps activations in bfloat16, and sums in
            float32 (parameters, gradients and moments are float32 arrays in either); or "auto":
            bf16 where the CPU multiplies it natively, else fp32.
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
        self._config = config
        handle = ffi.new("mg_model **")
        check(
            lib.mg_model_create(
                _native_config(config),
                choice("device", device),
                choice("precision", precision),
                integer("seed", seed, 0, 2**64 - 1),
                handle,
            )
        )
        # Views and decoders hold this object: the engine's memory goes when the last of them does.
        self._handle: Any = ffi.gc(handle[0], lib.mg_model_free)
        self.last_gradient_norm = math.nan

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else f"{self.device}, {self.precision}"
        return f"GPT({self._config}, {state})"

    @property
    def _model(self) -> Any:
        if self._handle is None:
            raise StateError("this model is closed")
        return self._handle

    @property
    def config(self) -> ModelConfig:
        """The model's sizes."""
        return self._config

    @property
    def device(self) -> str:
        """The device the model lives on: "cpu"."""
        return str(ffi.string(lib.mg_model_device(self._model)).decode())

    @property
    def precision(self) -> str:
        """The precision of compute and saved activations: "fp32" or "bf16"."""
        return str(ffi.string(lib.mg_model_precision(self._model)).decode())

    @property
    def num_parameters(self) -> int:
        """The number of trained numbers, tied ones counted once."""
        return int(lib.mg_model_parameter_count(self._model))

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

    def _batch(self, inputs: Any, targets: Any) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        tokens = token_array("inputs", inputs, ndim=2)
        wanted = token_array("targets", targets, ndim=2)
        if tokens.shape != wanted.shape:
            raise ArgumentError(
                f"inputs and targets must have one shape, got {tokens.shape} and {wanted.shape}"
            )
        return tokens, wanted

    def forward(self, inputs: Any, targets: Any) -> float:
        """The mean loss of a batch, in nats; activations are kept for `backward`.

        Args:
            inputs: (B, T) token ids.
            targets: (B, T) token ids; -1 leaves a position out.

        Raises:
            ArgumentError: shapes differ, T exceeds block_size, an id is outside the vocabulary, or
                every target is -1.
            DTypeError: the arrays don't hold integers.
            StateError: the model is closed.
        """
        tokens, wanted = self._batch(inputs, targets)
        loss = ffi.new("float *")
        check(
            lib.mg_forward(
                self._model, int32_pointer(tokens), int32_pointer(wanted), *tokens.shape, loss
            )
        )
        return float(loss[0])

    def backward(self, loss_scale: float = 1.0) -> None:
        """Add loss_scale times the gradient of the last `forward`'s loss to the gradients.

        With accumulation over n batches, loss_scale 1/n makes it the gradient of their mean.

        Raises:
            StateError: no `forward` came before, or its backward is done already.
        """
        check(lib.mg_backward(self._model, number("loss_scale", loss_scale)))

    def forward_backward(self, inputs: Any, targets: Any, loss_scale: float = 1.0) -> float:
        """`forward` and `backward` in one, with the same bits and less work; returns the loss."""
        tokens, wanted = self._batch(inputs, targets)
        scale = number("loss_scale", loss_scale)
        loss = ffi.new("float *")
        check(
            lib.mg_forward_backward(
                self._model,
                int32_pointer(tokens),
                int32_pointer(wanted),
                *tokens.shape,
                scale,
                loss,
            )
        )
        return float(loss[0])

    def step(
        self,
        learning_rate: float,
        *,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        max_norm: float = 1.0,
    ) -> float:
        """One AdamW update from the gradients, which end as 0 (Loshchilov & Hutter 2019).

        Matrices decay, biases and norms don't. Gradients are scaled down to a global norm of
        max_norm (0: never).

        Returns:
            The gradient norm before clipping. Where it is not finite, nothing was updated and
            step_count stayed.

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
        norm = ffi.new("float *")
        check(lib.mg_step(self._model, options, norm))
        self.last_gradient_norm = float(norm[0])
        return self.last_gradient_norm

    def train_step(
        self, inputs: Any, targets: Any, learning_rate: float, **options: float
    ) -> float:
        """Forward, backward, clipping, AdamW, zeroed gradients; returns the loss before the update.

        `options` are those of `step`; its gradient norm is kept in `last_gradient_norm`.
        """
        loss = self.forward_backward(inputs, targets)
        self.step(learning_rate, **options)
        return loss

    def logits(self, tokens: Any) -> NDArray[np.float32]:
        """(B, T, V) float32 logits of (B, T) token ids, all at once: for small inputs.

        Raises:
            ArgumentError: T exceeds block_size, or an id is outside the vocabulary.
        """
        array = token_array("tokens", tokens, ndim=2)
        out = np.empty((*array.shape, self._config.vocab_size), dtype=np.float32)
        check(lib.mg_logits(self._model, int32_pointer(array), *array.shape, float32_pointer(out)))
        return out

    # ---- memory

    def _views(self, kind: int) -> dict[str, NDArray[np.float32]]:
        memory = ffi.new("float **")
        check(lib.mg_model_memory(self._model, kind, memory))
        views = {}
        tensor = ffi.new("mg_tensor *")
        for index in range(lib.mg_model_tensor_count(self._model)):
            check(lib.mg_model_tensor(self._model, index, tensor))
            shape = tuple(int(size) for size in tensor.shape[0 : tensor.n_dims])
            name = ffi.string(tensor.name).decode()
            views[name] = view(self._handle, memory[0] + tensor.offset, shape)
        return views

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Zero-copy float32 views of all parameters by GPT-2 name, in table order.

        Views stay valid after `close` and keep the memory alive. After writing to them, call
        `refresh`.
        """
        return self._views(lib.MG_PARAMETERS)

    def gradients(self) -> dict[str, NDArray[np.float32]]:
        """Zero-copy views of the gradients, like `parameters`."""
        return self._views(lib.MG_GRADIENTS)

    def first_moments(self) -> dict[str, NDArray[np.float32]]:
        """Zero-copy views of AdamW's running means of gradients, like `parameters`."""
        return self._views(lib.MG_MOMENT_1)

    def second_moments(self) -> dict[str, NDArray[np.float32]]:
        """Zero-copy views of AdamW's running means of squared gradients, like `parameters`."""
        return self._views(lib.MG_MOMENT_2)

    def refresh(self) -> None:
        """Renew what the backend derives from the weights, after writing to `parameters` views."""
        check(lib.mg_model_refresh(self._model))

    def reset(self, seed: int) -> None:
        """Start again: parameters from the seed; gradients, moments and step_count 0."""
        check(lib.mg_model_reset(self._model, integer("seed", seed, 0, 2**64 - 1)))

    def close(self) -> None:
        """Let go of the engine's memory, which is freed once no view or decoder uses it."""
        self._handle = None

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
