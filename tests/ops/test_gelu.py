"""GELU over its range: mg_op_linear_gelu_* with a weight of 1 leaves nothing else to measure."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, added, output
from reference import activations
from reference.compare import assert_close
from reference.ops import Array

ONE, ZERO = np.ones((1, 1), np.float32), np.zeros(1, np.float32)
EVERYWHERE = np.linspace(-12.0, 12.0, 2401, dtype=np.float32)
# Each value is compared with its own size, where gelu is not yet lost in the smallest floats.
TOLERANCE = 1e-6


def gelu(device: Device, x: Array) -> Array:
    hidden, out = device.run(
        "linear_gelu_forward", output(x.size), output(x.size), x, ONE, ZERO, x.size, 1, 1
    )
    np.testing.assert_array_equal(hidden, x)
    return out


def gelu_gradient(device: Device, x: Array) -> tuple[Array, Array]:
    ones = np.ones(x.size, np.float32)
    dhidden, out = device.run(
        "linear_gelu_backward_input", output(x.size), added(x), ones, ONE, x.size, 1, 1
    )
    return dhidden, out


def test_forward_everywhere(device: Device) -> None:
    x = device.rounded(EVERYWHERE)
    exact = activations.gelu_forward(x.astype(float))
    out = gelu(device, x)
    assert_close("out", out, exact, 2e-7, device.unit)
    nonzero = (np.abs(x) < 4) & (x != 0)
    ratio = out[nonzero] / exact[nonzero]
    assert_close("out / exact", ratio, np.ones(ratio.size), TOLERANCE, device.unit)


def test_backward_everywhere(device: Device) -> None:
    x = device.rounded(EVERYWHERE)
    derivative, out = gelu_gradient(device, x)
    exact = activations.gelu_backward(np.ones(x.size), x.astype(float))
    assert_close("derivative", derivative, exact, TOLERANCE, device.unit)
    assert out.tobytes() == gelu(device, x).tobytes()


def test_facts(device: Device) -> None:
    x = device.rounded(np.array([0.0, -0.0, 10.0, 40.0, 1e4, -10.0, -40.0, -1e4], np.float32))
    limits = np.maximum(x, 0.0)
    out = gelu(device, x)
    assert (out[:5] == limits[:5]).all() and (np.abs(out[5:]) < 1e-20).all()
    slopes = np.array([0.5, 0.5, 1, 1, 1, 0, 0, 0])
    derivative, _ = gelu_gradient(device, x)
    assert (derivative[:5] == slopes[:5]).all() and (np.abs(derivative[5:]) < 1e-20).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(device: Device, value: float) -> None:
    x = np.array([1.0, value, -2.0], np.float32)
    out = gelu(device, x)
    np.testing.assert_array_equal(np.isfinite(out), [True, False, True])
