"""Learning-rate schedule and budgets."""

from __future__ import annotations

import math

import pytest

from andrea.errors import ConfigError
from andrea.training.schedule import (
    SCHEDULES,
    StepBudget,
    TimeBudget,
    WarmupCosine,
    WarmupStableDecay,
    schedule_of,
)
from small_runs import small_config


def test_warm_up_is_a_ramp_times_the_cosine() -> None:
    schedule = WarmupCosine(warmup=10, min_ratio=0.1)
    plain = WarmupCosine(warmup=0, min_ratio=0.1)
    for step in range(30):
        ramp = min((step + 1) / 10, 1.0)
        assert schedule.factor(step, step / 30) == pytest.approx(
            ramp * plain.factor(step, step / 30)
        )
    assert schedule.factor(0, 0.0) > 0, "the first step must learn"


@pytest.mark.parametrize("min_ratio", [0.0, 0.1, 1.0])
def test_cosine_goes_from_the_peak_to_the_least(min_ratio: float) -> None:
    schedule = WarmupCosine(warmup=0, min_ratio=min_ratio)
    factors = [schedule.factor(step, step / 100) for step in range(101)]
    assert factors[0] == 1.0
    assert factors[50] == pytest.approx((1 + min_ratio) / 2)
    assert factors[100] == pytest.approx(min_ratio)
    assert factors == sorted(factors, reverse=True)
    # A quarter of the way down the cosine has lost 1 - cos(45 degrees) of its half.
    assert factors[25] == pytest.approx(min_ratio + (1 - min_ratio) * (1 + math.sqrt(0.5)) / 2)


def factors(name: str, **settings: float) -> list[float]:
    schedule = schedule_of(small_config(schedule=name, warmup=0, **settings))
    return [schedule.factor(step, step / 100) for step in range(101)]


def test_linear_is_a_straight_line() -> None:
    expected = [1 - 0.75 * step / 100 for step in range(101)]
    assert factors("linear", min_ratio=0.25) == pytest.approx(expected)


def test_constant_stays_at_the_peak() -> None:
    assert factors("constant", min_ratio=0.25) == [1.0] * 101


def test_wsd_is_flat_and_then_falls_over_its_share() -> None:
    found = factors("wsd", min_ratio=0.2, decay_share=0.4)
    assert found[:61] == [1.0] * 61
    assert found[60:] == pytest.approx([1 - 0.8 * step / 40 for step in range(41)])
    assert factors("wsd", decay_share=0.0) == [1.0] * 101
    whole = factors("wsd", min_ratio=0.2, decay_share=1.0)
    assert whole == pytest.approx(factors("linear", min_ratio=0.2))


def test_a_longer_wsd_run_begins_as_the_shorter_one() -> None:
    schedule = WarmupStableDecay(warmup=10, decay_share=0.2)
    for step in range(80):
        assert schedule.factor(step, step / 100) == schedule.factor(step, step / 300)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_warms_up_and_ends_where_it_says(name: str) -> None:
    schedule = schedule_of(small_config(schedule=name, warmup=8, min_ratio=0.3))
    bare = schedule_of(small_config(schedule=name, warmup=0, min_ratio=0.3))
    for step in range(20):
        ramp = min((step + 1) / 8, 1.0)
        assert schedule.factor(step, step / 20) == ramp * bare.factor(step, step / 20)
    assert schedule.factor(0, -3.0) == schedule.factor(0, 0.0)
    last = 1.0 if name == "constant" else 0.3
    assert schedule.factor(99, 1.0) == schedule.factor(99, 7.0) == pytest.approx(last)


def test_unknown_schedules_are_refused_with_the_known() -> None:
    with pytest.raises(ConfigError, match="one of cosine, linear, constant, wsd, got 'cosin'"):
        small_config(schedule="cosin")


def test_progress_outside_the_run_is_cut_off() -> None:
    schedule = WarmupCosine(warmup=0)
    assert schedule.factor(5, 1.7) == schedule.factor(5, 1.0)
    assert schedule.factor(5, -0.2) == schedule.factor(5, 0.0)


def test_steps_do_not_look_at_the_clock() -> None:
    budget = StepBudget(40)
    assert budget.progress(10, elapsed=0.0, closing=0.0) == 0.25
    assert budget.progress(10, elapsed=1e6, closing=50.0) == 0.25
    assert not budget.is_spent(39, 1e6, 1e6, 1e6)
    assert budget.is_spent(40, 0.0, 0.0, 0.0)
    assert budget.seconds_left(30, 5.0, step_seconds=2.0) == 20.0


def test_time_keeps_room_for_a_step_and_the_closing() -> None:
    budget = TimeBudget(100.0)
    assert budget.progress(7, elapsed=45.0, closing=10.0) == 0.5
    assert budget.progress(7, elapsed=95.0, closing=10.0) == 1.0
    assert budget.progress(7, elapsed=1.0, closing=200.0) == 1.0
    assert not budget.is_spent(7, 88.0, closing=10.0, step_seconds=1.0)
    assert budget.is_spent(7, 89.5, closing=10.0, step_seconds=1.0)
    assert budget.seconds_left(7, 89.5, 1.0) == 10.5
    assert budget.seconds_left(7, 120.0, 1.0) == 0.0
