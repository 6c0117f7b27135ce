"""mg_op_sum and mg_op_global_norm: exact to the result's rounding, for any length and range."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, output
from reference.compare import assert_close

COUNTS = [1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 255, 256, 257, 1000, 65536, 65537, 300001]
TOLERANCE = 3e-7


@pytest.mark.parametrize("count", COUNTS)
def test_sum(device: Device, rng: np.random.Generator, count: int) -> None:
    x = rng.random(count, np.float32)
    (total,) = device.run("sum", output(1), x, count)
    assert_close("sum", total[0], x.sum(dtype=np.float64), TOLERANCE)


@pytest.mark.parametrize("count", COUNTS)
def test_global_norm(device: Device, rng: np.random.Generator, count: int) -> None:
    x = rng.standard_normal(count, np.float32)
    (norm,) = device.run("global_norm", output(1), x, count)
    assert_close("norm", norm[0], np.sqrt((x.astype(float) ** 2).sum()), TOLERANCE)


# Squares of numbers below 1.1e-19 are 0 to the CPU: of these there are few enough at 1e-16.
@pytest.mark.parametrize("scale", [1e-16, 1e15])
def test_global_norm_of_small_and_large_values(
    device: Device, rng: np.random.Generator, scale: float
) -> None:
    x = (scale * rng.standard_normal(1000)).astype(np.float32)
    (norm,) = device.run("global_norm", output(1), x, 1000)
    assert_close("norm", norm[0], np.sqrt((x.astype(float) ** 2).sum()), TOLERANCE)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 500, 4095])
def test_one_bad_value_makes_the_norm_not_finite(device: Device, bad: float, place: int) -> None:
    x = np.ones(4096, np.float32)
    x[place] = bad
    (norm,) = device.run("global_norm", output(1), x, 4096)
    assert not np.isfinite(norm[0])
