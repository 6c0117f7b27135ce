"""What this machine can do at most: multiply-adds in registers, and reading memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disturbance import CoreWatch, Measurement
from engine_ops import EngineOps

import andrea
from andrea._library import ffi

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
        self._rounds = 1024
        while (seconds := _seconds_of(self._run)) < _SECONDS / 4:
            self._rounds *= 4
        self._rounds = max(1, round(self._rounds * _SECONDS / seconds))

    def _run(self) -> None:
        self._device.call("peak_products", self._rounds, self._operations)

    def measure(self, repeats: int = 1) -> float:
        """The median of some timings."""
        seconds = statistics.median(_seconds_of(self._run) for _ in range(repeats))
        return float(self._operations[0]) / seconds


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

    def measure(self, repeats: int = 1) -> float:
        """The median of some timings."""
        seconds = statistics.median(_seconds_of(self._run) for _ in range(repeats))
        return self._size * self._passes / seconds


def beyond_the_caches() -> int:
    """A size in bytes that no cache holds: four times the largest one, 256 MiB at least."""
    largest = 0
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 0)
        largest = max(largest, int(text[:-1]) * unit if unit else 0)
    return max(_SMALLEST_BUFFER, 4 * largest)


def available_precisions() -> list[str]:
    """The precisions that this build's CPU backend has."""
    found = []
    for precision in ("fp32", "bf16"):
        try:
            EngineOps(precision).close()
        except andrea.DeviceError:
            continue
        found.append(precision)
    return found


def machine_limits(precisions: list[str], thread_counts: list[int]) -> Measurement:
    """Peak and bandwidth for each number of threads, and what others used of the cores meanwhile.

    Returns:
        {"flops": {precision: {threads: operations/s}}, "bandwidth": {threads: bytes/s}, ...};
        numbers of threads are text, as JSON has them.
    """
    flops: dict[str, dict[str, float]] = {precision: {} for precision in precisions}
    bandwidth: dict[str, float] = {}
    result: dict[str, Any] = {"flops": flops, "bandwidth": bandwidth}
    devices = [EngineOps(precision) for precision in precisions]
    reader = ReadBandwidth(devices[0], beyond_the_caches())
    watch = CoreWatch()
    for threads in sorted(set(thread_counts)):
        andrea.set_num_threads(threads)
        for device in devices:
            flops[device.precision][str(threads)] = PeakProducts(device).measure(_REPEATS)
        bandwidth[str(threads)] = reader.measure(_REPEATS)
    result["others_share"] = watch.others_share()
    for device in devices:
        device.close()
    return result
