"""mg_op_read_stream and mg_op_add_to_stream: the residual stream where a layer has no norm."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import Device, added, output

# Around vectors, and around what a thread or block takes at once.
COUNTS = [1, 3, 4, 7, 8, 15, 16, 17, 63, 65, 255, 257, 1023, 1025, 32768, 32769, 70001]


@pytest.mark.parametrize("count", COUNTS)
def test_read_stream(device: Device, rng: np.random.Generator, count: int) -> None:
    x = rng.standard_normal(count, np.float32)
    (out,) = device.run("read_stream", output(count), x, count)
    assert out.tobytes() == device.rounded(x).tobytes()


@pytest.mark.parametrize("count", COUNTS)
def test_add_to_stream(device: Device, rng: np.random.Generator, count: int) -> None:
    """float32 sums, the same bits as NumPy's; as Elements they are rounded."""
    before = rng.standard_normal(count, np.float32)
    dout = device.rounded(rng.standard_normal(count, np.float32))
    dx = added(before)
    elements = dx if device.precision == "fp32" else output(count)
    found = device.run("add_to_stream", dx, elements, dout, count)
    assert found[0].tobytes() == (before + dout).tobytes()
    assert found[-1].tobytes() == device.rounded(before + dout).tobytes()
    (alone,) = device.run("add_to_stream", added(before), None, dout, count)
    assert alone.tobytes() == found[0].tobytes()


def test_what_is_not_finite_is_not_hidden(device: Device) -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    (out,) = device.run("read_stream", output(4), special, 4)
    np.testing.assert_array_equal(out, special)
    (dx,) = device.run("add_to_stream", added(np.ones(4)), None, special, 4)
    np.testing.assert_array_equal(dx, special + 1.0)
