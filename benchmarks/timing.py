"""Times calls that return when they are done, or, on a GPU, when they are queued.

Standard library only: processes that measure PyTorch import it too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_FEWEST, _MOST = 3, 300  # timings
_BATCH_SECONDS = 0.002  # of queued calls: a hundred times what waiting for them costs
_LARGEST_BATCH = 256


@dataclass(frozen=True)
class Times:
    """Seconds of one call, one figure a timing; `calls` were made for all of them together."""

    seconds: list[float]
    calls: int


def time_calls(
    run: Callable[[], object], wait: Callable[[], object] | None, seconds: float
) -> Times:
    """Calls for about that many seconds, each timed; with `wait` in batches that end with it."""

    def timed(batch: int) -> float:
        before = time.perf_counter()
        for _ in range(batch):
            run()
        if wait is not None:
            wait()
        return time.perf_counter() - before

    batch, calls = 1, 0
    if wait is not None:
        wait()  # for what was queued before
        while batch < _LARGEST_BATCH:
            calls += batch
            if timed(batch) >= _BATCH_SECONDS:
                break
            batch *= 2
    times: list[float] = []
    total = 0.0
    while (total < seconds or len(times) < _FEWEST) and len(times) < _MOST:
        taken = timed(batch)
        total += taken
        calls += batch
        times.append(taken / batch)
    return Times(times, calls)
