"""A tiny model on a device against the same arithmetic in NumPy: do its kernels count right?

For the doctor. NumPy's side is written from the formulas and shares nothing with the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .config import ModelConfig

_CONFIG = ModelConfig(vocab_size=67, block_size=24, n_layer=2, n_head=2, n_embd=64)
_SEED = 1
# Of the largest logit; rounding to 24 and to 8 bits, through two blocks.
_TOLERANCES = {"fp32": 1e-5, "bf16": 3e-2}


def compare(device: str, precision: str) -> tuple[Literal["ok", "problem"], str]:
    """Whether a device's logits are NumPy's and a training step lowers its loss; and by how much.

    Raises:
        DeviceError: the device or precision is not available.
    """
    from .model import GPT

    model = GPT(_CONFIG, device=device, precision=precision, seed=_SEED)
    random = np.random.Generator(np.random.Philox(_SEED))
    # Initial weights give logits near 0: larger ones make every op count.
    weights = {
        name: values + random.normal(scale=0.1, size=values.shape).astype(np.float32)
        for name, values in model.read().items()
    }
    model.write(weights)
    tokens = random.integers(_CONFIG.vocab_size, size=(2, _CONFIG.block_size), dtype=np.int32)
    expected = numpy_logits(_CONFIG, weights, tokens)
    scale = float(np.abs(expected).max())
    difference = float(np.abs(model.logits(tokens) - expected).max()) / scale
    tolerance = _TOLERANCES[precision]
    before = model.forward_backward(tokens[:, :-1], tokens[:, 1:])
    model.step(1e-2, weight_decay=0.0)
    after = model.forward(tokens[:, :-1], tokens[:, 1:])
    shape = " x ".join(map(str, tokens.shape))
    text = (
        f"logits of a 2-layer model for {shape} tokens differ from NumPy's by {difference:.1e} "
        f"(at most {tolerance:.0e}); a training step took its loss from {before:.3f} to {after:.3f}"
    )
    is_fine = difference <= tolerance and after < before
    return ("ok" if is_fine else "problem"), text


def numpy_logits(
    config: ModelConfig, weights: Mapping[str, NDArray[np.float32]], tokens: NDArray[np.int32]
) -> NDArray[np.float64]:
    """(B, T, V) logits of (B, T) tokens in float64, by GPT-2's formulas."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}
    B, T = tokens.shape

    def norm(x: NDArray[Any], name: str) -> NDArray[Any]:
        centred = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        result: NDArray[Any] = centred / deviation * w[name + ".weight"] + w[name + ".bias"]
        return result

    def linear(x: NDArray[Any], name: str) -> NDArray[Any]:
        result: NDArray[Any] = x @ w[name + ".weight"].T + w[name + ".bias"]
        return result

    x = w["wte.weight"][tokens] + w["wpe.weight"][:T]
    for layer in range(config.n_layer):
        block = f"h.{layer}."
        qkv = linear(norm(x, block + "ln_1"), block + "attn.c_attn")
        q, k, v = (
            part.reshape(B, T, config.n_head, config.head_dim).transpose(0, 2, 1, 3)
            for part in np.split(qkv, 3, axis=-1)
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(config.head_dim)
        scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        heads = (shares @ v).transpose(0, 2, 1, 3).reshape(B, T, config.n_embd)
        x = x + linear(heads, block + "attn.c_proj")
        hidden = linear(norm(x, block + "ln_2"), block + "mlp.c_fc")
        inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
        x = x + linear(hidden / 2 * (1 + np.tanh(inner)), block + "mlp.c_proj")
    logits: NDArray[np.float64] = norm(x, "ln_f") @ w["wte.weight"].T
    return logits
