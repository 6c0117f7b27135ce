"""Where numbers become Elements: rounded to nearest, ties to even, and NaN stays NaN.

In fp32 an Element is a float32, so the same tests say that nothing is rounded.
"""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, output
from reference import bfloat16
from reference.ops import Array

TIES = (np.arange(0x3F80, 0x3F90, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
BESIDE_TIES = np.concatenate([np.nextafter(TIES, np.float32(to)) for to in (0, 2)])


def values(rng: np.random.Generator) -> Array:
    """Ties, their neighbours, and numbers of all sizes that aren't near float32's limits."""
    spread = rng.standard_normal(200) * 10.0 ** rng.integers(-30, 30, 200)
    beside = np.concatenate([TIES, BESIDE_TIES])
    return np.concatenate([beside, -beside, spread.astype(np.float32)])


def test_the_reference_rounds_to_the_nearest(rng: np.random.Generator) -> None:
    every = bfloat16.from_bits(np.arange(0x7F80, dtype=np.uint16)).astype(float)
    x = np.abs(values(rng)).astype(float)
    above = np.searchsorted(every, x)
    # Twice the distance to the middle of the two neighbours: exact in float64.
    side = 2 * x - every[above - 1] - every[above]
    to_even = np.where(above % 2 == 0, every[above], every[above - 1])
    expected = np.where(side == 0, to_even, np.where(side > 0, every[above], every[above - 1]))
    np.testing.assert_array_equal(bfloat16.rounded(x.astype(np.float32)), expected)
    assert (bfloat16.rounded(TIES) != TIES).all()


def test_the_reference_keeps_what_is_not_finite() -> None:
    bad = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    np.testing.assert_array_equal(bfloat16.rounded(bad), [np.inf, -np.inf, np.nan, np.nan])


def test_results(device: Device, rng: np.random.Generator) -> None:
    """A bias that nothing is added to."""
    bias = values(rng)
    x, weight = np.zeros((5, 1), np.float32), np.zeros((bias.size, 1), np.float32)
    (out,) = device.run("linear_forward", output(5, bias.size), x, weight, bias, 5, bias.size, 1)
    np.testing.assert_array_equal(out, np.tile(device.rounded(bias), (5, 1)))


@pytest.mark.parametrize("N", [1, 40])
def test_weights(device: Device, rng: np.random.Generator, N: int) -> None:
    """Inputs of a 1 among zeros pick weights: in the product for few rows, and in the large one."""
    weight = values(rng).reshape(-1, 4).copy()
    x = np.eye(4, dtype=np.float32)[np.arange(N) % 4]
    zero = np.zeros((N, len(weight)), np.float32)
    bias = np.zeros(len(weight), np.float32)
    (out,) = device.run(
        "linear_residual_forward", output(*zero.shape), zero, x, weight, bias, N, len(weight), 4
    )
    np.testing.assert_array_equal(out, device.rounded(weight).T[np.arange(N) % 4])


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_what_is_not_finite_is_not_hidden(device: Device, bits: int) -> None:
    """Infinities and NaNs; to add half a unit to the last would carry it to 0."""
    bad = np.array(bits, np.uint32).view(np.float32)
    x, weight = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)
    weight[1, 2] = bad
    bias = np.zeros(4, np.float32)
    bias[3] = bad
    (out,) = device.run("linear_forward", output(2, 4), x, weight, bias, 2, 4, 3)
    np.testing.assert_array_equal(out, np.tile([3.0, bad, 3.0, bad], (2, 1)))
