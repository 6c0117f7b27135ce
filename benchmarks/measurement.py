"""Times training steps and decoding of any engine, the same way for all.

Standard library only: processes that measure PyTorch import it too.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from disturbance import CoreWatch, Measurement
from shapes import Shape

_FEWEST_STEPS = 3

# Tokens per second of a sequence of block_size tokens: one by one at the first positions, those
# between fed at once, as a prompt is, and one by one at the last.
Speeds: TypeAlias = tuple[float, float, float]


class CachedSequence(Protocol):
    """One sequence that grows, with its keys and values cached."""

    def reset(self) -> None:
        """Forget all tokens."""

    def feed(self, tokens: Sequence[int]) -> int:
        """Append tokens; returns the likeliest next one."""


def peak_megabytes() -> float:
    """The largest resident memory of this process so far.

    Not getrusage where /proc tells: after an exec its figure begins with that of the parent.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        pass
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measure_training(
    step: Callable[[], float],
    shape: Shape,
    seconds: float,
    started: float,
    peak: Callable[[], float] = peak_megabytes,
) -> Measurement:
    """Steps for that many seconds after two to warm up; tokens/s are those of the median step.

    started: the moment, by time.monotonic, when this process was started; peak: megabytes so far.
    """
    loss = step()
    first_step = time.monotonic() - started
    step()
    watch = CoreWatch()
    times: list[float] = []
    while sum(times) < seconds or len(times) < _FEWEST_STEPS:
        before = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - before)
    return {
        "tokens_per_second": shape.tokens / statistics.median(times),
        "first_step_seconds": first_step,
        "steps": len(times),
        "loss": loss,
        "peak_mb": peak(),
        "others_share": watch.others_share(),
    }


def speeds_by_steps(sequence: CachedSequence, shape: Shape) -> Callable[[], Speeds]:
    """A function that decodes one whole sequence and times it from outside."""

    def one_by_one(token: int, count: int) -> float:
        before = time.perf_counter()
        for _ in range(count):
            token = sequence.feed([token])
        return count / (time.perf_counter() - before)

    def speeds() -> Speeds:
        sequence.reset()
        early = one_by_one(0, shape.early_positions)
        before = time.perf_counter()
        token = sequence.feed(shape.middle_tokens)
        prompt = len(shape.middle_tokens) / (time.perf_counter() - before)
        return early, prompt, one_by_one(token, shape.late_positions)

    sequence.feed([0])  # what is allocated at the first call is allocated now
    return speeds


def measure_decoding(
    speeds: Callable[[], Speeds], seconds: float, peak: Callable[[], float] = peak_megabytes
) -> Measurement:
    """Whole sequences for that many seconds, one at least; told are the medians."""
    found: list[Speeds] = []
    watch = CoreWatch()
    started = time.perf_counter()
    while not found or time.perf_counter() - started < seconds:
        found.append(speeds())
    names = ("early_tokens_per_second", "prompt_tokens_per_second", "late_tokens_per_second")
    medians = (statistics.median(column) for column in zip(*found, strict=True))
    return {
        **dict(zip(names, medians, strict=True)),
        "sequences": len(found),
        "peak_mb": peak(),
        "others_share": watch.others_share(),
    }
