"""mg_op_linear_*: the linear layers, plain, with residual and with GELU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, added, output
from reference import activations, ops
from reference.compare import assert_close
from reference.ops import Array

# Around vectors (4, 8, 16), pairs, register tiles and panels (6, 14, 16, 32, 64) and few rows (4).
SWEEP = [1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 48, 63, 64, 65]
# N, rows (outputs), columns (inputs): one size swept, then large ones around blocks of the cache.
SHAPES = [
    *[(n, 9, 17) for n in SWEEP],
    *[(9, n, 17) for n in SWEEP],
    *[(9, 17, n) for n in SWEEP],
    *[(1, 1, 1), (1, 1, 300), (1, 300, 1), (300, 1, 1), (2, 33, 100), (4, 193, 257)],
    *[(9, 2, 1), (9, 4, 1), (2, 4, 1), (9, 1, 3)],
    *[(97, 193, 257), (225, 7, 193), (256, 192, 256), (257, 33, 9), (10, 520, 70), (70, 64, 513)],
    *[(1, 770, 515), (2, 513, 260), (5, 130, 1026), (1030, 34, 66), (169, 65, 2), (30, 1100, 40)],
]
TOLERANCE = 2e-6

linear_shapes = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: "x".join(map(str, shape))
)


def inputs(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> tuple[Array, Array, Array]:
    """x [N, columns], weight [rows, columns], bias [rows]."""
    N, rows, columns = shape
    x = device.rounded(rng.standard_normal((N, columns), np.float32))
    weight = rng.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
    return x, weight, rng.standard_normal(rows, np.float32)


def exact(*arrays: Array) -> list[Array]:
    return [array.astype(np.float64) for array in arrays]


def exact_forward(device: Device, x: Array, weight: Array, bias: Array) -> Array:
    return ops.linear_forward(*exact(x, device.rounded(weight), bias))


@linear_shapes
def test_forward(device: Device, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
    x, weight, bias = inputs(device, rng, shape)
    (out,) = device.run("linear_forward", output(shape[0], shape[1]), x, weight, bias, *shape)
    expected = exact_forward(device, x, weight, device.rounded_bias(bias))
    assert_close("out", out, expected, TOLERANCE, device.unit)


@linear_shapes
def test_gelu_forward(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    x, weight, bias = inputs(device, rng, shape)
    hidden, out = device.run(
        "linear_gelu_forward",
        output(shape[0], shape[1]),
        output(shape[0], shape[1]),
        x,
        weight,
        bias,
        *shape,
    )
    expected = exact_forward(device, x, weight, device.rounded_bias(bias))
    assert_close("hidden", hidden, expected, TOLERANCE, device.unit)
    check_activated(device, out, expected)


def check_activated(device: Device, out: Array, hidden: Array) -> None:
    activated = activations.gelu_forward(hidden)
    # The engine may take gelu of hidden before or after its rounding.
    moved = device.unit * np.abs(activations.gelu_backward(hidden, hidden)).max()
    tolerance = TOLERANCE + 1.1 * moved / np.abs(activated).max()
    assert_close("out", out, activated, tolerance, device.unit)


@linear_shapes
@pytest.mark.parametrize("in_place", [False, True])
def test_residual_forward(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int], in_place: bool
) -> None:
    x, weight, bias = inputs(device, rng, shape)
    residual = rng.standard_normal((shape[0], shape[1]), np.float32)
    out_buffer = added(residual) if in_place else output(shape[0], shape[1])
    (out,) = device.run(
        "linear_residual_forward",
        out_buffer,
        out_buffer if in_place else residual,
        x,
        weight,
        bias,
        *shape,
    )
    expected = ops.residual_forward(*exact(residual), exact_forward(device, x, weight, bias))
    assert_close("out", out, expected, TOLERANCE)


# A few rows, one tile and what is beyond, and what is no multiple of anything.
WITHOUT = [(1, 7, 2), (3, 9, 17), (9, 33, 5), (16, 64, 64), (31, 65, 48), (97, 193, 257)]


@pytest.mark.parametrize("shape", WITHOUT, ids=lambda shape: "x".join(map(str, shape)))
def test_forward_without_bias_or_residual(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    x, weight, bias = inputs(device, rng, shape)
    N, rows, _ = shape
    sums = ops.linear_forward(*exact(x, device.rounded(weight)))
    (out,) = device.run("linear_forward", output(N, rows), x, weight, None, *shape)
    assert_close("out", out, sums, TOLERANCE, device.unit)
    hidden, out = device.run(
        "linear_gelu_forward", output(N, rows), output(N, rows), x, weight, None, *shape
    )
    assert_close("hidden", hidden, sums, TOLERANCE, device.unit)
    check_activated(device, out, sums)
    residual = rng.standard_normal((N, rows), np.float32)
    for with_residual, with_bias in ((False, False), (False, True), (True, False)):
        (out,) = device.run(
            "linear_residual_forward",
            output(N, rows),
            residual if with_residual else None,
            x,
            weight,
            bias if with_bias else None,
            *shape,
        )
        expected = sums + (residual if with_residual else 0.0) + (bias if with_bias else 0.0)
        assert_close("out", out, expected, TOLERANCE)


@linear_shapes
def test_backward_input(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    x, weight, _ = inputs(device, rng, shape)
    dout = device.rounded(rng.standard_normal((shape[0], shape[1]), np.float32))
    (dx,) = device.run("linear_backward_input", output(*x.shape), dout, weight, *shape)
    expected, _, _ = ops.linear_backward(*exact(dout, x, device.rounded(weight)))
    assert_close("dx", dx, expected, TOLERANCE, device.unit)


@linear_shapes
def test_gelu_backward_input(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    hidden, weight, _ = inputs(device, rng, shape)
    dout = device.rounded(rng.standard_normal((shape[0], shape[1]), np.float32))
    dhidden, out = device.run(
        "linear_gelu_backward_input", output(*hidden.shape), added(hidden), dout, weight, *shape
    )
    exact_hidden, exact_weight, exact_dout = exact(hidden, device.rounded(weight), dout)
    activated = activations.gelu_forward(exact_hidden)
    dactivated = ops.linear_backward(exact_dout, activated, exact_weight)[0]
    expected = activations.gelu_backward(dactivated, exact_hidden)
    roundings = 2 if device.rounds_between(shape[2]) else 1
    assert_close("dhidden", dhidden, expected, TOLERANCE, roundings * device.unit)
    assert_close("out", out, activated, TOLERANCE, device.unit)


@linear_shapes
@pytest.mark.parametrize("with_bias", [True, False])
def test_backward_weight(
    device: Device, rng: np.random.Generator, shape: tuple[int, int, int], with_bias: bool
) -> None:
    x, weight, bias = inputs(device, rng, shape)
    dout = device.rounded(rng.standard_normal((shape[0], shape[1]), np.float32))
    gradients = [added(weight), added(bias) if with_bias else None]
    found = device.run("linear_backward_weight", *gradients, dout, x, *shape)
    _, dweight, dbias = ops.linear_backward(*exact(dout, x, weight))
    assert_close("dweight", found[0], weight + dweight, TOLERANCE)
    if with_bias:
        assert_close("dbias", found[1], bias + dbias, TOLERANCE)


def test_operands_larger_than_what_is_packed_at_once(
    device: Device, rng: np.random.Generator
) -> None:
    """Each product's packed side holds 4 million numbers: the pieces must meet."""
    wide, deep = 4100, 1030
    x, weight, bias = inputs(device, rng, (17, wide, deep))
    (out,) = device.run("linear_forward", output(17, wide), x, weight, bias, 17, wide, deep)
    expected = exact_forward(device, x, weight, device.rounded_bias(bias))
    assert_close("out", out, expected, TOLERANCE, device.unit)
    (dx,) = device.run(
        "linear_backward_input", output(17, wide), x, weight.T.copy(), 17, deep, wide
    )
    expected = ops.linear_forward(*exact(x, device.rounded(weight)), np.zeros(wide))
    assert_close("dx", dx, expected, TOLERANCE, device.unit)
    tall, dout = device.rounded(weight), device.rounded(rng.standard_normal((wide, 9)))
    zero = added(np.zeros((9, deep)))
    (dweight,) = device.run("linear_backward_weight", zero, None, dout, tall, wide, 9, deep)
    _, expected, _ = ops.linear_backward(*exact(dout, tall), np.zeros((9, deep)))
    assert_close("dweight", dweight, expected, 2 * TOLERANCE)  # sums of 4,100 terms


def test_rows_do_not_depend_on_their_neighbours(device: Device, rng: np.random.Generator) -> None:
    """A batch that is a part of another gives the same bits, past the few rows of decoding."""
    x, weight, bias = inputs(device, rng, (40, 50, 60))
    (together,) = device.run("linear_forward", output(40, 50), x, weight, bias, 40, 50, 60)
    for begin, end in [(0, 17), (7, 40), (13, 31)]:
        part = np.ascontiguousarray(x[begin:end])
        (alone,) = device.run(
            "linear_forward", output(end - begin, 50), part, weight, bias, end - begin, 50, 60
        )
        assert alone.tobytes() == np.ascontiguousarray(together[begin:end]).tobytes()
