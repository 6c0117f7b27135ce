"""mg_op_head_*: logits of the tied head, losses and gradients against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, added, output
from reference import ops
from reference.bfloat16 import UNIT
from reference.compare import assert_close
from reference.ops import Array

# N, C, V
SHAPES = [
    *[(5, 12, V) for V in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 33, 65, 257, 2305)],
    *[(N, 9, 21) for N in (1, 3, 4, 6, 14, 15, 64, 129)],
    *[(1, 1, 1), (7, 1, 5), (9, 1, 3), (300, 3, 300), (1100, 5, 11), (33, 80, 513), (40, 3, 70001)],
]
TOLERANCE = 3e-6
# In bf16 the logits' gradients are rounded as operands of the two products: each moves a sum by up
# to UNIT of its size, and the sums are about as large as their largest parts.
GRADIENT_TOLERANCE = {"fp32": TOLERANCE, "bf16": 1.0 * UNIT}

head_shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))


def inputs(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int], spread: float = 1.0
) -> tuple[Array, Array, Array]:
    """x [N, C], wte [V, C], targets [N], a quarter of them ignored."""
    N, C, V = shape
    targets = rng.integers(0, V, N, np.int32)
    targets[rng.random(N) < 0.25] = -1
    x = device.rounded(spread * rng.standard_normal((N, C), np.float32))
    return x, rng.standard_normal((V, C), np.float32), targets


def expected_losses_and_gradients(
    device: Device, x: Array, wte: Array, targets: Array, scale: float
) -> tuple[Array, Array, Array]:
    exact_x, exact_wte = x.astype(float), device.rounded(wte).astype(float)
    logits = ops.head_forward(exact_x, exact_wte)
    losses = ops.cross_entropy_losses(logits, targets)
    # The op's gradient is that of scale * sum(losses), the reference's that of the mean.
    counted = max(1, int((targets != -1).sum()))
    if not (targets != -1).any():
        return losses, 0.0 * exact_x, 0.0 * exact_wte
    dlogits = ops.cross_entropy_backward(scale * counted, logits, targets)
    return losses, *ops.head_backward(dlogits, exact_x, exact_wte)


@head_shapes
def test_logits(device: Device, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
    x, wte, _ = inputs(device, rng, shape)
    N, C, V = shape
    (logits,) = device.run("head_forward", output(N, V), x, wte, N, C, V)
    expected = ops.head_forward(x.astype(float), device.rounded(wte).astype(float))
    assert_close("logits", logits, expected, TOLERANCE)


@head_shapes
def test_losses(device: Device, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
    x, wte, targets = inputs(device, rng, shape)
    (losses,) = device.run("head_loss_forward", output(shape[0]), x, wte, targets, *shape)
    expected, _, _ = expected_losses_and_gradients(device, x, wte, targets, 1.0)
    assert_close("losses", losses, expected, TOLERANCE)
    assert (losses[targets == -1] == 0.0).all()


@head_shapes
def test_gradients(device: Device, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
    x, wte, targets = inputs(device, rng, shape)
    N, C, V = shape
    before = rng.standard_normal((V, C), np.float32)
    losses, dx, dwte = device.run(
        "head_loss_backward",
        *(output(N), output(N, C), added(before)),
        *(x, wte, targets),
        *(0.125, N, C, V),
    )
    expected = expected_losses_and_gradients(device, x, wte, targets, 0.125)
    assert_close("losses", losses, expected[0], TOLERANCE)
    tolerance = GRADIENT_TOLERANCE[device.precision]
    # dx is a sum of V terms, one after the other: the smaller they are, the more is lost of each.
    of_many = max(tolerance, TOLERANCE * V / 4000)
    assert_close("dx", dx, expected[1], of_many, device.unit)
    assert_close("dwte", dwte, before + expected[2], tolerance)
    assert not dx[targets == -1].any()
    (alone,) = device.run("head_loss_forward", output(N), x, wte, targets, N, C, V)
    assert alone.tobytes() == losses.tobytes()


def test_all_targets_ignored(device: Device, rng: np.random.Generator) -> None:
    x, wte, targets = inputs(device, rng, (6, 5, 19))
    targets[:] = -1
    before = rng.standard_normal(wte.shape, np.float32)
    losses, dx, dwte = device.run(
        "head_loss_backward",
        *(output(6), output(6, 5), added(before)),
        *(x, wte, targets),
        *(1.0, 6, 5, 19),
    )
    assert not losses.any() and not dx.any()
    np.testing.assert_array_equal(dwte, before)


def test_large_logits(device: Device, rng: np.random.Generator) -> None:
    """Logits of some thousands overflow exp; the loss is then about the distance to the largest."""
    x, wte, targets = inputs(device, rng, (8, 16, 40), spread=1000.0)
    losses, dx, _ = device.run(
        "head_loss_backward",
        *(output(8), output(8, 16), added(np.zeros_like(wte))),
        *(x, wte, targets),
        *(1.0, 8, 16, 40),
    )
    expected = expected_losses_and_gradients(device, x, wte, targets, 1.0)
    assert_close("losses", losses, expected[0], TOLERANCE)
    tolerance = max(1e-3, GRADIENT_TOLERANCE[device.precision])
    assert_close("dx", dx, expected[1], tolerance, device.unit)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(
    device: Device, rng: np.random.Generator, bad: float
) -> None:
    x, wte, targets = inputs(device, rng, (4, 8, 24))
    targets[:] = [3, 5, 0, 23]
    x[2, 5] = bad
    (losses,) = device.run("head_loss_forward", output(4), x, wte, targets, 4, 8, 24)
    np.testing.assert_array_equal(np.isfinite(losses), [True, True, False, True])
