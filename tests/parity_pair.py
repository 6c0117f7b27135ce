"""One model twice, in the engine and in the NumPy reference, for the tests that compare them.

Parameters are the reference's random ones, biases included, rounded to float32 and written into the
engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

import andrea
from reference import gpt
from reference.compare import assert_close
from reference.ops import Array

LOGITS_TOLERANCE = 1e-5
LOSS_TOLERANCE = 1e-6
GRADIENT_TOLERANCE = 1e-4  # of the specification; the session's table shows the measured ones

# V, block_size, n_layer, n_head, n_embd; B, T; spread of the weights
CASES = {
    "usual": ((65, 32, 2, 4, 48), (3, 32), 0.1),
    "odd": ((97, 37, 3, 3, 33), (2, 35), 0.1),
    "nano": ((256, 128, 4, 4, 128), (2, 128), 0.02),
    "one of each": ((1, 1, 1, 1, 1), (1, 1), 0.3),
    "width 1": ((5, 6, 2, 1, 1), (2, 5), 0.3),
    "width 3": ((4, 6, 1, 3, 3), (3, 6), 0.3),
    "one token": ((11, 8, 2, 2, 10), (5, 1), 0.3),
    "head_dim 80": ((23, 70, 1, 2, 160), (1, 70), 0.05),
    "many rows": ((19, 40, 1, 2, 12), (20, 40), 0.2),
}


@dataclass
class Pair:
    """The same model twice: the engine's, and the reference's parameters in float64."""

    config: andrea.ModelConfig
    engine: andrea.GPT
    parameters: gpt.Parameters


@contextmanager
def pair(shape: tuple[int, ...], spread: float, seed: int = 50) -> Iterator[Pair]:
    config = andrea.ModelConfig(*shape)
    engine = andrea.GPT(config, device="cpu", precision="fp32", seed=0)
    parameters = gpt.init_parameters(config, np.random.default_rng(seed), spread)
    for name, view in engine.parameters().items():
        view[...] = parameters[name]
        parameters[name] = view.astype(np.float64)
    engine.refresh()
    yield Pair(config, engine, parameters)
    engine.close()


def random_batch(
    config: andrea.ModelConfig, size: tuple[int, int], seed: int = 51, ignored: float = 0.2
) -> tuple[Array, Array]:
    """Tokens and targets (B, T); a share of the targets is -1, but never the first."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, size, np.int32)
    targets = rng.integers(0, config.vocab_size, size, np.int32)
    targets.reshape(-1)[1:][rng.random(targets.size - 1) < ignored] = -1
    return tokens, targets


def check_gradients(measured: dict[str, Array], expected: gpt.Parameters) -> None:
    assert list(measured) == list(expected)
    for name, gradient in expected.items():
        assert_close(name, measured[name], gradient, GRADIENT_TOLERANCE)
