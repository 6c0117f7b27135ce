"""The whole GPT in NumPy: loss, logits and every gradient, by GPT-2's parameter names.

For tests of the engine's model; proved by complex-step derivatives in test_reference_gpt.py. All
dialects are here: what a configuration switches is read from it by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from . import activations, ops
from .ops import Array

Parameters = dict[str, Array]


class Config(Protocol):
    """The shape of a model and its dialect; andrea.ModelConfig is one, and says what each means."""

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
    @property
    def mlp_dim(self) -> int: ...
    @property
    def norm(self) -> str: ...
    @property
    def norm_affine(self) -> bool: ...
    @property
    def norm_position(self) -> str: ...
    @property
    def residual(self) -> bool: ...
    @property
    def activation(self) -> str: ...
    @property
    def attn_bias(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def tie_embeddings(self) -> bool: ...
    @property
    def final_norm(self) -> bool: ...
    @property
    def embedding_norm(self) -> bool: ...


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in the order of the engine's tensor table."""
    width = config.n_embd
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str) -> None:
        if config.norm_affine:
            shapes[f"{name}.weight"] = (width,)
        if config.norm_affine and config.norm == "layernorm":
            shapes[f"{name}.bias"] = (width,)

    def linear(name: str, outputs: int, inputs: int, has_bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            shapes[f"{name}.bias"] = (outputs,)

    linear("wte", config.vocab_size, width, False)
    linear("wpe", config.block_size, width, False)
    if not config.tie_embeddings:
        linear("lm_head", config.vocab_size, width, False)
    if config.embedding_norm:
        norm("ln_emb")
    hidden = 2 * config.mlp_dim if config.activation == "swiglu" else config.mlp_dim
    for h in _blocks(config):
        if config.norm_position != "none":
            norm(f"{h}.ln_1")
        linear(f"{h}.attn.c_attn", 3 * width, width, config.attn_bias)
        linear(f"{h}.attn.c_proj", width, width, config.attn_bias)
        if config.norm_position != "none":
            norm(f"{h}.ln_2")
        linear(f"{h}.mlp.c_fc", hidden, width, config.mlp_bias)
        linear(f"{h}.mlp.c_proj", width, config.mlp_dim, config.mlp_bias)
    if config.final_norm:
        norm("ln_f")
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


def layer_inputs(parameters: Parameters, config: Config, tokens: Array) -> dict[str, Array]:
    """What each layer and norm reads, by its name; "h.0.qkv" and "h.0.hidden" for attention and
    activation, and "head"."""
    return _forward(parameters, config, tokens)[1]


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


class _Layers:
    """The layers that come up again and again, forward and backward.

    Forward saves each layer's input under its name; backward finds it there, and leaves the
    gradients of the layer's own parameters in `found`.
    """

    def __init__(self, parameters: Parameters, config: Config, saved: dict[str, Array]) -> None:
        self.p, self.config, self.saved = parameters, config, saved
        self.found: Parameters = {}

    def norm(self, name: str, x: Array) -> Array:
        self.saved[name] = x
        gamma, beta = self.p.get(f"{name}.weight"), self.p.get(f"{name}.bias")
        if self.config.norm == "rmsnorm":
            return ops.rms_norm_forward(x, gamma)[0]
        return ops.layer_norm_forward(x, gamma, beta)[0]

    def norm_backward(self, name: str, dout: Array) -> Array:
        x, gamma = self.saved[name], self.p.get(f"{name}.weight")
        if self.config.norm == "rmsnorm":
            dx, dgamma = ops.rms_norm_backward(dout, x, ops.rms_norm_forward(x)[1], gamma)
            self._keep(name, dgamma)
        else:
            _, mean, rstd = ops.layer_norm_forward(x)
            dx, dgamma, dbeta = ops.layer_norm_backward(dout, x, mean, rstd, gamma)
            self._keep(name, dgamma, dbeta)
        return dx

    def linear(self, name: str, x: Array) -> Array:
        self.saved[name] = x
        return ops.linear_forward(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def linear_backward(self, name: str, dout: Array) -> Array:
        dx, dweight, dbias = ops.linear_backward(dout, self.saved[name], self.p[f"{name}.weight"])
        self._keep(name, dweight, dbias)
        return dx

    def sublayer(self, norm: str, x: Array, layer: Callable[[Array], Array]) -> Array:
        """Attention or MLP, with what the dialect puts around it."""
        position = self.config.norm_position
        delta = layer(self.norm(norm, x) if position == "pre" else x)
        x = ops.residual_forward(x, delta) if self.config.residual else delta
        return self.norm(norm, x) if position == "post" else x

    def sublayer_backward(
        self, norm: str, dx: Array, layer_backward: Callable[[Array], Array]
    ) -> Array:
        position = self.config.norm_position
        if position == "post":
            dx = self.norm_backward(norm, dx)
        beside, ddelta = ops.residual_backward(dx)
        through = layer_backward(ddelta)
        if position == "pre":
            through = self.norm_backward(norm, through)
        return beside + through if self.config.residual else through

    def _keep(self, name: str, dweight: Array, dbias: Array | None = None) -> None:
        """Of gradients, those of parameters that the dialect has."""
        for part, gradient in (("weight", dweight), ("bias", dbias)):
            if gradient is not None and f"{name}.{part}" in self.p:
                self.found[f"{name}.{part}"] = gradient


def _head(config: Config) -> str:
    return "wte.weight" if config.tie_embeddings else "lm_head.weight"


def _forward(
    parameters: Parameters, config: Config, tokens: Array
) -> tuple[Array, dict[str, Array]]:
    """Logits, and each op's input by the name of the layer it enters."""
    p = parameters
    saved: dict[str, Array] = {}
    of = _Layers(parameters, config, saved)

    def attention(h: str, x: Array) -> Array:
        saved[f"{h}.qkv"] = of.linear(f"{h}.attn.c_attn", x)
        mixed, _ = ops.attention_forward(saved[f"{h}.qkv"], config.n_head)
        return of.linear(f"{h}.attn.c_proj", mixed)

    def mlp(h: str, x: Array) -> Array:
        saved[f"{h}.hidden"] = of.linear(f"{h}.mlp.c_fc", x)
        activated = activations.forward(config.activation, saved[f"{h}.hidden"])
        return of.linear(f"{h}.mlp.c_proj", activated)

    x = ops.embedding_forward(tokens, p["wte.weight"], p["wpe.weight"])
    if config.embedding_norm:
        x = of.norm("ln_emb", x)
    for h in _blocks(config):
        x = of.sublayer(f"{h}.ln_1", x, partial(attention, h))
        x = of.sublayer(f"{h}.ln_2", x, partial(mlp, h))
    saved["head"] = of.norm("ln_f", x) if config.final_norm else x
    return ops.head_forward(saved["head"], p[_head(config)]), saved


def _backward(
    parameters: Parameters,
    config: Config,
    tokens: Array,
    dlogits: Array,
    saved: dict[str, Array],
) -> Parameters:
    """Mirror of _forward; gradients in the order of the tensor table."""
    p = parameters
    of = _Layers(parameters, config, saved)

    def attention(h: str, ddelta: Array) -> Array:
        dmixed = of.linear_backward(f"{h}.attn.c_proj", ddelta)
        dqkv = ops.attention_backward(dmixed, saved[f"{h}.qkv"], config.n_head)
        return of.linear_backward(f"{h}.attn.c_attn", dqkv)

    def mlp(h: str, ddelta: Array) -> Array:
        dactivated = of.linear_backward(f"{h}.mlp.c_proj", ddelta)
        dhidden = activations.backward(config.activation, dactivated, saved[f"{h}.hidden"])
        return of.linear_backward(f"{h}.mlp.c_fc", dhidden)

    dx, dhead = ops.head_backward(dlogits, saved["head"], p[_head(config)])
    if config.final_norm:
        dx = of.norm_backward("ln_f", dx)
    for h in reversed(_blocks(config)):
        dx = of.sublayer_backward(f"{h}.ln_2", dx, partial(mlp, h))
        dx = of.sublayer_backward(f"{h}.ln_1", dx, partial(attention, h))
    if config.embedding_norm:
        dx = of.norm_backward("ln_emb", dx)
    found = of.found
    found["wte.weight"], found["wpe.weight"] = ops.embedding_backward(
        dx, tokens, p["wte.weight"], p["wpe.weight"]
    )
    found[_head(config)] = found.get(_head(config), 0.0) + dhead
    return {name: found[name] for name in parameter_shapes(config)}


def _blocks(config: Config) -> list[str]:
    return [f"h.{layer}" for layer in range(config.n_layer)]
