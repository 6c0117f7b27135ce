"""What one training run of an experiment gives: one variant with one seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What float32 cannot tell from 0: the smallest number above 0 that it has.
_SMALLEST = 2.0**-149
# Nats below the loss of token frequencies that a model has to reach to have learned from context.
_LEARNED = 0.1


@dataclass(frozen=True)
class Run:
    """One variant trained with one seed; losses are in nats per token.

    losses: of the training batch of each step, before its update. norms: of the whole gradient of
    each step, before clipping. validation: (steps done, loss on the validation text).
    gradients: by steps done, the norm of the gradient of each block's parameters together.
    stream: root mean square of the residual stream before training, on a sequence: before the
    first block, after the first, and so on. diverged: why training was stopped, or None.
    guess: ln vocab_size, the loss of holding all tokens for equally likely. frequencies: that of
    knowing how frequent each is in the training text. after: numbers by name that the experiment
    measured on the trained model. steps: that were done.
    """

    variant: str
    seed: int
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    validation: tuple[tuple[int, float], ...]
    gradients: Mapping[int, tuple[float, ...]]
    stream: tuple[float, ...]
    diverged: str | None
    guess: float
    frequencies: float
    after: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Steps that were done."""
        return len(self.losses)

    @property
    def loss(self) -> float | None:
        """The last validation loss; None of a run that diverged."""
        return None if self.diverged or not self.validation else self.validation[-1][1]

    @property
    def score(self) -> float:
        """What variants are compared by: the last validation loss, and of a run that diverged the
        loss of guessing, which is as good as what it has learned."""
        return self.guess if self.loss is None else self.loss

    @property
    def failed(self) -> bool:
        """Whether it diverged, or ended with little more than token frequencies: not even 0.1 nats
        below their loss."""
        return self.score > self.frequencies - _LEARNED

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data; a number that is not finite is None."""
        return {
            "variant": self.variant,
            "seed": self.seed,
            "diverged": self.diverged,
            "validation_loss": self.loss,
            "score": self.score,
            "failed": self.failed,
            "losses": _finite(self.losses),
            "gradient_norms": _finite(self.norms),
            "validation": [[step, *_finite((loss,))] for step, loss in self.validation],
            "block_gradient_norms": {
                str(step): _finite(norms) for step, norms in self.gradients.items()
            },
            "stream_at_start": _finite(self.stream),
            "after": {name: _finite(numbers) for name, numbers in self.after.items()},
        }


def first_over_last(run: Run, at_end: bool = False) -> float | None:
    """Gradient norm of the first block over that of the last, as a power of ten: 0 where they are
    equal, -3 where the first has a thousandth. Before training, or where it was measured last.

    A gradient that float32 holds for 0 counts as the smallest number that it has; None where a
    norm was not finite.
    """
    if not run.gradients:
        return None
    norms = run.gradients[(max if at_end else min)(run.gradients)]
    if not all(map(math.isfinite, norms)):
        return None
    return math.log10(max(norms[0], _SMALLEST)) - math.log10(max(norms[-1], _SMALLEST))


def stream_growth(run: Run) -> float | None:
    """How many times as large the residual stream is after all blocks as before them, before
    training; None where it could not be read."""
    return run.stream[-1] / run.stream[0] if run.stream and run.stream[0] else None


def _finite(numbers: tuple[float, ...]) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in numbers]
