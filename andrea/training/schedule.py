"""When a run ends and how its learning rate moves until then.

A budget turns steps done and seconds spent into progress 0..1; a schedule turns progress into a
factor of the peak learning rate. Both are small on purpose: another schedule is one more class and
a line in SCHEDULES.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .config import TrainConfig


class Schedule(Protocol):
    """How the learning rate follows a run."""

    def factor(self, step: int, progress: float) -> float:
        """Factor of the peak learning rate for the step after `step` steps, at `progress` 0..1."""
        ...


@dataclass(frozen=True)
class _Warmup:
    """Linear warm-up over the first `warmup` steps, multiplied onto what progress says.

    The warm-up counts steps even where progress is time, because what it waits for, AdamW's
    moments, fills by steps. `min_ratio` is the last learning rate over the peak.
    """

    warmup: int
    min_ratio: float = 0.1

    def factor(self, step: int, progress: float) -> float:
        """Factor of the peak learning rate for the step after `step` steps, at `progress` 0..1."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        share = self._share(min(max(progress, 0.0), 1.0))
        return warm * (self.min_ratio + (1.0 - self.min_ratio) * share)

    def _share(self, progress: float) -> float:
        """What is left of the way from the peak to the least: 1 at the peak, 0 at the least."""
        raise NotImplementedError


class WarmupCosine(_Warmup):
    """Warm-up, then half a cosine: SGDR's (Loshchilov & Hutter 2017), one period."""

    def _share(self, progress: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * progress))


class WarmupLinear(_Warmup):
    """Warm-up, then a straight line down."""

    def _share(self, progress: float) -> float:
        return 1.0 - progress


class WarmupConstant(_Warmup):
    """Warm-up, then the peak for ever; min_ratio says nothing."""

    def _share(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class WarmupStableDecay(_Warmup):
    """Warm-up, the peak, and a straight line down over the last `decay_share` of the run.

    WSD (Hu et al. 2024, MiniCPM): a longer run shares all steps before the decay with a shorter
    one, so that a run can be prolonged from a checkpoint of its stable part.
    """

    decay_share: float = 0.2

    def _share(self, progress: float) -> float:
        if progress <= 1.0 - self.decay_share:
            return 1.0
        return (1.0 - progress) / self.decay_share


def schedule_of(config: TrainConfig) -> Schedule:
    """The schedule that a configuration names, with its settings."""
    return SCHEDULES[config.schedule](config)


SCHEDULES: dict[str, Callable[[TrainConfig], Schedule]] = {
    "cosine": lambda config: WarmupCosine(config.warmup, config.min_ratio),
    "linear": lambda config: WarmupLinear(config.warmup, config.min_ratio),
    "constant": lambda config: WarmupConstant(config.warmup, config.min_ratio),
    "wsd": lambda config: WarmupStableDecay(config.warmup, config.min_ratio, config.decay_share),
}


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
