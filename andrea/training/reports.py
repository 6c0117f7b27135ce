"""What the training loop tells after each step: plain data, for whoever iterates over it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Notice:
    """A line for the user about something that a guard saw.

    kind: "skipped", "outlier", "not learning", "over-fit", "incoherent", "save failed", ...
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Evaluation:
    """Validation loss in nats per token and in bits per byte of text; is_best: the lowest yet."""

    loss: float
    bits_per_byte: float
    is_best: bool


@dataclass(frozen=True)
class StepReport:
    """What happened in one step.

    step counts from 1; steps is their number where it is known. loss: mean training loss in nats.
    gradient_norm: before clipping. tokens: seen since the beginning. tokens_per_second: of recent
    steps, without evaluations. elapsed: seconds, of all sessions where time is the budget, else of
    this one. progress: 0..1. seconds_left: estimated where steps are the budget. skipped: nothing
    was updated, since loss or gradient was not finite or far too large. saved: the checkpoint that
    got onto the disk since the last report. notices: for the user. stopped: why a guard ends the
    run with this step.
    """

    step: int
    steps: int | None
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    tokens_per_second: float
    elapsed: float
    progress: float
    seconds_left: float
    skipped: bool
    evaluation: Evaluation | None
    saved: Path | None
    notices: tuple[Notice, ...]
    stopped: str | None
    is_last: bool
