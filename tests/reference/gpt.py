"""The whole GPT in NumPy: loss, logits and every gradient, by GPT-2's parameter names.

For tests of the engine's model; proved by complex-step derivatives in test_reference_gpt.py.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from . import ops
from .ops import Array

Parameters = dict[str, Array]


class Config(Protocol):
    """The shape of a model; andrea.ModelConfig is one."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_head(self) -> int: ...
    @property
    def n_embd(self) -> int: ...


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in the order of the engine's tensor table."""
    width = config.n_embd
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config.vocab_size, width),
        "wpe.weight": (config.block_size, width),
    }
    for layer in range(config.n_layer):
        h = f"h.{layer}"
        shapes[f"{h}.ln_1.weight"] = (width,)
        shapes[f"{h}.ln_1.bias"] = (width,)
        shapes[f"{h}.attn.c_attn.weight"] = (3 * width, width)
        shapes[f"{h}.attn.c_attn.bias"] = (3 * width,)
        shapes[f"{h}.attn.c_proj.weight"] = (width, width)
        shapes[f"{h}.attn.c_proj.bias"] = (width,)
        shapes[f"{h}.ln_2.weight"] = (width,)
        shapes[f"{h}.ln_2.bias"] = (width,)
        shapes[f"{h}.mlp.c_fc.weight"] = (4 * width, width)
        shapes[f"{h}.mlp.c_fc.bias"] = (4 * width,)
        shapes[f"{h}.mlp.c_proj.weight"] = (width, 4 * width)
        shapes[f"{h}.mlp.c_proj.bias"] = (width,)
    shapes["ln_f.weight"] = (width,)
    shapes["ln_f.bias"] = (width,)
    return shapes


def init_parameters(config: Config, rng: np.random.Generator, spread: float = 0.02) -> Parameters:
    """Random parameters in float64: matrices N(0, spread), biases too, norm gains around 1.

    GPT-2 starts biases at 0 and gains at 1; here they are random, so that a test sees an engine
    that forgets one.
    """
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        values = spread * rng.standard_normal(shape)
        if name.endswith(".c_proj.weight"):
            values /= np.sqrt(2 * config.n_layer)
        if ".ln_" in f".{name}" and name.endswith(".weight"):
            values += 1.0
        parameters[name] = values
    return parameters


def loss(parameters: Parameters, config: Config, tokens: Array, targets: Array) -> Array:
    """Mean loss in nats of tokens and targets (B, T), -1 ignored; complex where parameters are."""
    return np.asarray(ops.cross_entropy_forward(logits(parameters, config, tokens), targets))


def logits(parameters: Parameters, config: Config, tokens: Array) -> Array:
    """Logits (B, T, V) of tokens (B, T); complex where parameters are."""
    return _forward(parameters, config, tokens)[0]


def loss_and_gradients(
    parameters: Parameters, config: Config, tokens: Array, targets: Array
) -> tuple[float, Array, Parameters]:
    """Loss, logits (B, T, V) and the loss's gradient by every parameter, keyed as those."""
    all_logits, saved = _forward(parameters, config, tokens)
    mean_loss = float(ops.cross_entropy_forward(all_logits, targets))
    dlogits = ops.cross_entropy_backward(1.0, all_logits, targets)
    return mean_loss, all_logits, _backward(parameters, config, tokens, dlogits, saved)


def generate(
    parameters: Parameters, config: Config, prompt: list[int], max_tokens: int
) -> list[int]:
    """The most likely tokens after the prompt, each from a whole forward pass."""
    context = _context(config, [], prompt)
    generated: list[int] = []
    for _ in range(max_tokens):
        last = logits(parameters, config, np.array([context]))[0, -1]
        generated.append(int(last.argmax()))
        context = _context(config, context, generated[-1:])
    return generated


def contexts(config: Config, prompt: list[int], tokens: list[int]) -> list[list[int]]:
    """What each of the tokens after the prompt is chosen from: the tokens that are seen then."""
    found = [_context(config, [], prompt)]
    for token in tokens[:-1]:
        found.append(_context(config, found[-1], [token]))
    return found


def _context(config: Config, before: list[int], fed: list[int]) -> list[int]:
    """A context that would pass block_size keeps its last block_size // 2 tokens, at least one, as
    the engine's decoder does."""
    context = before + fed
    if len(context) > config.block_size:
        context = context[-max(1, config.block_size // 2) :]
    return context


def _forward(
    parameters: Parameters, config: Config, tokens: Array
) -> tuple[Array, dict[str, Array]]:
    """Logits, and each op's input by the name of the layer it enters."""
    p = parameters
    saved: dict[str, Array] = {}

    def norm(name: str, x: Array) -> Array:
        saved[name] = x
        return ops.layer_norm_forward(x, p[f"{name}.weight"], p[f"{name}.bias"])[0]

    def linear(name: str, x: Array) -> Array:
        saved[name] = x
        return ops.linear_forward(x, p[f"{name}.weight"], p[f"{name}.bias"])

    x = ops.embedding_forward(tokens, p["wte.weight"], p["wpe.weight"])
    for layer in range(config.n_layer):
        h = f"h.{layer}"
        saved[f"{h}.qkv"] = linear(f"{h}.attn.c_attn", norm(f"{h}.ln_1", x))
        mixed, _ = ops.attention_forward(saved[f"{h}.qkv"], config.n_head)
        x = ops.residual_forward(x, linear(f"{h}.attn.c_proj", mixed))
        saved[f"{h}.hidden"] = linear(f"{h}.mlp.c_fc", norm(f"{h}.ln_2", x))
        activated = ops.gelu_forward(saved[f"{h}.hidden"])
        x = ops.residual_forward(x, linear(f"{h}.mlp.c_proj", activated))
    saved["head"] = norm("ln_f", x)
    return ops.head_forward(saved["head"], p["wte.weight"]), saved


def _backward(
    parameters: Parameters,
    config: Config,
    tokens: Array,
    dlogits: Array,
    saved: dict[str, Array],
) -> Parameters:
    """Mirror of _forward; gradients in the order of the tensor table."""
    p = parameters
    found: Parameters = {}

    def norm(name: str, dout: Array) -> Array:
        gamma, x = p[f"{name}.weight"], saved[name]
        _, mean, rstd = ops.layer_norm_forward(x, gamma, p[f"{name}.bias"])
        dx, found[f"{name}.weight"], found[f"{name}.bias"] = ops.layer_norm_backward(
            dout, x, mean, rstd, gamma
        )
        return dx

    def linear(name: str, dout: Array) -> Array:
        dx, found[f"{name}.weight"], found[f"{name}.bias"] = ops.linear_backward(
            dout, saved[name], p[f"{name}.weight"]
        )
        return dx

    dhead, dwte_head = ops.head_backward(dlogits, saved["head"], p["wte.weight"])
    dx = norm("ln_f", dhead)
    for layer in reversed(range(config.n_layer)):
        h = f"h.{layer}"
        dx, ddelta = ops.residual_backward(dx)
        dhidden = ops.gelu_backward(linear(f"{h}.mlp.c_proj", ddelta), saved[f"{h}.hidden"])
        dx = dx + norm(f"{h}.ln_2", linear(f"{h}.mlp.c_fc", dhidden))
        dx, ddelta = ops.residual_backward(dx)
        dmixed = linear(f"{h}.attn.c_proj", ddelta)
        dqkv = ops.attention_backward(dmixed, saved[f"{h}.qkv"], config.n_head)
        dx = dx + norm(f"{h}.ln_1", linear(f"{h}.attn.c_attn", dqkv))
    dwte, found["wpe.weight"] = ops.embedding_backward(dx, tokens, p["wte.weight"], p["wpe.weight"])
    found["wte.weight"] = dwte + dwte_head
    return {name: found[name] for name in parameter_shapes(config)}
