"""What a CPU or GPU can do at most: multiply-adds in registers, large products, reading memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disturbance import CoreWatch, Measurement
from engine_ops import EngineOps

import andrea
from andrea._library import cuda_info, ffi

_SECONDS = 0.02  # of one timing: long beside waking the threads, short beside a change of clock
_REPEATS = 7
_SMALLEST_BUFFER = 256 << 20


def _seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class PeakProducts:
    """Operations per second of multiply-adds in registers, by all threads together."""

    def __init__(self, device: EngineOps) -> None:
        self._device = device
        self._operations = ffi.new("double *")
        self._rounds = 1 if device.is_gpu else 1024
        while (seconds := _seconds_of(self._run)) < _SECONDS / 4:
            self._rounds *= 4
        self._rounds = max(1, round(self._rounds * _SECONDS / seconds))

    def _run(self) -> None:
        self._device.call("peak_products", self._rounds, self._operations)
        self._device.synchronize()

    def measure(self, repeats: int = 1) -> float:
        """The median of some timings."""
        seconds = statistics.median(_seconds_of(self._run) for _ in range(repeats))
        return float(self._operations[0]) / seconds


class LargeProduct:
    """Operations per second of a square linear layer, as large as is worth while: up to 8192.

    What a GPU's products can reach: its best instructions are cuBLASLt's, not those of
    PeakProducts.
    """

    def __init__(self, device: EngineOps) -> None:
        self._device = device
        self._size, self._passes = 128, 1
        seconds = 0.0
        while self._size < 8192 and seconds < _SECONDS / 4:
            device.release()
            self._size *= 2
            self._prepare()
            self._run()
            seconds = _seconds_of(self._run)
        self._passes = max(1, round(_SECONDS / seconds))

    def _prepare(self) -> None:
        size, device = self._size, self._device
        x, y = device.elements(size * size), device.elements(size * size)
        self._operands = (y, x, device.floats(size * size), device.floats(size), size, size, size)

    def _run(self) -> None:
        for _ in range(self._passes):
            self._device.call("linear_forward", *self._operands)
        self._device.synchronize()

    def measure(self, repeats: int = 1) -> float:
        """The median of some timings."""
        seconds = statistics.median(_seconds_of(self._run) for _ in range(repeats))
        return 2.0 * self._size**3 * self._passes / seconds


class ProductRate:
    """What products are held against: on a CPU multiply-adds in registers; on a GPU these or a
    large product, whichever is more."""

    def __init__(self, precision: str, device: str) -> None:
        self._own = EngineOps(precision, device)
        self._registers = PeakProducts(self._own)
        self._product = LargeProduct(self._own) if self._own.is_gpu else None

    def close(self) -> None:
        self._own.close()

    def measure(self, repeats: int = 1) -> float:
        return max(self.parts(repeats).values())

    def parts(self, repeats: int = 1) -> dict[str, float]:
        """Both figures by name."""
        found = {"registers": self._registers.measure(repeats)}
        if self._product is not None:
            found["large product"] = self._product.measure(repeats)
        return found


class ReadBandwidth:
    """Bytes per second that all threads together read from a buffer of the engine's memory."""

    def __init__(self, device: EngineOps, size: int) -> None:
        self._device, self._size = device, size
        self._memory = device.floats(-(-size // 4))
        self._result = device.floats(1)
        # A small buffer is read several times in one timing.
        self._passes = 1
        self._run()
        while (seconds := _seconds_of(self._run)) < _SECONDS / 4:
            self._passes *= 4
        self._passes = max(1, round(self._passes * _SECONDS / seconds))

    def _run(self) -> None:
        for _ in range(self._passes):
            self._device.call("read", self._result, self._memory, self._size)
        self._device.synchronize()

    def measure(self, repeats: int = 1) -> float:
        """The median of some timings."""
        seconds = statistics.median(_seconds_of(self._run) for _ in range(repeats))
        return self._size * self._passes / seconds


def beyond_the_caches(device: str) -> int:
    """A size in bytes that no cache holds: four times the largest one, 256 MiB at least.

    GPUs have 128 MiB at most (B200), and a simulated one has none.
    """
    if device != "cpu":
        return _SMALLEST_BUFFER << 2 if not cuda_info().simulated else 1 << 16
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
        largest = max(largest, int(text[:-1]) * unit if unit else 0)
    return max(_SMALLEST_BUFFER, 4 * largest)


def available_precisions(device: str) -> list[str]:
    """The precisions that this build has on the device.

    Raises:
        DeviceError: there is no such device.
    """
    found = []
    for precision in ("fp32", "bf16"):
        try:
            EngineOps(precision, device).close()
        except andrea.DeviceError:
            if device != "cpu" and not found:
                raise
            continue
        found.append(precision)
    return found


def machine_limits(precisions: list[str], thread_counts: list[int], device: str) -> Measurement:
    """Peak and bandwidth for each number of threads, and what others used of the cores meanwhile.

    Returns:
        {"flops": {precision: {threads: operations/s}}, "bandwidth": {threads: bytes/s}, ...};
        numbers of threads are text, as JSON has them. A GPU's don't depend on them; of what its
        products can reach, "products" has the parts.
    """
    flops: dict[str, dict[str, float]] = {precision: {} for precision in precisions}
    parts: dict[str, dict[str, float]] = {}
    bandwidth: dict[str, float] = {}
    result: dict[str, Any] = {"flops": flops, "bandwidth": bandwidth, "products": parts}
    rates = {precision: ProductRate(precision, device) for precision in precisions}
    memory = EngineOps(precisions[0], device)
    reader = ReadBandwidth(memory, beyond_the_caches(device))
    watch = CoreWatch()
    for threads in sorted(set(thread_counts)):
        andrea.set_num_threads(threads)
        for precision, rate in rates.items():
            parts[precision] = rate.parts(_REPEATS)
            flops[precision][str(threads)] = max(parts[precision].values())
        bandwidth[str(threads)] = reader.measure(_REPEATS)
    result["others_share"] = watch.others_share()
    for own in (*rates.values(), memory):
        own.close()
    return result
