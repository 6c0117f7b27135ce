"""mg_op_embedding_*: token plus position embedding, and its gradients, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, added, output
from reference import ops
from reference.compare import assert_close

# B, T, C, V
SHAPES = [
    (1, 1, 1, 1),
    (2, 1, 3, 5),
    (1, 7, 4, 2),
    (3, 5, 17, 9),
    (2, 33, 64, 257),
    (4, 16, 130, 3),
]
FORWARD_TOLERANCE = 1e-7
# Up to 66 gradients meet in one row.
BACKWARD_TOLERANCE = 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_forward(device: Device, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    B, T, C, V = shape
    tokens = rng.integers(0, V, (B, T), np.int32)
    wte = rng.standard_normal((V, C), np.float32)
    wpe = rng.standard_normal((T + 2, C), np.float32)
    (out,) = device.run("embedding_forward", output(B, T, C), tokens, None, wte, wpe, B * T, T, C)
    assert_close("out", out, ops.embedding_forward(tokens, wte, wpe), FORWARD_TOLERANCE)


def test_forward_at_given_positions(device: Device, rng: np.random.Generator) -> None:
    tokens = np.array([3, 0, 4, 4, 1], np.int32)
    positions = np.array([6, 0, 2, 5, 5], np.int32)
    wte = rng.standard_normal((5, 19), np.float32)
    wpe = rng.standard_normal((7, 19), np.float32)
    (out,) = device.run("embedding_forward", output(5, 19), tokens, positions, wte, wpe, 5, 1, 19)
    assert_close("out", out, wte[tokens] + wpe[positions], FORWARD_TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES)
def test_backward(device: Device, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    B, T, C, V = shape
    tokens = rng.integers(0, V, (B, T), np.int32)
    dout = rng.standard_normal((B, T, C), np.float32)
    before = rng.standard_normal((V, C), np.float32), rng.standard_normal((T + 2, C), np.float32)
    dwte, dwpe = device.run(
        "embedding_backward", added(before[0]), added(before[1]), dout, tokens, B * T, T, C
    )
    expected = ops.embedding_backward(dout.astype(float), tokens, *before)
    assert_close("dwte", dwte, before[0] + expected[0], BACKWARD_TOLERANCE)
    assert_close("dwpe", dwpe, before[1] + expected[1], BACKWARD_TOLERANCE)
    unused = np.setdiff1d(np.arange(V), tokens)
    assert (dwte[unused] == before[0][unused]).all()
    assert (dwpe[T:] == before[1][T:]).all()
