"""Every op of a training step at a shape: how to call it, and its least work in FLOPs and bytes.

FLOPs are those of matrix products and attention, causal halves only; bytes are every operand once,
float32 where the engine keeps float32 and E bytes an element elsewhere; W bytes a number of a
weight: a GPU multiplies a copy in its precision. N = B T rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from engine_ops import EngineOps
from shapes import Shape

import andrea
from andrea._library import ffi


@dataclass(frozen=True)
class OpCase:
    """One op; `calls` of it make its part of a training step (0: it belongs to decoding).

    prepare() takes memory from the device and returns the call that is timed.
    """

    name: str
    calls: int
    flops: float
    bytes: float
    prepare: Callable[[EngineOps], Callable[[], None]]


def _call(
    op: str, *arguments: Callable[[EngineOps], Any] | int | float
) -> Callable[[EngineOps], Callable[[], None]]:
    """Operands are made on the device, sizes are passed on."""

    def prepare(device: EngineOps) -> Callable[[], None]:
        made = [argument(device) if callable(argument) else argument for argument in arguments]
        return lambda: device.call(op, *made)

    return prepare


def _floats(count: int) -> Callable[[EngineOps], Any]:
    return lambda device: device.floats(count)


def _elements(count: int) -> Callable[[EngineOps], Any]:
    return lambda device: device.elements(count)


def _tokens(count: int, below: int) -> Callable[[EngineOps], Any]:
    values = np.random.default_rng(1).integers(0, below, count, dtype=np.int32)
    return lambda device: device.integers(values)


def _null(_device: EngineOps) -> Any:
    return ffi.NULL


def _steady(count: int) -> Callable[[EngineOps], Any]:
    return lambda device: device.steady_elements(count)


def _opaque(size: int) -> Callable[[EngineOps], Any]:
    return lambda device: device.opaque(size)


def op_cases(shape: Shape, element_bytes: int, weight_bytes: int = 4) -> list[OpCase]:
    """The ops of a step in the order of forward, backward and update; then those of decoding."""
    return [
        *_embedding(shape),
        *_norms(shape, element_bytes),
        *_linear(shape, element_bytes, weight_bytes),
        *_attention(shape, element_bytes),
        *_head(shape, element_bytes, weight_bytes),
        *_update(shape),
        *_decoding(shape, element_bytes),
    ]


def _embedding(shape: Shape) -> Iterator[OpCase]:
    N, T, C, V = shape.tokens, shape.block_size, shape.n_embd, shape.vocab_size
    rows = min(N, V)  # of wte that are touched, at most
    stream, tokens = _floats(N * C), _tokens(N, V)
    yield OpCase(
        "embedding forward",
        1,
        0,
        4 * C * (rows + T + N) + 4 * N,
        _call("embedding_forward", stream, tokens, _null, _floats(V * C), _floats(T * C), N, T, C),
    )
    yield OpCase(
        "embedding backward",
        1,
        0,
        4 * C * (2 * rows + 2 * T + N) + 4 * N,
        _call("embedding_backward", _floats(V * C), _floats(T * C), stream, tokens, N, T, C),
    )


def _norms(shape: Shape, E: int) -> Iterator[OpCase]:
    """Those of the blocks and the last one; then the one after the embeddings."""
    N, C, L, parts = shape.tokens, shape.n_embd, shape.n_layer, shape.parts
    is_last = int(parts.final_norm)
    centres, scales = parts.norm == "layernorm", parts.norm_affine
    vectors, saved = scales * (1 + centres), 1 + centres
    stream, rstd = _floats(N * C), _floats(N)
    mean = rstd if centres else _null
    gain, shift = _floats(C) if scales else _null, _floats(C) if scales and centres else _null

    def backward(device: EngineOps, is_last: bool) -> Callable[[], None]:
        """The gradient of the stream as Elements, too; and of all but the last norm its output."""
        dx = device.floats(N * C)
        elements = dx if E == 4 else device.elements(N * C)
        out = ffi.NULL if is_last else device.elements(N * C)
        made = [gain(device), shift(device), device.elements(N * C), stream(device)]
        made += [mean(device), rstd(device), gain(device), shift(device)]
        return lambda: device.call("norm_backward", dx, elements, out, *made, N, C)

    moved = N * C * (12 + E + (E if E < 4 else 0)) + 4 * saved * N + 12 * vectors * C
    yield OpCase(
        "norm forward",
        2 * L + is_last,
        0,
        N * C * (4 + E) + 4 * saved * N + 4 * vectors * C,
        _call("norm_forward", _elements(N * C), mean, rstd, stream, gain, shift, N, C),
    )
    more = E * N * C
    yield OpCase("norm backward", 2 * L, 0, moved + more, partial(backward, is_last=False))
    if is_last:
        yield OpCase("last norm backward", 1, 0, moved, partial(backward, is_last=True))
    if parts.embedding_norm:
        both = (stream, mean, rstd, stream, gain, shift, N, C)
        small = 4 * saved * N + 4 * vectors * C
        forward = _call("stream_norm_forward", *both)
        yield OpCase("embedding norm forward", 1, 0, 8 * N * C + small, forward)
        back = _call(
            "stream_norm_backward", stream, _null, gain, shift, stream, mean, rstd, gain, N, C
        )
        yield OpCase("embedding norm backward", 1, 0, 12 * N * C + 3 * small, back)


def _linear(shape: Shape, E: int, W: int) -> Iterator[OpCase]:
    N, C, L, parts = shape.tokens, shape.n_embd, shape.n_layer, shape.parts
    H, M, fuses = shape.hidden_dim, shape.mlp_dim, parts.activation == "gelu"
    layers = {"c_attn": (3 * C, C), "attn proj": (C, C), "c_fc": (H, C), "mlp proj": (C, M)}
    for name, (rows, columns) in layers.items():
        flops, weight = 2 * N * rows * columns, W * rows * columns
        has_bias = parts.attn_bias if "att" in name else parts.mlp_bias
        x, y = _elements(N * columns), _elements(N * rows)
        w, sizes = _floats(rows * columns), (N, rows, columns)
        bias = _floats(rows) if has_bias else _null
        read = weight + W * rows * has_bias + E * N * columns
        if name == "c_fc" and fuses:
            forward = _call("linear_gelu_forward", y, y, x, w, bias, *sizes)
            yield OpCase(f"{name} forward, GELU", L, flops, read + 2 * E * N * rows, forward)
        elif name in ("c_attn", "c_fc"):
            forward = _call("linear_forward", y, x, w, bias, *sizes)
            yield OpCase(f"{name} forward", L, flops, read + E * N * rows, forward)
        else:
            stream = _floats(N * rows)
            forward = _call("linear_residual_forward", stream, stream, x, w, bias, *sizes)
            yield OpCase(f"{name} forward, residual", L, flops, read + 8 * N * rows, forward)
        if name == "mlp proj" and fuses:
            # Its input's gradient, and GELU's output again where its input was.
            backward = _call("linear_gelu_backward_input", x, _steady(N * columns), y, w, *sizes)
            moved = weight + E * N * (rows + 3 * columns)
            yield OpCase(f"{name} input gradient, GELU", L, flops, moved, backward)
        else:
            backward = _call("linear_backward_input", x, y, w, *sizes)
            moved = weight + E * N * (rows + columns)
            yield OpCase(f"{name} input gradient", L, flops, moved, backward)
        gradient = _call("linear_backward_weight", w, bias, y, x, *sizes)
        moved = 8 * rows * columns + 8 * rows * has_bias + E * N * (rows + columns)
        yield OpCase(f"{name} weight gradient", L, flops, moved, gradient)
    if not fuses:
        yield from _activation(shape, E)


def _activation(shape: Shape, E: int) -> Iterator[OpCase]:
    """One that no product is fused with: what it reads, writes, and backward writes again."""
    N, H, M, L = shape.tokens, shape.hidden_dim, shape.mlp_dim, shape.n_layer
    name = shape.parts.activation
    number = andrea.config.CHOICES["activation"].index(name)
    forward = _call("activation_forward", number, _elements(N * M), _elements(N * H), N, M)
    yield OpCase(f"{name} forward", L, 0, E * N * (H + M), forward)
    # Zeros, which stay: both operands are replaced, and others would vanish or overflow.
    zeros = (_opaque(E * N * H), _opaque(E * N * M))
    backward = _call("activation_backward", number, *zeros, N, M)
    yield OpCase(f"{name} backward", L, 0, 2 * E * N * (H + M), backward)


def _attention(shape: Shape, E: int) -> Iterator[OpCase]:
    B, T, C, NH, L = (
        shape.batch_size,
        shape.block_size,
        shape.n_embd,
        shape.n_head,
        shape.n_layer,
    )
    N = B * T
    qkv, out = _elements(3 * N * C), _elements(N * C)
    forward_flops = 2 * N * T * C  # q k and the values' sum, 4 T C a token, halved

    def saved(device: EngineOps) -> Any:
        return device.opaque(device.size("attention_saved_bytes", B, T, NH))

    def backward(device: EngineOps) -> Callable[[], None]:
        """On the statistics that a forward saved."""
        qkv_memory, out_memory, saved_memory = qkv(device), out(device), saved(device)
        device.call("attention_forward", out_memory, saved_memory, qkv_memory, B, T, C, NH)
        operands = (qkv(device), out(device), qkv_memory, out_memory, saved_memory)
        return lambda: device.call("attention_backward", *operands, B, T, C, NH)

    yield OpCase(
        "attention forward",
        L,
        forward_flops,
        E * 4 * N * C,
        _call("attention_forward", out, saved, qkv, B, T, C, NH),
    )
    yield OpCase("attention backward", L, 2 * forward_flops, E * 8 * N * C, backward)


def _head(shape: Shape, E: int, W: int) -> Iterator[OpCase]:
    N, C, V = shape.tokens, shape.n_embd, shape.vocab_size
    x, wte, losses, targets = _elements(N * C), _floats(V * C), _floats(N), _tokens(N, V)
    yield OpCase(
        "head and loss, both ways",
        1,
        6 * N * V * C,
        2 * E * N * C + (8 + W) * V * C + 8 * N,
        _call(
            "head_loss_backward",
            *(losses, x, _floats(V * C), x, wte, targets),
            *(1.0 / N, N, C, V),
        ),
    )


def _update(shape: Shape) -> Iterator[OpCase]:
    P = shape.parameters
    yield OpCase("gradient norm", 1, 0, 4 * P, _call("global_norm", _floats(1), _floats(P), P))

    def adamw(device: EngineOps) -> Callable[[], None]:
        options = ffi.new("mg_step_options *")
        options.struct_size = ffi.sizeof("mg_step_options")
        options.learning_rate, options.beta1, options.beta2 = 3e-4, 0.9, 0.95
        options.epsilon, options.weight_decay, options.max_norm = 1e-8, 0.1, 1.0
        parameters, gradients, m = device.floats(P), device.floats(P), device.floats(P)
        v, norm = device.opaque(4 * P), device.floats(1)
        operands = (parameters, gradients, m, ffi.cast("float *", v), norm, P, 1, 1000, options)
        return lambda: device.call("adamw", *operands)

    # Parameters, gradients and both moments are read and written: gradients end as 0.
    yield OpCase("AdamW", 1, 0, 32 * P, adamw)


def _decoding(shape: Shape, E: int) -> Iterator[OpCase]:
    T, C, NH = shape.block_size, shape.n_embd, shape.n_head

    def cached(device: EngineOps) -> Callable[[], None]:
        """One new token at the last position."""
        cache = device.opaque(device.size("cache_bytes", 1, T, C))
        out, qkv = device.elements(C), device.elements(3 * C)
        sequence = device.integers(np.array([0], np.int32))
        position = device.integers(np.array([T - 1], np.int32))
        operands = (out, cache, qkv, sequence, position, 1, T, C, NH)
        return lambda: device.call("cached_attention_forward", *operands)

    yield OpCase("cached attention, last position", 0, 4 * T * C, 2 * E * T * C, cached)
