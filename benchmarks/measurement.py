"""Times training steps and decoding of any engine, the same way for all.

Standard library only: processes that measure PyTorch import it too.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from disturbance import CoreWatch, Measurement
from shapes import Shape

_FEWEST_STEPS = 3


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


def measure_decoding(
    sequence: CachedSequence,
    shape: Shape,
    seconds: float,
    peak: Callable[[], float] = peak_megabytes,
) -> Measurement:
    """Whole sequences of block_size tokens for that many seconds, one at least.

    Token by token at the first and the last positions; what lies between is fed at once, as a
    prompt is.
    """
    early, late = shape.early_positions, shape.late_positions
    middle = [position % shape.vocab_size for position in range(shape.block_size - early - late)]

    def one_by_one(token: int, count: int) -> float:
        before = time.perf_counter()
        for _ in range(count):
            token = sequence.feed([token])
        return count / (time.perf_counter() - before)

    sequence.feed([0])  # what is allocated at the first call is allocated now
    speeds: list[tuple[float, float, float]] = []
    watch = CoreWatch()
    started = time.perf_counter()
    while not speeds or time.perf_counter() - started < seconds:
        sequence.reset()
        first = one_by_one(0, early)
        before = time.perf_counter()
        token = sequence.feed(middle)
        prompt = len(middle) / (time.perf_counter() - before)
        speeds.append((first, prompt, one_by_one(token, late)))
    names = ("early_tokens_per_second", "prompt_tokens_per_second", "late_tokens_per_second")
    medians = (statistics.median(column) for column in zip(*speeds, strict=True))
    return {
        **dict(zip(names, medians, strict=True)),
        "sequences": len(speeds),
        "peak_mb": peak(),
        "others_share": watch.others_share(),
    }
