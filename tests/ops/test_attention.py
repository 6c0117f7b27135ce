"""mg_op_attention_*: causal attention and its gradient against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, output
from reference import ops
from reference.bfloat16 import UNIT
from reference.compare import assert_close
from reference.ops import Array

# B, T, NH, head_dim: heads of 1, odd, around vectors, usual; T around blocks of 48 to 256.
SHAPES = [
    *[(2, 5, 2, head_dim) for head_dim in (1, 3, 4, 7, 8, 9, 15, 16, 17, 32, 33, 64, 80, 128)],
    *[
        (1, T, 2, 8)
        for T in (1, 2, 3, 7, 8, 9, 47, 48, 49, 55, 56, 57, 63, 64, 65, 112, 128, 129, 200)
    ],
    *[(1, 1, 1, 1), (3, 1, 5, 3), (1, 300, 1, 1), (2, 130, 3, 32), (1, 97, 1, 80), (4, 17, 6, 11)],
    *[(1, 257, 2, 64), (1, 513, 1, 24), (2, 96, 1, 31)],
]
# In bf16, beside the results' own rounding. Forward: probabilities p are rounded as operands, which
# moves out by up to UNIT * sum(p |v|), and that is at most about the largest out. Backward: p and
# the scores' gradients are rounded, and so is out, from which each row's sum of p dp comes: three
# roundings of terms that partly cancel.
FORWARD_TOLERANCE = {"fp32": 1e-6, "bf16": 1.0 * UNIT}
BACKWARD_TOLERANCE = {"fp32": 4e-6, "bf16": 3.0 * UNIT}
# Of a few tokens all dq or all dk may be what is left after cancelling: against their own largest.
PARTS_TOLERANCE = {"fp32": 4e-6, "bf16": 10.0 * UNIT}
# Scores in the thousands have lost that much to float32 when exp takes them.
STEEP_TOLERANCE = {"fp32": 2e-4, "bf16": 3.0 * UNIT}

attention_shapes = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: "x".join(map(str, shape))
)


def qkv_of(
    device: Device, rng: np.random.Generator, shape: tuple[int, ...], spread: float = 1.0
) -> Array:
    B, T, NH, head_dim = shape
    return device.rounded(spread * rng.standard_normal((B, T, 3 * NH * head_dim)))


def forward(device: Device, qkv: Array, NH: int) -> tuple[Array, Array]:
    B, T, C = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    saved = device.opaque("attention_saved_bytes", B, T, NH)
    out, saved_values = device.run("attention_forward", output(B, T, C), saved, qkv, B, T, C, NH)
    return out, saved_values


@attention_shapes
def test_forward(device: Device, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    qkv = qkv_of(device, rng, shape)
    out, _ = forward(device, qkv, shape[2])
    expected, _ = ops.attention_forward(qkv.astype(float), shape[2])
    assert_close("out", out, expected, FORWARD_TOLERANCE[device.precision], device.unit)


@attention_shapes
def test_backward(device: Device, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    B, T, NH, head_dim = shape
    C = NH * head_dim
    qkv = qkv_of(device, rng, shape)
    out, saved = forward(device, qkv, NH)
    dout = device.rounded(rng.standard_normal((B, T, C), np.float32))
    (dqkv,) = device.run(
        "attention_backward", output(B, T, 3 * C), dout, qkv, out, saved, B, T, C, NH
    )
    expected = ops.attention_backward(dout.astype(float), qkv.astype(float), NH)
    assert_close("dqkv", dqkv, expected, BACKWARD_TOLERANCE[device.precision], device.unit)
    if T > 1:  # with one token, dq and dk are 0 but for rounding
        for name, part in (("dq", 0), ("dk", 1), ("dv", 2)):
            columns = slice(part * C, (part + 1) * C)
            tolerance = PARTS_TOLERANCE[device.precision]
            assert_close(name, dqkv[..., columns], expected[..., columns], tolerance, device.unit)


@pytest.mark.parametrize("spread", [0.0, 6.0, 30.0])
def test_flat_and_steep_softmax(device: Device, rng: np.random.Generator, spread: float) -> None:
    """Equal scores, and scores whose exponentials overflow float32."""
    qkv = qkv_of(device, rng, (1, 70, 2, 16), spread)
    qkv[..., 64:] = device.rounded(rng.standard_normal(qkv[..., 64:].shape))
    out, saved = forward(device, qkv, 2)
    exact = qkv.astype(float)
    tolerance = STEEP_TOLERANCE[device.precision]
    assert_close("out", out, ops.attention_forward(exact, 2)[0], tolerance, device.unit)
    dout = device.rounded(rng.standard_normal(out.shape, np.float32))
    (dqkv,) = device.run(
        "attention_backward", output(*qkv.shape), dout, qkv, out, saved, 1, 70, 32, 2
    )
    expected = ops.attention_backward(dout.astype(float), exact, 2)
    assert_close("dqkv", dqkv, expected, tolerance, device.unit)


def test_the_future_is_not_seen(device: Device, rng: np.random.Generator) -> None:
    """Other numbers in later tokens leave the bits of earlier ones alone."""
    qkv = qkv_of(device, rng, (1, 130, 2, 8))
    out, _ = forward(device, qkv, 2)
    for t in (1, 7, 64, 129):
        changed = qkv.copy()
        changed[:, t:] = device.rounded(-100 * changed[:, t:])
        after, _ = forward(device, changed, 2)
        assert after[:, :t].tobytes() == out[:, :t].tobytes()
        assert np.isfinite(after).all() and (after[:, t:] != out[:, t:]).any(axis=-1).all()
