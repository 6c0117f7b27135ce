"""The training loop: exact, resumable, punctual, and hard to derail."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.data import BatchSampler
from andrea.errors import CheckpointError, ConfigError, DataError, RunError
from andrea.runs import RunFolder, writer
from andrea.training import StepReport, TrainConfig, TrainState, clock, evaluate, train
from andrea.training.schedule import WarmupCosine
from small_runs import (
    interrupted_run,
    small_config,
    small_data,
    small_model,
    small_run,
    state_bytes,
)


def reports_of(model: andrea.GPT, config: TrainConfig, **settings: Any) -> list[StepReport]:
    return list(train(model, small_data(), config, **settings))


# ---- configuration


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 2.0),
        ("batch_size", True),
        ("accumulate", 0),
        ("steps", 0),
        ("steps", "many"),
        ("seconds", 0.0),
        ("seconds", math.inf),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("learning_rate", "fast"),
        ("warmup", -1),
        ("min_ratio", 1.5),
        ("weight_decay", -0.1),
        ("beta1", 1.0),
        ("beta2", -0.1),
        ("eps", 0.0),
        ("eps", 1e-38),
        ("max_norm", -1.0),
        ("seed", -1),
        ("seed", 2**64),
        ("eval_every", -1),
        ("eval_windows", 0),
        ("save_every", 1.5),
    ],
)
def test_values_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be .*") as caught:
        small_config(**{name: value})
    assert "\n" not in str(caught.value)


def test_a_run_has_one_length() -> None:
    with pytest.raises(ConfigError, match="either steps or seconds"):
        TrainConfig(batch_size=1, learning_rate=1e-3)
    with pytest.raises(ConfigError, match="either steps or seconds"):
        TrainConfig(batch_size=1, learning_rate=1e-3, steps=1, seconds=1.0)


def test_records_survive_plain_data() -> None:
    config = small_config(seconds=3.5, accumulate=2)
    assert TrainConfig.from_dict(config.to_dict()) == config
    state = TrainState(step=5, elapsed=2.5, skipped=1, best_loss=1.25, best_step=4)
    assert TrainState.from_dict(state.to_dict(timed=True)) == state
    assert TrainState.from_dict(state.to_dict(timed=False)) == dataclasses.replace(state, elapsed=0)
    with pytest.raises(ConfigError, match="'speed'; known: batch_size"):
        TrainConfig.from_dict({**config.to_dict(), "speed": 3})
    with pytest.raises(ConfigError, match="learning_rate"):
        TrainConfig.from_dict({"batch_size": 3})
    with pytest.raises(CheckpointError, match="'mood'"):
        TrainState.from_dict({"mood": 3})


# ---- what a step is


def test_reports_tell_what_happened() -> None:
    config = small_config(steps=12, accumulate=2, eval_every=5)
    model = small_model()
    reports = reports_of(model, config)
    assert [report.step for report in reports] == list(range(1, 13))
    assert [report.tokens for report in reports] == [2 * 4 * 16 * n for n in range(1, 13)]
    assert [report.step for report in reports if report.evaluation] == [5, 10, 12]
    assert [report.is_last for report in reports] == [False] * 11 + [True]
    schedule = WarmupCosine(config.warmup, config.min_ratio)
    for index, report in enumerate(reports):
        expected = config.learning_rate * schedule.factor(index, index / 12)
        assert report.learning_rate == pytest.approx(expected, rel=1e-12)
        assert report.progress == pytest.approx((index + 1) / 12)
        assert report.steps == 12
        assert report.gradient_norm > 0
        assert report.tokens_per_second > 0
        assert not report.skipped and report.notices == () and report.saved is None
    assert reports[0].loss == pytest.approx(math.log(model.config.vocab_size), abs=0.1)
    elapsed = [report.elapsed for report in reports]
    assert elapsed == sorted(elapsed)
    assert reports[-1].seconds_left == 0.0
    assert model.step_count == 12


def test_a_step_is_forward_backward_and_adamw() -> None:
    """The loop against the same calls written out."""
    config = small_config(steps=5, accumulate=2, weight_decay=0.3, beta2=0.9, max_norm=0.5)
    model, other = small_model(), small_model()
    data = small_data()
    losses = [report.loss for report in train(model, data, config)]
    sampler = BatchSampler(data.train, config.batch_size, 16, config.seed)
    schedule = WarmupCosine(config.warmup, config.min_ratio)
    for step in range(5):
        parts = []
        for micro in range(2):
            parts.append(other.forward(*sampler.batch(2 * step + micro)))
            other.backward(0.5)
        other.step(
            config.learning_rate * schedule.factor(step, step / 5),
            beta1=0.9,
            beta2=0.9,
            weight_decay=0.3,
            max_norm=0.5,
        )
        assert losses[step] == pytest.approx(sum(parts) / 2)
    assert state_bytes(model) == state_bytes(other)


def test_accumulation_changes_nothing_but_memory() -> None:
    runs = [
        reports_of(small_model(), small_config(steps=4, batch_size=size, accumulate=parts))
        for size, parts in ((16, 1), (8, 2), (1, 16))
    ]
    for whole, *split in zip(*runs, strict=True):
        for report in split:
            assert report.loss == pytest.approx(whole.loss, rel=1e-5)
            assert report.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-5)


def test_learns_a_text_by_heart() -> None:
    text = np.random.Generator(np.random.Philox(5)).integers(0, 18, 65).astype(np.uint8)
    model = small_model(n_embd=32)
    config = small_config(steps=200, batch_size=8)
    reports = list(train(model, small_data(train=text), config))
    # What a window begins with cannot be known: its first token keeps ln 18 / 16 = 0.18 nats.
    assert reports[0].loss > 2.5
    assert reports[-1].loss < 0.3
    written = list(model.generate(text[:8], max_tokens=8, temperature=0.0))
    assert written == text[8:16].tolist()


# ---- the same bits


def uninterrupted(folder: Path, config: TrainConfig) -> bytes:
    model = small_model()
    with small_run(folder, config, model) as run:
        for _ in train(model, small_data(), config, run=run):
            pass
        return run.checkpoint_path.read_bytes()


def interrupted(folder: Path, config: TrainConfig, stops: list[int]) -> bytes:
    return interrupted_run(folder, config, stops, small_model)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("stops", [[10], [1, 2, 19]])
def test_resumed_equals_uninterrupted(tmp_path: Path, accumulate: int, stops: list[int]) -> None:
    config = small_config(steps=20, accumulate=accumulate, batch_size=6, eval_every=7, save_every=6)
    windows = BatchSampler(small_data().train, 6, 16).windows_per_epoch
    epochs = 20 * accumulate * 6 / windows
    assert accumulate == 1 or epochs > 1, "crosses the border of an epoch"
    whole = uninterrupted(tmp_path / "whole", config)
    assert interrupted(tmp_path / "parts", config, stops) == whole


def test_threads_do_not_change_a_bit(tmp_path: Path) -> None:
    config = small_config(steps=50, batch_size=3, accumulate=2)
    before = andrea.get_num_threads()
    try:
        files = []
        for threads in (1, 2, 3):
            andrea.set_num_threads(threads)
            files.append(uninterrupted(tmp_path / str(threads), config))
    finally:
        andrea.set_num_threads(before)
    assert files[0] == files[1] == files[2]


def test_evaluating_and_saving_do_not_change_training(tmp_path: Path) -> None:
    plain, busy = small_model(), small_model()
    reports_of(plain, small_config(steps=8))
    config = small_config(steps=8, eval_every=1, save_every=1)
    with small_run(tmp_path, config, busy) as run:
        reports_of(busy, config, run=run)
    assert state_bytes(plain) == state_bytes(busy)


def test_another_seed_is_another_run() -> None:
    one, other = small_model(), small_model()
    reports_of(one, small_config(steps=2, seed=1))
    reports_of(other, small_config(steps=2, seed=2))
    assert state_bytes(one) != state_bytes(other)


# ---- evaluation


def test_evaluation_is_the_mean_over_the_text() -> None:
    data, model = small_data(), small_model()
    tokens = data.validation.astype(np.int64)
    total, count = 0.0, 0
    for start in range(0, len(tokens) - 1, 16):
        window = tokens[start : start + 17]
        logits = model.logits(window[None, :-1])[0].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(window) - 1), window[1:]]
        total, count = total + losses.sum(), count + len(losses)
    loss = evaluate(model, data, batch_size=5)
    assert loss == pytest.approx(total / count, rel=1e-5)
    # One character is one byte here, so the two measures differ by ln 2 alone.
    assert data.bits_per_byte(total / count) == pytest.approx(total / count / math.log(2))


def test_the_best_evaluation_is_remembered() -> None:
    state = TrainState()
    reports = reports_of(small_model(), small_config(steps=30, eval_every=3), state=state)
    evaluations = {report.step: report.evaluation for report in reports if report.evaluation}
    best = min(evaluations, key=lambda step: evaluations[step].loss)
    assert (state.best_step, state.best_loss) == (best, evaluations[best].loss)
    lowest = math.inf
    for evaluation in evaluations.values():
        assert evaluation.is_best == (evaluation.loss < lowest)
        lowest = min(lowest, evaluation.loss)


def test_without_validation_text_there_is_no_evaluation() -> None:
    data = small_data(train_share=1.0, validation_bytes=0, validation_wanted=False)
    reports = list(train(small_model(), data, small_config(steps=4, eval_every=1)))
    assert [report.evaluation for report in reports] == [None] * 4
    assert evaluate(small_model(), data, batch_size=2) is None


def test_a_text_shorter_than_the_context_is_refused_at_the_call() -> None:
    data = small_data(train_share=0.005)
    with pytest.raises(DataError, match="too short"):
        train(small_model(), data, small_config())


# ---- time


class Clock:
    """Time in which a batch takes 1 second, an evaluation batch 0.25 and a save 4."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, model: andrea.GPT, run: RunFolder) -> None:
        self.now = 1000.0
        self.take(monkeypatch, model, "forward_backward", 1.0)
        self.take(monkeypatch, model, "forward", 0.25)
        self.take(monkeypatch, run, "save", 4.0)
        monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def take(self, patch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.now += seconds
            return real(*arguments, **named)

        patch.setattr(owner, name, call)


@pytest.mark.parametrize("caller_seconds", [0.0, 7.0])
@pytest.mark.parametrize("seconds", [60.0, 300.0, 301.5])
def test_a_run_by_time_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, caller_seconds: float
) -> None:
    config = small_config(seconds=seconds, eval_every=20, save_every=50, warmup=2)
    model, reports = small_model(), []
    with small_run(tmp_path, config, model) as run:
        clock = Clock(monkeypatch, model, run)
        for report in train(model, small_data(), config, run=run):
            reports.append(report)
            clock.now += caller_seconds if report.evaluation else 0.0
    took = clock.now - 1000.0
    assert seconds - 3.0 < took <= seconds
    last = reports[-1]
    assert last.is_last and last.evaluation and last.saved and last.progress == 1.0
    # The schedule ends when the time does, and follows it in between.
    schedule = WarmupCosine(config.warmup, config.min_ratio)
    assert last.learning_rate == pytest.approx(0.1 * config.learning_rate, rel=0.1)
    for before, report in itertools.pairwise(reports):
        started = before.elapsed + (caller_seconds if before.evaluation else 0.0)
        factor = report.learning_rate / config.learning_rate
        # The reserve for the closing is at most 4 + 2 + 7 seconds and grows as it is measured.
        assert schedule.factor(before.step, started / (seconds - 14.0)) <= factor + 1e-9
        assert factor <= schedule.factor(before.step, started / seconds) + 1e-9
        assert report.seconds_left == (
            0.0 if report.is_last else pytest.approx(seconds - report.elapsed)
        )


def test_the_real_clock_is_kept_too() -> None:
    started = time.perf_counter()
    reports = reports_of(small_model(), small_config(seconds=0.5))
    assert time.perf_counter() - started > 0.3
    # Another step is begun while there is time, however slow the machine.
    assert reports[-2].elapsed < 0.5 and len(reports) > 5


def test_time_is_carried_over_sessions(tmp_path: Path) -> None:
    config = small_config(seconds=1.2)
    model, state = small_model(), TrainState()
    run = small_run(tmp_path, config, model)
    reports = train(model, small_data(), config, run=run, state=state)
    for report in reports:
        if report.elapsed > 0.7:
            break
    reports.close()
    run.save(model, state)
    run.close()
    with RunFolder.open(tmp_path) as run:
        state = run.resume(model)
        assert state.elapsed > 0.7
        more = list(train(model, small_data(), config, run=run, state=state))
    assert more[0].elapsed > 0.7
    assert all(report.elapsed < 1.2 for report in more[:-1])
    assert more[0].learning_rate < 0.6 * config.learning_rate
    with RunFolder.open(tmp_path) as run:
        state = run.resume(model)
        with pytest.raises(RunError, match="has done its"):
            train(model, small_data(), config, run=run, state=state)


def test_the_shortest_time_trains_a_step() -> None:
    reports = reports_of(small_model(), small_config(seconds=1e-6))
    assert [report.is_last for report in reports] == [True]
    assert reports[0].evaluation is not None


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    config = small_config(steps=3)
    uninterrupted(tmp_path, config)
    model = small_model()
    with RunFolder.open(tmp_path) as run:
        state = run.resume(model)
        with pytest.raises(RunError, match="has done its 3 steps"):
            train(model, small_data(), config, run=run, state=state)
        longer = dataclasses.replace(config, steps=5)
        assert [r.step for r in train(model, small_data(), longer, run=run, state=state)] == [4, 5]


# ---- what goes wrong


class Sabotage:
    """Makes chosen steps' losses not finite: one weight is broken while they are computed."""

    def __init__(self, model: andrea.GPT, monkeypatch: pytest.MonkeyPatch, steps: Any) -> None:
        self.calls, self.steps, self.real = 0, steps, model.forward_backward
        self.model = model
        monkeypatch.setattr(model, "forward_backward", self.forward_backward)

    def forward_backward(self, *arguments: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls not in self.steps:
            return self.real(*arguments, **named)
        good = self.model.read()
        self.model.write({"wpe.weight": np.full_like(good["wpe.weight"], np.nan)})
        loss = self.real(*arguments, **named)
        self.model.write(good)
        return loss


def test_a_loss_that_is_not_finite_skips_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, state = small_model(), TrainState()
    Sabotage(model, monkeypatch, {3})
    states, reports = [], []
    for report in train(model, small_data(), small_config(steps=5), state=state):
        reports.append(report)
        states.append(state_bytes(model))
        assert not any(gradient.any() for gradient in model.gradients().values())
    assert [report.skipped for report in reports] == [False, False, True, False, False]
    assert states[2] == states[1] and states[3] != states[2]
    assert "step 3 was skipped" in reports[2].notices[0].text
    assert (state.step, state.skipped, state.skipped_in_row) == (5, 1, 0)
    assert model.step_count == 4


def test_a_gradient_that_is_not_finite_skips_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    real = model.forward_backward

    def overflow(*arguments: Any, **named: Any) -> Any:
        loss = real(*arguments, **named)
        model.gradients()["wpe.weight"][0, 0] = np.inf
        return loss

    before = state_bytes(model)
    monkeypatch.setattr(model, "forward_backward", overflow)
    reports = reports_of(model, small_config(steps=2))
    assert [report.skipped for report in reports] == [True, True]
    assert all(math.isfinite(report.loss) for report in reports)
    assert state_bytes(model) == before


def test_ten_in_a_row_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(steps=100, save_every=4)
    model, state = small_model(), TrainState()
    run = small_run(tmp_path, config, model)
    good = b""
    reports = train(model, small_data(), config, run=run, state=state)
    for _ in itertools.islice(reports, 4):
        run.finish_save()
        good = run.checkpoint_path.read_bytes()
    for parameter in model.parameters().values():
        parameter[...] = np.nan
    model.refresh()
    warnings = []
    with pytest.raises(RunError, match="not finite in 10 steps in a row") as caught:
        for report in reports:
            warnings += [notice.text for notice in report.notices if notice.kind == "skipped"]
    run.close()
    assert str(run.checkpoint_path) in str(caught.value) and "\n" not in str(caught.value)
    assert len(warnings) == 9 and all(warnings)
    # At step 8 a save was due: weights that give no loss must not push out good ones.
    assert good and run.checkpoint_path.read_bytes() == good
    fresh = small_model()
    with RunFolder.open(tmp_path) as run:
        assert run.resume(fresh).step == 4


def test_a_skip_is_part_of_the_exact_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(steps=8)
    files = []
    for name, stops in (("whole", [8]), ("parts", [4, 8])):
        model, state = small_model(), TrainState()
        Sabotage(model, monkeypatch, {2, 4})
        run = small_run(tmp_path / name, config, model)
        for stop in stops:
            for report in train(model, small_data(), config, run=run, state=state):
                if report.step == stop:
                    break
            run.save(model, state)
            run.close()
            if stop < 8:
                model = small_model(seed=9)
                run = RunFolder.open(tmp_path / name)
                state = run.resume(model)
                assert (state.skipped, state.skipped_in_row) == (2, 1)
                assert model.step_count == 2
        files.append(run.checkpoint_path.read_bytes())
    assert files[0] == files[1]


def refusing_disk(monkeypatch: pytest.MonkeyPatch, refused: set[int]) -> None:
    real, calls = writer.write_checkpoint, itertools.count()

    def write(*arguments: Any) -> int:
        if next(calls) in refused:
            raise CheckpointError("cannot write it: No space left on device")
        return real(*arguments)

    monkeypatch.setattr(writer, "write_checkpoint", write)


def test_a_save_that_fails_on_the_way_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(steps=6, save_every=2)
    model, saved, told = small_model(), [], {}
    with small_run(tmp_path, config, model) as run:
        refusing_disk(monkeypatch, {1})
        for report in train(model, small_data(), config, run=run):
            saved += [report.saved] if report.saved else []
            for notice in report.notices:
                told[report.step] = notice.text
            run.finish_save()
    assert [path.stem for path in saved] == ["step-00000004", "step-00000006"]
    assert told == {3: "cannot write it: No space left on device; training goes on"}
    notices = [line for line in run.log_path.read_text().splitlines() if "run.notice" in line]
    assert len(notices) == 1 and '"kind": "save failed"' in notices[0]


@pytest.mark.parametrize(("refused", "steps_done"), [({0}, 0), ({2}, 3)])
def test_the_first_and_the_last_save_must_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: set[int], steps_done: int
) -> None:
    config = small_config(steps=4, save_every=2)
    model, done = small_model(), 0
    with small_run(tmp_path, config, model) as run:
        refusing_disk(monkeypatch, refused)
        with pytest.raises(CheckpointError, match="No space left"):
            for report in train(model, small_data(), config, run=run):
                done = report.step
    assert done == steps_done


def test_closing_at_any_report_leaves_a_state_to_save(tmp_path: Path) -> None:
    config = small_config(steps=5)
    for stop in range(1, 5):
        model, state = small_model(), TrainState()
        with small_run(tmp_path / str(stop), config, model) as run:
            reports = train(model, small_data(), config, run=run, state=state)
            for _ in range(stop):
                next(reports)
            reports.close()
            assert state.step == stop
            run.save(model, state)
        with RunFolder.open(tmp_path / str(stop)) as run:
            assert run.state().step == stop
