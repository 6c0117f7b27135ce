"""Where the norms stand, and whether the learning rate warms up: what trains, and what fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .drawings import gradient_profile, loss_curves, loss_over
from .experiment import Contrast, Experiment, Measure, OfSeed, Table, Variant, larger
from .results import Results
from .run import Run, first_over_last
from .settings import is_quick, small_model, training

_POSITIONS = ("pre", "post", "none")
_RATES = {True: (0.001, 0.004, 0.016, 0.064), False: (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 0.016, 0.032)}
# So many runs that quick ones have to be narrow, to learn something in their time.
_SIZES = {
    True: {"n_layer": 6, "n_head": 2, "n_embd": 32},
    False: {"n_layer": 12, "n_head": 4, "n_embd": 64},
}
_STEPS = {True: 300, False: 1000}
# What counts: a learning rate three times as large, a twentieth of a nat.
_TIMES, _NATS = 3.0, 0.05


def norm(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """Norms before, after, and nowhere; with warm-up and without; over learning rates."""
    quick = is_quick(mode)
    rates, steps = _RATES[quick], steps or _STEPS[quick]
    variants = tuple(
        Variant(
            _name(position, warm, rate),
            small_model(vocab_size, **_SIZES[quick], norm_position=position),
            training(
                steps,
                learning_rate=rate,
                warmup=steps // 5 if warm else 0,
                eval_every=max(steps // 3, 1),
            ),
            {
                "norms": _group(position, warm),
                "position": position,
                "warm-up": warm,
                "learning rate": rate,
            },
        )
        for position in _POSITIONS
        for warm in (True, False)
        for rate in rates
    )
    middle, step = rates[len(rates) // 2 - 1], rates[1] / rates[0]
    return Experiment(
        name="norm",
        title="Norms before, after and nowhere, with and without warm-up",
        claim=(
            "A norm before each sublayer (pre) keeps training stable at large learning rates, even "
            "without warm-up; after each sublayer (post) it needs the warm-up; without norms "
            "training fails early."
        ),
        variants=variants,
        contrasts=(
            Contrast(
                f"The highest learning rate that trains, of those tried, each {step:g} times the "
                "one before, is at least one higher for pre-norm than for post-norm, without "
                "warm-up",
                _more_rates(rates, ("pre", False), ("post", False)),
                1.0,
                unit=" steps of them",
            ),
            Contrast(
                "It is at least one higher for pre-norm than for no norms, without warm-up",
                _more_rates(rates, ("pre", False), ("none", False)),
                1.0,
                unit=" steps of them",
            ),
            Contrast(
                f"In the mean over these learning rates, warm-up lowers the loss of post-norm by "
                f"at least {_NATS} nats more than that of pre-norm",
                _warming(rates),
                _NATS,
            ),
            Contrast(
                "Before training, the gradient grows towards the last block with post-norm, beside "
                f"pre-norm: at least {_TIMES:g} times from first to last",
                larger(
                    first_over_last,
                    _name("pre", True, middle),
                    _name("post", True, middle),
                ),
                math.log10(_TIMES),
                unit=" powers of ten",
                decides=False,
            ),
        ),
        seeds=3 if quick else 5,
        mode=mode,
        measures=(
            Measure("first/last gradient at start, 10^", first_over_last, 2),
            Measure("failed", _failed, 2),
        ),
        drawings=(
            loss_over("learning rate", "norms", name="loss-over-rate"),
            gradient_profile("gradients-start", 0.0, "position", _at(middle, True)),
            loss_curves("loss", _at(middle, False), f"Learning rate {middle:g}, without warm-up."),
        ),
        tables=lambda results: (_limits(results, rates),),
        data=lambda results: _limit_data(results, rates),
        notes=(
            "A run fails where it diverges, or where its loss ends less than 0.1 nats below that "
            "of token frequencies; gradients are clipped to a norm of 1, so that most runs that "
            "fail learn nothing rather than overflow.",
            f"Learning rates are {rates[0]:g} to {rates[-1]:g}, each {step:g} times "
            "the one before: limits are known to that, and not beyond the highest.",
        ),
    )


def _group(position: str, warm: bool) -> str:
    return f"{position}, {'warm-up' if warm else 'no warm-up'}"


def _name(position: str, warm: bool, rate: float) -> str:
    return f"{_group(position, warm)}, {rate:g}"


def _at(rate: float, warm: bool) -> Callable[[Variant], bool]:
    return lambda one: one.factors["learning rate"] == rate and one.factors["warm-up"] == warm


def _failed(run: Run) -> float:
    return float(run.failed)


def highest_that_trains(runs: OfSeed, rates: Sequence[float], group: tuple[str, bool]) -> int:
    """The number of the highest learning rate that trains, from 1; 0 where none does.

    A low one may fail too: in few steps it learns little.

    Raises:
        KeyError: a run is not done.
    """
    trains = [not runs[_name(*group, rate)].failed for rate in rates]
    return max((number for number, fine in enumerate(trains, 1) if fine), default=0)


def _more_rates(
    rates: Sequence[float], one: tuple[str, bool], other: tuple[str, bool]
) -> Callable[[OfSeed], float]:
    def value(runs: OfSeed) -> float:
        numbers = [highest_that_trains(runs, rates, group) for group in (one, other)]
        if numbers in ([0, 0], [len(rates), len(rates)]):
            raise KeyError("both limits are outside of what was tried")
        return float(numbers[0] - numbers[1])

    return value


def _warming(rates: Sequence[float]) -> Callable[[OfSeed], float]:
    def gain(runs: OfSeed, position: str) -> float:
        gains = [
            runs[_name(position, False, rate)].score - runs[_name(position, True, rate)].score
            for rate in rates
        ]
        return math.fsum(gains) / len(gains)

    return lambda runs: gain(runs, "post") - gain(runs, "pre")


def _limit_data(results: Results, rates: Sequence[float]) -> dict[str, Any]:
    """The highest learning rate that trains, by the norms and by the seed; None: none does."""
    limits: dict[str, dict[str, float | None]] = {}
    for seed, runs in results.by_seed().items():
        for position in _POSITIONS:
            for warm in (True, False):
                try:
                    number = highest_that_trains(runs, rates, (position, warm))
                except KeyError:
                    continue
                limit = rates[number - 1] if number else None
                limits.setdefault(_group(position, warm), {})[str(seed)] = limit
    return {"highest_learning_rate": limits}


def _limits(results: Results, rates: Sequence[float]) -> Table:
    limits = _limit_data(results, rates)["highest_learning_rate"]
    rows = tuple(
        (group, ", ".join(_limit(rate, rates) for rate in by_seed.values()))
        for group, by_seed in limits.items()
    )
    return Table("The highest learning rate that trains, seed by seed", ("norms", "rate"), rows, 2)


def _limit(rate: float | None, rates: Sequence[float]) -> str:
    if rate is None:
        return "none"
    return f"{rate:g}" + (" or more" if rate == rates[-1] else "")
