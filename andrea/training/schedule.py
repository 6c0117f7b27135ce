"""When a run ends and how its learning rate moves until then.

A budget turns steps done and seconds spent into progress 0..1; a schedule turns progress into a
factor of the peak learning rate. Both are small on purpose: another schedule is one more class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """How the learning rate follows a run."""

    def factor(self, step: int, progress: float) -> float:
        """Factor of the peak learning rate for the step after `step` steps, at `progress` 0..1."""
        ...


@dataclass(frozen=True)
class WarmupCosine:
    """Linear warm-up over the first `warmup` steps, multiplied onto a cosine to `min_ratio`.

    The warm-up counts steps even where progress is time, because what it waits for, AdamW's
    moments, fills by steps. The cosine is that of SGDR (Loshchilov & Hutter 2017), one period.
    """

    warmup: int
    min_ratio: float = 0.1

    def factor(self, step: int, progress: float) -> float:
        """Factor of the peak learning rate for the step after `step` steps, at `progress` 0..1."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(max(progress, 0.0), 1.0)))
        return warm * (self.min_ratio + (1.0 - self.min_ratio) * cosine)


class Budget(Protocol):
    """What a run may spend. Seconds count from the beginning of the run; `closing` is what the
    last evaluation and the last save will take."""

    def progress(self, step: int, elapsed: float, closing: float) -> float:
        """Share of the budget that is spent, 0..1, after `step` steps and `elapsed` seconds."""
        ...

    def is_spent(self, step: int, elapsed: float, closing: float, step_seconds: float) -> bool:
        """Whether there is no room for another step."""
        ...

    def seconds_left(self, step: int, elapsed: float, step_seconds: float) -> float:
        """Seconds until the end, estimated where steps are the budget."""
        ...


@dataclass(frozen=True)
class StepBudget:
    """A number of steps: progress is a pure function of the step, so a run repeats bit for bit."""

    steps: int

    def progress(self, step: int, elapsed: float, closing: float) -> float:
        """step / steps."""
        return min(step / self.steps, 1.0)

    def is_spent(self, step: int, elapsed: float, closing: float, step_seconds: float) -> bool:
        """Whether all steps are done."""
        return step >= self.steps

    def seconds_left(self, step: int, elapsed: float, step_seconds: float) -> float:
        """Steps left times the seconds of one."""
        return max(self.steps - step, 0) * step_seconds


@dataclass(frozen=True)
class TimeBudget:
    """A time: the schedule ends when it does. Such a run depends on the machine's speed; to repeat
    it bit for bit, give the number of steps that it took."""

    seconds: float

    def progress(self, step: int, elapsed: float, closing: float) -> float:
        """elapsed over the seconds that steps may use."""
        usable = self.seconds - closing
        return min(elapsed / usable, 1.0) if usable > 0 else 1.0

    def is_spent(self, step: int, elapsed: float, closing: float, step_seconds: float) -> bool:
        """Whether the time does not suffice for another step and the closing."""
        return elapsed + step_seconds + closing >= self.seconds

    def seconds_left(self, step: int, elapsed: float, step_seconds: float) -> float:
        """What the budget leaves."""
        return max(self.seconds - elapsed, 0.0)
