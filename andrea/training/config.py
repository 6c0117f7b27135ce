"""How a run trains: a small record that every checkpoint carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypedDict, TypeVar

from andrea.errors import ConfigError

from .schedule import SCHEDULES, Budget, StepBudget, TimeBudget

T = TypeVar("T")

_ABOVE_0 = (lambda value: value > 0, "above 0")
_FROM_0 = (lambda value: value >= 0, "0 or more")
# float32's smallest normal number: the engine takes what is smaller for 0, and divides by it.
_NORMAL = (lambda value: value >= 2.0**-126, "1.18e-38 or more")
_NUMBERS: dict[str, tuple[Callable[[float], bool], str]] = {
    "learning_rate": _ABOVE_0,
    "eps": _NORMAL,
    "weight_decay": _FROM_0,
    "max_norm": _FROM_0,
    "beta1": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "beta2": (lambda value: 0 <= value < 1, "at least 0 and below 1"),
    "min_ratio": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "decay_share": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "outlier_z": _FROM_0,
    "coherence_gate": (lambda value: 0 <= value <= 100, "between 0 and 100"),
}


class AdamW(TypedDict):
    """What `GPT.step` is told alike at every step of a run."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_norm: float


@dataclass(frozen=True)
class TrainConfig:
    """How a run trains; exactly one of steps and seconds says how long.

    batch_size: sequences of a micro-batch. accumulate: micro-batches of a step. seconds: of the
    whole run. warmup, eval_every, save_every: steps, 0 for none (the last step always evaluates and
    saves). min_ratio: last learning rate over the peak. max_norm: of the gradient, 0 for no
    clipping. eval_windows: validation windows of block_size tokens at most.

    Raises:
        ConfigError: a value is out of its range.
    """

    batch_size: int
    learning_rate: float
    accumulate: int = 1
    steps: int | None = None
    seconds: float | None = None
    warmup: int = 100
    min_ratio: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    # Averages the squared gradient over some 100 steps. 0.999 would need 1,000, the whole of a
    # short run; 0.95, usual for batches of a million tokens, is noisy for batches of thousands.
    beta2: float = 0.99
    eps: float = 1e-8
    max_norm: float = 1.0
    seed: int = 0
    eval_every: int = 0
    eval_windows: int = 64
    save_every: int = 0
    schedule: str = "cosine"
    decay_share: float = 0.2
    keep_last: int = 2
    outlier_z: float = 12.0
    skip_outliers: bool = False
    max_skipped: int = 10
    early_stop: int = 0
    coherence_gate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulate", "eval_windows", "keep_last", "max_skipped"):
            _check_integer(name, getattr(self, name), 1)
        for name in ("warmup", "eval_every", "save_every", "seed", "early_stop"):
            _check_integer(name, getattr(self, name), 0)
        if self.seed >= 2**64:
            raise ConfigError(f"seed must be below 2**64, got {self.seed}")
        for name, (is_fine, expected) in _NUMBERS.items():
            _check_number(name, getattr(self, name), is_fine, expected)
        if self.schedule not in tuple(SCHEDULES):
            raise ConfigError(
                f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}"
            )
        if not isinstance(self.skip_outliers, bool):
            raise ConfigError(f"skip_outliers must be true or false, got {self.skip_outliers!r}")
        if (self.steps is None) == (self.seconds is None):
            raise ConfigError("give either steps or seconds, to say how long to train")
        if self.steps is not None:
            _check_integer("steps", self.steps, 1)
        if self.seconds is not None:
            _check_number("seconds", self.seconds, *_ABOVE_0)

    @property
    def budget(self) -> Budget:
        """What the run may spend."""
        if self.steps is not None:
            return StepBudget(self.steps)
        assert self.seconds is not None
        return TimeBudget(self.seconds)

    @property
    def adamw(self) -> AdamW:
        """How the optimizer works, but for the learning rate."""
        return {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "eps": self.eps,
            "weight_decay": self.weight_decay,
            "max_norm": self.max_norm,
        }

    def tokens_per_step(self, block_size: int) -> int:
        """batch_size x accumulate x block_size."""
        return self.batch_size * self.accumulate * block_size

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data, in field order."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Build a configuration from plain data.

        Raises:
            ConfigError: a key is missing or unknown, or a value is refused.
        """
        return from_plain(cls, values, ConfigError)


def from_plain(cls: type[T], values: Mapping[str, Any], error: type[Exception]) -> T:
    """Build a record of this module's kind from plain data, or raise `error` in one line."""
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise error(f"training settings must be named values, got {values!r:.60}")
    for name in values:
        if name not in known:
            raise error(f"unknown training setting {name!r}; known: {', '.join(known)}")
    try:
        return cls(**values)
    except TypeError as problem:
        raise error(f"training settings are incomplete: {problem}") from problem


def _check_integer(name: str, value: Any, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ConfigError(f"{name} must be a whole number, {lowest} or more, got {value!r}")


def _check_number(name: str, value: Any, is_fine: Callable[[float], bool], expected: str) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and is_fine(value)):
        raise ConfigError(f"{name} must be {expected}, got {value!r}")
