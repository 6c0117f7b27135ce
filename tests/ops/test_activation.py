"""mg_op_activation_*: every activation against the reference, over its range and at its edges.

The one that products are fused with is test_gelu.py's and test_linear.py's.
"""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, OpError, added, output
from reference import activations
from reference.activations import NAMES
from reference.compare import assert_close
from reference.ops import Array

# The engine's numbers are places in the reference's list.
ELEMENTWISE = [name for name in NAMES if name != "swiglu"]
# N rows of M outputs: around vectors, and more than a thread or block takes at once.
SIZES = [(1, 1), (2, 3), (5, 8), (3, 17), (7, 33), (130, 64), (1, 40001), (33, 1025)]
TOLERANCE = 1e-6
EVERYWHERE = np.linspace(-12.0, 12.0, 2401, dtype=np.float32)

every_activation = pytest.mark.parametrize("name", NAMES)


def number_of(name: str) -> int:
    return NAMES.index(name)


def forward(device: Device, name: str, x: Array) -> Array:
    """x (N, M), for swiglu (N, 2 M) -> (N, M)."""
    N, M = x.shape[0], x.shape[1] // (2 if name == "swiglu" else 1)
    (out,) = device.run("activation_forward", number_of(name), output(N, M), x, N, M)
    return out


def backward(device: Device, name: str, x: Array, dout: Array) -> tuple[Array, Array]:
    """The gradient of x, in whose place it comes, and the output, which comes in that of dout."""
    N, M = dout.shape
    hidden, gradient = device.run(
        "activation_backward", number_of(name), added(x), added(dout), N, M
    )
    return hidden, gradient


@every_activation
@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
def test_forward_and_backward(
    device: Device, rng: np.random.Generator, name: str, size: tuple[int, int]
) -> None:
    N, M = size
    width = 2 * M if name == "swiglu" else M
    x = device.rounded((2.0 * rng.standard_normal((N, width))).astype(np.float32))
    dout = device.rounded(rng.standard_normal((N, M), np.float32))
    exact = activations.forward(name, x.astype(float))
    out = forward(device, name, x)
    assert_close("out", out, exact, TOLERANCE, device.unit)
    dx, out_again = backward(device, name, x, dout)
    expected = activations.backward(name, dout.astype(float), x.astype(float))
    assert_close("dx", dx, expected, TOLERANCE, device.unit)
    assert out_again.tobytes() == out.tobytes()


@pytest.mark.parametrize("size", [(3, 300001)], ids=["3x300001"])
def test_more_gates_than_a_grid_takes_at_once(
    device: Device, rng: np.random.Generator, size: tuple[int, int]
) -> None:
    """A GPU's threads then go on to others, in this row or the next."""
    N, M = size
    x = device.rounded(rng.standard_normal((N, 2 * M), np.float32))
    dout = device.rounded(rng.standard_normal((N, M), np.float32))
    out = forward(device, "swiglu", x)
    exact = activations.forward("swiglu", x.astype(float))
    assert_close("out", out, exact, TOLERANCE, device.unit)
    dx, out_again = backward(device, "swiglu", x, dout)
    expected = activations.backward("swiglu", dout.astype(float), x.astype(float))
    assert_close("dx", dx, expected, TOLERANCE, device.unit)
    assert out_again.tobytes() == out.tobytes()


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_everywhere(device: Device, name: str) -> None:
    """Each value is compared with its own size, where it is not yet lost in the smallest floats."""
    x = device.rounded(EVERYWHERE)[:, None]
    exact = activations.forward(name, x.astype(float))
    out = forward(device, name, x)
    assert_close("out", out, exact, 2e-7, device.unit)
    nonzero = (np.abs(x) < 4) & (exact != 0)
    assert (np.abs(out[exact == 0]) < 1e-15).all()
    ratio = out[nonzero] / exact[nonzero]
    assert_close("out / exact", ratio, np.ones(ratio.size), 2 * TOLERANCE, device.unit)
    slope, _ = backward(device, name, x, np.ones_like(x))
    exact = activations.backward(name, np.ones(x.shape), x.astype(float))
    assert_close("derivative", slope, exact, TOLERANCE, device.unit)


def test_gates_everywhere(device: Device, rng: np.random.Generator) -> None:
    """swiglu in its gate's range, with whatever is let through."""
    gate = device.rounded(EVERYWHERE)[:, None]
    passed = device.rounded(rng.standard_normal(gate.shape, np.float32))
    x = np.concatenate([gate, passed], axis=1)
    exact = activations.forward("swiglu", x.astype(float))
    out = forward(device, "swiglu", x)
    nonzero = exact != 0
    ratio = out[nonzero] / exact[nonzero]
    assert_close("out / exact", ratio, np.ones(ratio.size), 2 * TOLERANCE, device.unit)
    assert not out[~nonzero].any()
    dx, _ = backward(device, "swiglu", x, np.ones_like(gate))
    exact = activations.backward("swiglu", np.ones(gate.shape), x.astype(float))
    for part, name in enumerate(("of the gate", "of what it lets through")):
        assert_close(name, dx[:, part], exact[:, part], TOLERANCE, device.unit)


@every_activation
def test_far_out(device: Device, name: str) -> None:
    """To the right an identity or a square, to the left 0; and 0 at 0."""
    x = device.rounded(np.array([0.0, -0.0, 10.0, 40.0, 1e4, -40.0, -1e4], np.float32))
    limits, slopes = np.maximum(x, 0.0), np.array([0.5, 0.5, 1, 1, 1, 0, 0])
    if name == "relu2":
        limits, slopes = limits**2, 2 * limits
    elif name == "relu":
        slopes[:2] = 0
    given = np.stack([x, np.ones_like(x)], axis=1) if name == "swiglu" else x[:, None]
    out = forward(device, name, given)[:, 0]
    dx, _ = backward(device, name, given, np.ones((x.size, 1), np.float32))
    # sigmoid(10) is not 1 yet, but for 5e-5; the others are as near as exp goes.
    near = 5e-4 if name == "swiglu" else 1e-20
    assert_close("out", out, limits, near, device.unit)
    assert_close("derivative", dx[:, 0], slopes, near, device.unit)


@every_activation
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden(device: Device, name: str, value: float) -> None:
    """In the input, for swiglu in either half, and in what comes back."""
    halves = 2 if name == "swiglu" else 1
    for place in range(halves):
        x = np.ones((3, halves), np.float32)
        x[1, place] = value
        out = forward(device, name, x)[:, 0]
        np.testing.assert_array_equal(np.isfinite(out), [True, False, True])
        dx, _ = backward(device, name, x, np.ones((3, 1), np.float32))
        assert np.isfinite(dx[[0, 2]]).all()
        if np.isnan(value):
            assert np.isnan(dx[1]).any()
    dout = np.array([[1.0], [value], [1.0]], np.float32)
    dx, _ = backward(device, name, np.ones((3, halves), np.float32), dout)
    np.testing.assert_array_equal(np.isfinite(dx).all(axis=1), [True, False, True])


@pytest.mark.parametrize("number", [-1, len(NAMES)])
def test_unknown_activations_are_refused(device: Device, number: int) -> None:
    with pytest.raises(OpError, match=f"activation is {number} but must be 0 to {len(NAMES) - 1}"):
        device.run("activation_forward", number, output(1, 1), np.ones((1, 1), np.float32), 1, 1)
