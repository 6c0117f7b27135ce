"""mg_op_peak_products and mg_op_read, which benchmarks time: that they do all that they say."""

from __future__ import annotations

import numpy as np
import pytest

from ops.device import THREAD_COUNTS, Device, OpError, output


def operations(device: Device, rounds: int) -> float:
    """The count of the last of Device.run's calls, which is that with the most threads."""
    count = device.ffi.new("double*")
    device.run("peak_products", rounds, count)
    return float(count[0])


def test_every_thread_counts_its_operations(device: Device) -> None:
    is_cpu = device.kind.backend == "cpu"
    rounds, threads = (1000, THREAD_COUNTS[-1]) if is_cpu else (2, 32)  # a simulated GPU's are slow
    once = operations(device, rounds)
    assert once > 0 and once % (rounds * threads) == 0
    assert operations(device, 4 * rounds) == 4 * once


def test_no_rounds_are_refused(device: Device) -> None:
    with pytest.raises(OpError, match="peak_products: a size is 0"):
        operations(device, 0)


@pytest.mark.parametrize("count", [4096, 300_000])
def test_all_memory_is_read(device: Device, count: int) -> None:
    """The sum of ones is their number, less what fits no whole vectors at the end of a task."""
    memory = np.ones(count, np.float32).view(np.uint8)
    (total,) = device.run("read", output(1), memory, memory.nbytes)
    assert 0.98 * count <= total[0] <= count
