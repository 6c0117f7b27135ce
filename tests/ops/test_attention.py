"""mg_op_attention_*: causal attention and its gradient against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, opaque, output
from reference import ops
from reference.compare import assert_close

# B, T, NH, head_dim: heads of 1, odd, around vectors, usual; T around blocks of 48, 56 and 64.
SHAPES = [
    *[(2, 5, 2, head_dim) for head_dim in (1, 3, 4, 7, 8, 9, 15, 16, 17, 32, 33, 64, 80, 128)],
    *[
        (1, T, 2, 8)
        for T in (1, 2, 3, 7, 8, 9, 47, 48, 49, 55, 56, 57, 63, 64, 65, 112, 128, 129, 200)
    ],
    *[(1, 1, 1, 1), (3, 1, 5, 3), (1, 300, 1, 1), (2, 130, 3, 32), (1, 97, 1, 80), (4, 17, 6, 11)],
]
FORWARD_TOLERANCE = 1e-6
BACKWARD_TOLERANCE = 4e-6

attention_shapes = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: "x".join(map(str, shape))
)


def qkv_of(rng: np.random.Generator, shape: tuple[int, ...], spread: float = 1.0) -> np.ndarray:
    B, T, NH, head_dim = shape
    return (spread * rng.standard_normal((B, T, 3 * NH * head_dim))).astype(np.float32)


def forward(device: Device, qkv: np.ndarray, NH: int) -> tuple[np.ndarray, np.ndarray]:
    B, T, C = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    saved = opaque(device.size("attention_saved_bytes", B, T, NH))
    out, saved_values = device.run("attention_forward", output(B, T, C), saved, qkv, B, T, C, NH)
    return out, saved_values


@attention_shapes
def test_forward(device: Device, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    qkv = qkv_of(rng, shape)
    out, _ = forward(device, qkv, shape[2])
    expected, _ = ops.attention_forward(qkv.astype(float), shape[2])
    assert_close("out", out, expected, FORWARD_TOLERANCE)


@attention_shapes
def test_backward(device: Device, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    B, T, NH, head_dim = shape
    C = NH * head_dim
    qkv = qkv_of(rng, shape)
    out, saved = forward(device, qkv, NH)
    dout = rng.standard_normal((B, T, C), np.float32)
    (dqkv,) = device.run(
        "attention_backward", output(B, T, 3 * C), dout, qkv, out, saved, B, T, C, NH
    )
    expected = ops.attention_backward(dout.astype(float), qkv.astype(float), NH)
    assert_close("dqkv", dqkv, expected, BACKWARD_TOLERANCE)
    if T > 1:  # with one token, dq and dk are 0 but for rounding
        for name, part in (("dq", 0), ("dk", 1), ("dv", 2)):
            columns = slice(part * C, (part + 1) * C)
            assert_close(name, dqkv[..., columns], expected[..., columns], BACKWARD_TOLERANCE)


@pytest.mark.parametrize("spread", [0.0, 6.0, 30.0])
def test_flat_and_steep_softmax(device: Device, rng: np.random.Generator, spread: float) -> None:
    """Equal scores, and scores whose exponentials overflow float32."""
    qkv = qkv_of(rng, (1, 70, 2, 16), spread)
    qkv[..., 64:] = rng.standard_normal(qkv[..., 64:].shape)
    out, saved = forward(device, qkv, 2)
    exact = qkv.astype(float)
    assert_close("out", out, ops.attention_forward(exact, 2)[0], 2e-4)
    dout = rng.standard_normal(out.shape, np.float32)
    (dqkv,) = device.run(
        "attention_backward", output(*qkv.shape), dout, qkv, out, saved, 1, 70, 32, 2
    )
    assert_close("dqkv", dqkv, ops.attention_backward(dout.astype(float), exact, 2), 2e-4)


def test_the_future_is_not_seen(device: Device, rng: np.random.Generator) -> None:
    """Other numbers in later tokens leave the bits of earlier ones alone."""
    qkv = qkv_of(rng, (1, 130, 2, 8))
    out, _ = forward(device, qkv, 2)
    for t in (1, 7, 64, 129):
        changed = qkv.copy()
        changed[:, t:] *= np.float32(-100)
        after, _ = forward(device, changed, 2)
        assert after[:, :t].tobytes() == out[:, :t].tobytes()
        assert np.isfinite(after).all() and (after[:, t:] != out[:, t:]).any(axis=-1).all()
