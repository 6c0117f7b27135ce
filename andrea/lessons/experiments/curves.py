"""Activation functions and their derivatives, as the engine computes them.

A model of one token, whose embeddings are 0 and whose MLP is as wide as its stream: the biases of
its first layer are the activation's inputs, its second layer is the identity, so that the stream
is what the activation makes of them, and the biases' gradients tell the derivative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from andrea.config import ModelConfig
from andrea.model import GPT

Array = NDArray[np.float64]

# Of the logits: small, so that no probability is 0 and no gradient vanishes.
_HEAD = 1e-5
# Numbers at once; the model's matrices have its square.
_WIDTH = 128


@dataclass(frozen=True)
class Curve:
    """A function and its derivative at x, (N,) each; of "swiglu" for an up-projection of 1."""

    x: Array
    value: Array
    derivative: Array


def activation_curve(name: str, x: ArrayLike) -> Curve:
    """What the engine's activation of that name makes of numbers (N,), in fp32 on the CPU.

    Raises:
        ConfigError: there is no such activation.
    """
    inputs = np.asarray(x, dtype=np.float32)
    config = ModelConfig(
        vocab_size=2,
        block_size=1,
        n_layer=1,
        n_head=1,
        n_embd=_WIDTH,
        mlp_dim=_WIDTH,
        norm_position="none",
        final_norm=False,
        tie_embeddings=False,
        activation=name,
    )
    model = GPT(config, device="cpu", precision="fp32")
    head = np.full((2, _WIDTH), _HEAD, dtype=np.float32)
    head[1] *= -1  # the gradients of two logits sum to 0: alike rows would leave nothing
    zeros = {tensor: np.zeros_like(values) for tensor, values in model.read().items()}
    identity = np.eye(_WIDTH, dtype=np.float32)
    model.write({**zeros, "h.0.mlp.c_proj.weight": identity, "lm_head.weight": head})
    parts = [
        _part(model, inputs[start : start + _WIDTH]) for start in range(0, len(inputs), _WIDTH)
    ]
    model.close()
    value, derivative = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Curve(inputs.astype(np.float64), value, derivative)


def _part(model: GPT, inputs: NDArray[np.float32]) -> tuple[Array, Array]:
    """Values and derivatives at as many numbers as the model is wide, or fewer."""
    biases = np.ones(model.config.hidden_dim, dtype=np.float32)  # 1 for what a gate lets through
    biases[: len(inputs)] = inputs
    model.write({"h.0.mlp.c_fc.bias": biases})
    token = np.zeros((1, 1), dtype=np.int32)
    model.zero_gradients()
    model.forward(token, token)
    value = np.array(model.activations()["head.stream"][0, 0], dtype=np.float64)
    model.backward()
    gradients = model.tensors("gradients")
    above = gradients["h.0.mlp.c_proj.bias"].read().astype(np.float64)
    slopes = gradients["h.0.mlp.c_fc.bias"].read()[:_WIDTH].astype(np.float64) / above
    return value[: len(inputs)], slopes[: len(inputs)]
