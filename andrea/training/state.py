"""How far a run got: the small record that every checkpoint carries, with all that guards remember.

Runs of equal steps have equal states, however often they were interrupted: a resumed run judges
its next loss as the uninterrupted one would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from andrea.errors import CheckpointError

from .config import from_plain


@dataclass
class TrainState:
    """How far a run got; consistent whenever `train` yields.

    step: steps done, skipped ones included. elapsed: seconds over all sessions. skipped: steps
    without an update since loss or gradient was not finite, skipped_in_row: the last of them.
    outliers: steps far from those before, skipped or not, outliers_in_row: the last of them since
    what is usual was measured. best_loss: lowest validation loss so far, in nats, reached at
    best_step. evaluations_above_best: in a row, the last of them. incoherent: samples in a row
    below the gate, the last of them. recent_losses, recent_norms: of the last steps that were no
    outliers, oldest first, at most guards.WINDOW. told: kinds of notices that are given once.
    """

    step: int = 0
    elapsed: float = 0.0
    skipped: int = 0
    skipped_in_row: int = 0
    outliers: int = 0
    outliers_in_row: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    evaluations_above_best: int = 0
    incoherent: int = 0
    recent_losses: list[float] = field(default_factory=list)
    recent_norms: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def to_dict(self, *, timed: bool) -> dict[str, Any]:
        """The state as plain data; the time only where it steers the run, so that runs by steps
        save the same bytes however fast they were."""
        values = asdict(self)
        if not timed:
            del values["elapsed"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainState:
        """Build a state from plain data.

        Raises:
            CheckpointError: a key is unknown, or a value has another type than it was saved with.
        """
        state = from_plain(cls, values, CheckpointError)
        for name, value in asdict(state).items():
            if not _FITS[cls.__annotations__[name]](value):
                raise CheckpointError(f"the training state's {name} can't be {value!r:.60}")
        if (state.best_loss is None) != (state.best_step is None):
            raise CheckpointError("the training state has a best loss without its step, or a step")
        return state


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# What a value that was read must be, by the type of its field.
_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _is_count,
    "int | None": lambda value: value is None or _is_count(value),
    "float": _is_number,
    "float | None": lambda value: value is None or _is_number(value),
    "list[float]": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "list[str]": lambda value: (
        isinstance(value, list) and all(isinstance(text, str) for text in value)
    ),
}
