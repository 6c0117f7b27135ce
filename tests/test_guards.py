"""The guards' judgement: what is an outlier, over-fit, incoherent, or not learning at all."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

from andrea.training import TrainConfig, TrainState, guards
from andrea.training.guards import Verdict
from andrea.training.reports import Evaluation, Notice
from small_runs import small_config


def settings(**changes: Any) -> TrainConfig:
    return small_config(**{"steps": 10_000, **changes})


def step(state: TrainState, config: TrainConfig, loss: float, norm: float) -> Verdict:
    """A step as the training loop does it."""
    limits = guards.limits(state, config)
    state.step += 1
    return guards.judge(state, config, float(np.float32(loss)), float(np.float32(norm)), limits)


def state_after(
    config: TrainConfig, steps: int, loss: float = 2.0, norm: float = 1.0
) -> TrainState:
    """A state that has seen a healthy curve: 5% of noise around loss and norm."""
    state, rng = TrainState(), np.random.default_rng(0)
    for _ in range(steps):
        noise = 1 + 0.05 * rng.standard_normal(2)
        assert step(state, config, loss * noise[0], norm * noise[1]) == Verdict(False, None)
    return state


# ---- steps


def test_limits_are_the_median_and_its_deviations() -> None:
    # Medians 21 and 310, median absolute deviations 10 and 100.
    losses = [float(value) for value in range(1, 42)]
    state = TrainState(recent_losses=losses, recent_norms=[100 + 10 * loss for loss in losses])
    config = settings(outlier_z=4.0)
    limits = guards.limits(state, config)
    assert limits.loss == np.float32(21 + 4 * 1.4826 * 10)
    assert limits.norm == np.float32(310 + 4 * 1.4826 * 100)
    assert limits.loss == np.float32(limits.loss)  # as a device compares it


def test_nothing_is_judged_before_enough_is_known() -> None:
    config = settings()
    state = state_after(config, guards.MIN - 1)
    assert guards.limits(state, config) == (math.inf, math.inf)
    step(state, config, 2.0, 1.0)
    assert all(map(math.isfinite, guards.limits(state, config)))


def test_z_of_0_judges_nothing() -> None:
    config = settings(outlier_z=0.0)
    state = state_after(config, 50)
    assert guards.limits(state, config) == (math.inf, math.inf)
    assert step(state, config, 1e9, 1e9) == Verdict(False, None)
    assert state.outliers == 0


@pytest.mark.parametrize(("loss", "norm", "word"), [(9.0, 1.0, "loss"), (2.0, 50.0, "norm")])
def test_an_outlier_is_counted_and_said(loss: float, norm: float, word: str) -> None:
    config = settings()
    state = state_after(config, 50)
    before = copy.deepcopy(state)
    verdict = step(state, config, loss, norm)
    assert not verdict.skipped
    assert verdict.outlier is not None and verdict.outlier > config.outlier_z
    (notice,) = verdict.notices
    assert notice.kind == "outlier"
    assert notice.text.startswith("step 51 is an outlier: its ")
    assert word in notice.text
    assert state.outliers == 1
    assert state.skipped == state.skipped_in_row == 0
    assert state.recent_losses == before.recent_losses  # an outlier is not what is usual
    assert state.recent_norms == before.recent_norms


def test_an_outlier_is_skipped_where_that_is_wanted() -> None:
    config = settings(skip_outliers=True)
    state = state_after(config, 50)
    limits = guards.limits(state, config)
    assert limits.for_step(config) == {
        "skip_loss_above": limits.loss,
        "skip_norm_above": limits.norm,
    }
    assert limits.for_step(settings()) == {}
    verdict = step(state, config, 9.0, 1.0)
    assert verdict.skipped
    assert "was skipped" in verdict.notices[0].text
    assert state.skipped_in_row == 0  # which is of steps that were not finite


def test_a_value_at_the_limit_is_no_outlier() -> None:
    config = settings()
    state = state_after(config, 50)
    limits = guards.limits(state, config)
    assert step(copy.deepcopy(state), config, *limits).outlier is None
    above = [float(np.nextafter(np.float32(limit), np.float32(np.inf))) for limit in limits]
    assert step(copy.deepcopy(state), config, above[0], 1.0).outlier is not None
    assert step(copy.deepcopy(state), config, 2.0, above[1]).outlier is not None


def test_a_flat_curve_does_not_cry_wolf() -> None:
    config, state = settings(), TrainState()
    for _ in range(40):
        step(state, config, 2.0, 1.0)
    assert step(state, config, 2.1, 1.5) == Verdict(False, None)
    zeros = TrainState(recent_losses=[0.0] * 40, recent_norms=[0.0] * 40)
    assert step(zeros, config, 0.05, 0.0) == Verdict(False, None)


def test_low_values_are_no_outliers() -> None:
    config = settings()
    assert step(state_after(config, 50), config, 0.0, 0.0) == Verdict(False, None)


@pytest.mark.parametrize("start", [3.0, 9.0])
def test_a_falling_and_slowly_rising_curve_is_healthy(start: float) -> None:
    config, state, rng = settings(), TrainState(), np.random.default_rng(1)
    for n in range(600):
        level = start * math.exp(-n / 100) + 1 + n / 600
        norm = level * math.exp(0.2 * rng.standard_normal())
        verdict = step(state, config, level + 0.05 * rng.standard_normal(), norm)
        assert verdict.outlier is None, n


def test_a_new_level_is_not_an_outlier_for_ever() -> None:
    config = settings()
    state = state_after(config, 70)
    verdicts = [step(state, config, 6.0 + 0.01 * n, 1.0) for n in range(100)]
    found = [verdict.outlier is not None for verdict in verdicts]
    assert found == [True] * guards.SHIFT_AFTER + [False] * (100 - guards.SHIFT_AFTER)
    assert "new level" in verdicts[guards.SHIFT_AFTER - 1].notices[-1].text
    assert len(state.recent_losses) == guards.WINDOW
    assert min(state.recent_losses) > 5  # nothing of the old level


def test_outliers_with_usual_steps_between_them_are_no_new_level() -> None:
    config = settings()
    state = state_after(config, 50)
    for _ in range(3 * guards.SHIFT_AFTER):
        assert step(state, config, 9.0, 1.0).outlier is not None
        assert step(state, config, 2.0, 1.0).outlier is None


def test_many_outliers_are_not_all_told() -> None:
    config = settings()
    state = state_after(config, 50)
    told = []
    for n in range(1, 251):
        if step(state, config, 9.0, 1.0).notices:
            told.append(n)
        step(state, config, 2.0, 1.0)
    assert told == [*range(1, 11), 100, 200]
    assert state.outliers == 250


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)]
)
def test_what_is_not_finite_is_skipped(loss: float, norm: float) -> None:
    config = settings()
    state = state_after(config, 50)
    before = list(state.recent_losses)
    for n in (1, 2, 3):
        verdict = step(state, config, loss, norm)
        assert verdict.skipped and verdict.outlier is None
        assert state.skipped == state.skipped_in_row == n
    assert verdict.notices == (
        Notice("skipped", "step 53 was skipped: its loss or gradient is not finite"),
    )
    assert state.recent_losses == before
    assert not step(state, config, 2.0, 1.0).skipped
    assert (state.skipped, state.skipped_in_row) == (3, 0)


def test_the_state_remembers_all_that_is_judged_by() -> None:
    config, rng = settings(outlier_z=2.0), np.random.default_rng(2)
    straight, resumed = TrainState(), TrainState()
    for loss, norm in rng.lognormal(size=(300, 2)):
        verdicts = [step(state, config, loss, norm) for state in (straight, resumed)]
        assert verdicts[0] == verdicts[1]
        resumed = TrainState.from_dict(resumed.to_dict(timed=False))
    assert straight.outliers > 5
    assert straight == resumed


@pytest.mark.filterwarnings("error")
def test_a_limit_above_all_floats_is_none() -> None:
    state = TrainState(recent_losses=[1.0] * 40, recent_norms=[3e38] * 40)
    assert guards.limits(state, settings()).norm == math.inf


# ---- evaluations


def evaluate(
    state: TrainState, config: TrainConfig, loss: float
) -> tuple[list[Notice], str | None]:
    state.step += 10
    is_best = math.isfinite(loss) and (state.best_loss is None or loss < state.best_loss)
    if is_best:
        state.best_loss, state.best_step = loss, state.step
    return guards.after_evaluation(state, config, Evaluation(loss, loss, is_best))


def test_over_fitting_is_told_once_in_each_rise() -> None:
    state, config = TrainState(), settings()
    losses = [3, 2, 2.1, 2.2, 1.9, 2.0, 2.1, 2.2, 2.3, 2.4, 1.8, 1.9, 1.9, 1.9]
    answers = [evaluate(state, config, loss) for loss in losses]
    told = [n for n, (notices, _) in enumerate(answers) if notices]
    assert told == [7, 13]
    (notice,) = answers[7][0]
    assert notice.kind == "over-fit"
    assert "1.9000 at step 50" in notice.text
    assert all(stopped is None for _, stopped in answers)


def test_early_stopping() -> None:
    state, config = TrainState(), settings(early_stop=2)
    answers = [evaluate(state, config, loss)[1] for loss in (3, 2, 2.5, 1.9, 1.95, 1.9)]
    assert answers[:5] == [None] * 5
    assert answers[5] is not None
    assert "1.9000 at step 40" in answers[5]
    assert "2 evaluations" in answers[5]


def test_an_evaluation_that_is_not_finite_is_above_the_best() -> None:
    state, config = TrainState(), settings(early_stop=1)
    assert evaluate(state, config, math.nan) == ([], None)  # there is no best yet
    assert evaluate(state, config, 2.0) == ([], None)
    assert evaluate(state, config, math.nan)[1] is not None


# ---- learning at all


def test_not_learning_is_told_once() -> None:
    config = settings(warmup=30)
    state = state_after(config, 30 + guards.NOT_LEARNING_AFTER - 1)
    assert not guards.learning_is_judged(state, config)
    assert guards.not_learning(state, config, 2.0, 1.5) is None
    step(state, config, 2.0, 1.0)
    assert guards.learning_is_judged(state, config)
    mean = guards.mean_recent_loss(state)
    assert mean == pytest.approx(np.mean(state.recent_losses), rel=1e-12)
    assert guards.not_learning(state, config, mean, mean * 1.001) is None
    notice = guards.not_learning(state, config, mean, mean)
    assert notice is not None
    assert notice.kind == "not learning"
    assert notice.text.startswith("after 230 steps the loss, ")
    step(state, config, 2.0, 1.0)
    assert guards.not_learning(state, config, 2.0, 1.5) is None


def test_learning_is_not_judged_without_a_loss() -> None:
    config = settings(warmup=0)
    assert not guards.learning_is_judged(TrainState(step=guards.NOT_LEARNING_AFTER), config)


# ---- samples


def test_incoherent_samples_in_a_row_end_the_run() -> None:
    state, config = TrainState(step=100), settings(coherence_gate=30.0)
    scores = [29, 29, 29, 29, 30, 10, 29.9, 0, 29]
    answers = [guards.after_sample(state, config, score) for score in scores]
    assert [len(notices) for notices, _ in answers] == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    assert all(stopped is None for _, stopped in answers)
    notices, stopped = guards.after_sample(state, config, 12.0)
    assert stopped == "5 samples in a row had a coherence below 30"
    assert notices == [
        Notice(
            "incoherent",
            "the sample after step 100 has coherence 12, below 30 (5 of 5 that end the run)",
        )
    ]


def test_a_gate_of_0_never_closes() -> None:
    state, config = TrainState(), settings()
    for _ in range(10):
        assert guards.after_sample(state, config, 0.0) == ([], None)
