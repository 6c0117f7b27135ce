"""Intervals and verdicts of experiments: against tables and a computation of another kind."""

from __future__ import annotations

import math

import numpy as np
import pytest

from andrea.errors import ArgumentError
from andrea.lessons.experiments.statistics import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Summary,
    Verdict,
    all_of,
    judge,
    judge_alike,
    student_t,
    summary,
)

# Two-sided 5% points, as any table of Student's t has them (Abramowitz & Stegun, table 26.10).
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 29: 2.045}


@pytest.mark.parametrize(("freedom", "expected"), TABLE.items())
def test_student_t_is_that_of_the_tables(freedom: int, expected: float) -> None:
    assert student_t(freedom) == pytest.approx(expected, abs=5.1e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 6, 7, 40])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_student_t_holds_as_much_of_the_density(freedom: int, level: float) -> None:
    """The density, integrated by Simpson's rule between the bounds, is `level`."""
    bound = student_t(freedom, level)
    x = np.linspace(-bound, bound, 200_001)
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    density = np.exp(log_scale) / math.sqrt(freedom * math.pi)
    density = density * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    weights = np.tile([2.0, 4.0], len(x) // 2 + 1)[: len(x)]
    weights[[0, -1]] = 1.0
    integral = (x[1] - x[0]) / 3 * float(density @ weights)
    assert integral == pytest.approx(level, abs=1e-7)


def test_a_summary() -> None:
    values = [0.31, 0.27, 0.35, 0.30]
    found = summary(values)
    assert found.values == tuple(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    half = 3.1824463 * np.std(values, ddof=1) / 2  # 3 degrees of freedom, sqrt(4)
    assert found.interval == pytest.approx((0.3075 - half, 0.3075 + half))
    assert found.effect_size == pytest.approx(np.mean(values) / np.std(values, ddof=1))
    assert found.to_dict()["interval"] == list(found.interval or ())


def test_of_one_seed_there_is_no_interval() -> None:
    found = summary([0.5])
    assert (found.sd, found.interval, found.effect_size) == (None, None, None)
    for verdict in (judge(found, 0.1, ""), judge_alike(found, 9.0, "")):
        assert verdict.outcome == UNDECIDED and "one seed" in verdict.why


def test_equal_numbers_have_a_point_for_an_interval_and_no_effect_size() -> None:
    found = summary([0.25, 0.25, 0.25])
    assert (found.interval, found.effect_size) == ((0.25, 0.25), None)
    verdict = judge(found, 0.25, " nats")
    assert verdict.outcome == HOLDS and verdict.why.startswith("0.25 nats, alike in all 3 seeds:")


def test_one_of_a_unit_is_told_in_the_singular() -> None:
    one = judge(summary([1.0, 1.0]), 1.0, " powers of ten")
    assert one.why == (
        "1 power of ten, alike in all 2 seeds: all of the interval is at or above 1 power of ten"
    )
    assert "1 nat of 0" in judge_alike(summary([0.5, 0.6]), 1.0, " nats").why
    assert "at or above 1%" in judge(summary([2.0, 2.1]), 1.0, "%").why


@pytest.mark.parametrize("value", [0.05, 0.1, 0.2, 0.47, math.log(257)])
@pytest.mark.parametrize("seeds", [3, 5, 6, 7])
def test_equal_numbers_are_their_own_mean(value: float, seeds: int) -> None:
    """To the last bit, though a sum of three tenths, divided by three, is more than a tenth."""
    found = summary([value] * seeds)
    assert (found.mean, found.sd, found.interval) == (value, 0.0, (value, value))
    assert judge(found, value, "").outcome == judge_alike(found, value, "").outcome == HOLDS


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_what_is_not_finite_has_no_summary(values: list[float]) -> None:
    with pytest.raises(ArgumentError, match="finite numbers"):
        summary(values)


# Five seeds of a known effect with a known spread: the interval is the mean -+ 0.0124.
NOISE = np.array([-0.01, -0.005, 0.0, 0.005, 0.01]) * 1.265


def outcomes(mean: float) -> Summary:
    return summary(list(mean + NOISE))


@pytest.mark.parametrize(
    ("mean", "outcome", "word"),
    [
        (0.30, HOLDS, "at or above 0.1 nats"),
        (0.12, HOLDS, "at or above"),
        (0.105, UNDECIDED, "both sides of 0.1 nats"),
        (0.09, UNDECIDED, "more seeds"),
        (0.05, FAILS, "a smaller one than counts"),
        (0.0, FAILS, "below 0.1 nats"),
        (-0.2, FAILS, "the other way round"),
    ],
)
def test_a_claim_of_an_effect(mean: float, outcome: str, word: str) -> None:
    found = outcomes(mean)
    assert found.interval is not None
    assert found.interval[1] - found.mean == pytest.approx(0.0124, abs=1e-4)
    verdict = judge(found, 0.1, " nats")
    assert verdict.outcome == outcome
    assert word in verdict.why
    assert f"{found.mean:.3g} nats (95% interval" in verdict.why and "5 seeds" in verdict.why


@pytest.mark.parametrize(
    ("mean", "outcome"), [(0.0, HOLDS), (-0.03, HOLDS), (-0.06, UNDECIDED), (-0.3, FAILS)]
)
def test_a_claim_of_being_no_worse(mean: float, outcome: str) -> None:
    assert judge(outcomes(mean), -0.05, " nats").outcome == outcome


@pytest.mark.parametrize(
    ("mean", "outcome"),
    [(0.0, HOLDS), (0.03, HOLDS), (0.05, UNDECIDED), (-0.05, UNDECIDED), (0.1, FAILS), (-9, FAILS)],
)
def test_a_claim_of_being_alike(mean: float, outcome: str) -> None:
    assert judge_alike(outcomes(mean), 0.05, " nats").outcome == outcome


def test_a_claim_of_several_parts() -> None:
    holds, fails, open_ = (Verdict(outcome, "") for outcome in (HOLDS, FAILS, UNDECIDED))
    assert all_of([holds, holds]) == HOLDS
    assert all_of([holds, open_]) == UNDECIDED
    assert all_of([holds, open_, fails]) == FAILS
    assert all_of([]) == UNDECIDED


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """10,000 draws of 3 seeds: 95% of the intervals hold the mean they were drawn around."""
    drawn = np.random.default_rng(7).normal(0.2, 0.05, (10_000, 3))
    means, sds = drawn.mean(axis=1), drawn.std(axis=1, ddof=1)
    some = summary(list(drawn[0]))
    half = student_t(2) * sds / math.sqrt(3)
    assert some.interval == pytest.approx((means[0] - half[0], means[0] + half[0]))
    inside = np.mean(np.abs(means - 0.2) <= half)
    assert inside == pytest.approx(0.95, abs=0.01)  # four standard errors of a share
