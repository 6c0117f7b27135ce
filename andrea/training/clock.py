"""Where a run's time goes: what steers budgets in seconds, and what estimates are made of."""

from __future__ import annotations

import time


class Clock:
    """Where the time goes; `closing` is what the last evaluation and save will take."""

    def __init__(self) -> None:
        self.step_seconds = 0.0  # smoothed
        # The longest so far: of an evaluation, a save, and the caller's work after an evaluation.
        self.evaluation = self.save = self.caller = 0.0
        self.copy = (
            0.0  # of a state that is written in the background: what a save on the way costs
        )
        self._steps = 0

    def start(self, elapsed_before: float) -> None:
        """Begin to count, from what earlier sessions took."""
        self._start = time.perf_counter() - elapsed_before

    @property
    def elapsed(self) -> float:
        """Seconds of all sessions until now."""
        return time.perf_counter() - self._start

    @property
    def closing(self) -> float:
        """Seconds that the last evaluation and save, and the caller after them, will take."""
        return self.evaluation + self.save + self.caller

    def add_step(self, seconds: float) -> None:
        """Take in the time of a step: a mean of the first ten, then a running one."""
        self._steps += 1
        self.step_seconds += max(1 / self._steps, 0.1) * (seconds - self.step_seconds)
