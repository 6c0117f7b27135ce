"""What an experiment is: variants of a model, what is measured, and the claims that are judged."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from andrea.config import ModelConfig
from andrea.errors import ArgumentError
from andrea.training import TrainConfig

from .run import Run

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.lessons.pictures import Picture
    from andrea.model import GPT

    from .results import Results

MODES = ("quick", "full")
"""How much is done: minutes of two cores, or hours, with more seeds, steps and sizes."""

OfSeed = Mapping[str, Run]
"""The runs of one seed by the variant's name."""


@dataclass(frozen=True)
class Variant:
    """One of the models that stand beside each other, and how it is trained.

    factors: what tells it from the others, by name, such as {"blocks": 24, "skip": True}.
    """

    name: str
    model: ModelConfig
    train: TrainConfig
    factors: Mapping[str, Any]

    def __post_init__(self) -> None:
        # The same work each time: a number of steps, not a time.
        if self.train.steps is None or self.train.accumulate != 1:
            raise ArgumentError(f"{self.name}: train by steps, and without accumulation")

    @property
    def steps(self) -> int:
        """Steps of training."""
        assert self.train.steps is not None
        return self.train.steps


@dataclass(frozen=True)
class Measure:
    """A number of a run. title: a column's; value: from a run, None where it has none."""

    title: str
    value: Callable[[Run], float | None]
    digits: int = 3


@dataclass(frozen=True)
class Contrast:
    """A claim about an effect that each seed gives a number for.

    claim: one sentence that names the bound. value: of a seed's runs, above 0 where the claim is
    right; it raises KeyError where a seed has no answer, as without a run that it needs, and a
    value that is not finite is no answer. bound: the smallest effect that counts, or, with
    `alike`, the largest difference that doesn't. unit: of both, with a space before it. decides:
    whether the experiment's verdict needs it.
    """

    claim: str
    value: Callable[[OfSeed], float]
    bound: float
    unit: str = " nats"
    alike: bool = False
    decides: bool = True


@dataclass(frozen=True)
class Table:
    """A table beside that of the variants. left: so many columns are words, not numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclass(frozen=True)
class Drawing:
    """A picture of the results; name: of its file; caption: what is to be seen."""

    name: str
    caption: str
    draw: Callable[[Results], Picture]


@dataclass(frozen=True)
class Experiment:
    """Variants side by side, and what is to be decided.

    claim: what the course says, in a sentence. seeds: how many by default. measures: columns of
    the table beside the loss. gradient_steps: shares of the training after which gradient norms
    are measured. tables, data: what else follows from the results, for people and for JSON.
    after: measures a trained model, which it may change, into numbers by name.
    """

    name: str
    title: str
    claim: str
    variants: tuple[Variant, ...]
    contrasts: tuple[Contrast, ...]
    seeds: int
    mode: str
    measures: tuple[Measure, ...] = ()
    gradient_steps: tuple[float, ...] = (0.0, 0.5, 1.0)
    drawings: tuple[Drawing, ...] = ()
    tables: Callable[[Results], tuple[Table, ...]] | None = None
    data: Callable[[Results], Mapping[str, Any]] | None = None
    after: Callable[[GPT, PreparedData], Mapping[str, tuple[float, ...]]] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [variant.name for variant in self.variants]
        if not names or len(set(names)) < len(names):
            raise ArgumentError(f"variants need names of their own, got {', '.join(names)!r:.200}")

    def variant(self, name: str) -> Variant:
        """The variant of that name.

        Raises:
            KeyError: there is none.
        """
        return {variant.name: variant for variant in self.variants}[name]


def lower_loss(better: str, than: str) -> Callable[[OfSeed], float]:
    """By how many nats the loss of one variant is below that of another; see `Run.score`."""
    return lambda runs: runs[than].score - runs[better].score


def larger(
    measure: Callable[[Run], float | None],
    variant: str,
    than: str,
    *,
    by: Callable[[float, float], float] = operator.sub,
) -> Callable[[OfSeed], float]:
    """By how much a number of one variant's run is above that of another's: `by` of the two."""

    def value(runs: OfSeed) -> float:
        one, other = measure(runs[variant]), measure(runs[than])
        if one is None or other is None:
            raise KeyError(variant)
        return by(one, other)

    return value
