"""mg_op_norm_*: layer norm and its gradients against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, added, output
from reference import ops
from reference.compare import assert_close

ROWS = [1, 3, 64, 131]
WIDTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 80, 768]
TOLERANCE = 2e-6


def inputs(rng: np.random.Generator, N: int, C: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = (1.0 + 2.0 * rng.standard_normal((N, C))).astype(np.float32)
    gamma = (1.0 + 0.5 * rng.standard_normal(C)).astype(np.float32)
    return x, gamma, rng.standard_normal(C, np.float32)


@pytest.mark.parametrize("C", WIDTHS)
@pytest.mark.parametrize("N", ROWS)
def test_forward(device: Device, rng: np.random.Generator, N: int, C: int) -> None:
    x, gamma, beta = inputs(rng, N, C)
    found = device.run("norm_forward", output(N, C), output(N), output(N), x, gamma, beta, N, C)
    expected = ops.layer_norm_forward(*(a.astype(float) for a in (x, gamma, beta)))
    assert_close("out", found[0], expected[0], TOLERANCE, device.unit)
    assert_close("mean", found[1], expected[1], TOLERANCE)
    assert_close("rstd", found[2], expected[2], TOLERANCE)


@pytest.mark.parametrize("C", WIDTHS)
@pytest.mark.parametrize("N", ROWS)
def test_backward(device: Device, rng: np.random.Generator, N: int, C: int) -> None:
    x, gamma, beta = inputs(rng, N, C)
    dout = device.rounded(rng.standard_normal((N, C), np.float32))
    exact = [a.astype(float) for a in (x, gamma, beta, dout)]
    _, mean, rstd = ops.layer_norm_forward(*exact[:3])
    before = rng.standard_normal((N, C), np.float32), *rng.standard_normal((2, C), np.float32)
    statistics = mean.astype(np.float32), rstd.astype(np.float32)
    parameters = [added(values) for values in before]
    given = (dout, x, *statistics, gamma, beta, N, C)
    dx, dgamma, dbeta = parameters
    found = device.run("norm_backward", dx, None, None, dgamma, dbeta, *given)
    expected = ops.layer_norm_backward(exact[3], exact[0], mean, rstd, exact[1])
    # Rounding of x - mean is scaled by rstd: in narrow rows of nearly equal numbers that is much.
    tolerance = TOLERANCE * max(1.0, rstd.max())
    for name, measured, start, wanted in zip(
        ("dx", "dgamma", "dbeta"), found, before, expected, strict=True
    ):
        assert_close(name, measured, start + wanted, tolerance)
    # With what the weights' gradients need beside: dx as Elements, and the output once more.
    elements = dx if device.precision == "fp32" else output(N, C)
    beside = device.run("norm_backward", dx, elements, output(N, C), dgamma, dbeta, *given)
    assert [one.tobytes() for one in (beside[0], *beside[-2:])] == [one.tobytes() for one in found]
    assert beside[-4].tobytes() == device.rounded(found[0]).tobytes()
    again, _, _ = ops.layer_norm_forward(*exact[:3])
    assert_close("out again", beside[-3], again, tolerance, device.unit)


def test_rows_far_from_zero_keep_their_variance(device: Device, rng: np.random.Generator) -> None:
    """x = 1000 +- 1 in float32: E[x^2] - E[x]^2 would have lost most of the variance."""
    x = (1000.0 + rng.standard_normal((5, 96))).astype(np.float32)
    gamma, beta = np.ones(96, np.float32), np.zeros(96, np.float32)
    out, _, rstd = device.run(
        "norm_forward", output(5, 96), output(5), output(5), x, gamma, beta, 5, 96
    )
    expected = ops.layer_norm_forward(x.astype(float), gamma.astype(float), beta.astype(float))
    assert_close("out", out, expected[0], 1e-4, device.unit)
    assert_close("rstd", rstd, expected[2], 1e-6)


def test_a_constant_row_becomes_beta(device: Device) -> None:
    x = np.full((2, 24), 0.75, np.float32)
    gamma, beta = np.full(24, 3.0, np.float32), np.arange(24, dtype=np.float32)
    out, mean, rstd = device.run(
        "norm_forward", output(2, 24), output(2), output(2), x, gamma, beta, 2, 24
    )
    assert (out == beta).all() and (mean == 0.75).all()
    assert_close("rstd", rstd, np.full(2, 1e-5**-0.5), 1e-6)
