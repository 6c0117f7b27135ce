"""What is read from a run's log: whole, resumed, damaged or of weeks; and what is made of it."""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

import run_logs
from andrea.errors import RunError
from andrea.reporting import csv_export
from andrea.reporting.curve import Curve
from andrea.reporting.events import Timestamps, log_path, read_events
from andrea.reporting.metrics import MAX_NOTICES, MAX_SAMPLES, Metrics
from run_logs import evaluation, event, loss_at, sample, start, step_event, whole_run, write_log


def heard(events: list[run_logs.Event]) -> Metrics:
    metrics = Metrics()
    for one in events:
        metrics.add(one)
    return metrics


def points(curve: Curve) -> list[tuple[int, float]]:
    return [(bucket.first, bucket.mean) for bucket in curve.buckets]


# ---- curves


def test_a_short_curve_keeps_every_value() -> None:
    curve = Curve(capacity=8)
    for step in range(1, 8):
        curve.add(step, step * 0.5)
    assert points(curve) == [(step, step * 0.5) for step in range(1, 8)]
    assert curve.last == 3.5


def test_a_long_curve_stays_small_and_hides_no_extreme() -> None:
    curve, values = Curve(capacity=64), {}
    chance = random.Random(3)
    for step in range(1, 10_001):
        values[step] = 50.0 if step == 4321 else chance.uniform(1, 2)
        curve.add(step, values[step])
    assert 32 <= len(curve.buckets) <= 64
    assert sum(bucket.count for bucket in curve.buckets) == 10_000
    for bucket in curve.buckets:
        inside = [values[step] for step in range(bucket.first, bucket.last + 1)]
        assert len(inside) == bucket.count
        assert bucket.mean == pytest.approx(sum(inside) / len(inside), rel=1e-12)
        assert (bucket.low, bucket.high) == (min(inside), max(inside))
    assert max(bucket.high for bucket in curve.buckets) == 50.0


def test_a_curve_with_gaps_has_buckets_of_equal_width() -> None:
    curve = Curve(capacity=16)
    for step in (*range(0, 5000, 100), 5001, 5002):
        curve.add(step, float(step))
    assert len(curve.buckets) <= 16
    assert len({bucket.first // curve.width for bucket in curve.buckets}) == len(curve.buckets)


def test_a_curve_is_cut_back() -> None:
    curve = Curve(capacity=100)
    for step in range(1, 51):
        curve.add(step, 1.0)
    curve.cut(20)
    assert points(curve)[-1] == (20, 1.0)
    curve.cut(0)
    assert curve.last is None


# ---- a whole run


def test_a_run_is_read(tmp_path: Path) -> None:
    metrics = Metrics.from_log(write_log(tmp_path, whole_run()).parent)
    assert (metrics.run_id, metrics.step, metrics.is_ended) == (run_logs.RUN_ID, 40, True)
    assert dict(metrics.model) == run_logs.MODEL and dict(metrics.config) == run_logs.CONFIG
    assert points(metrics.loss) == [(step, loss_at(step)) for step in range(1, 41)]
    assert points(metrics.validation) == [(step, loss_at(step) + 0.1) for step in (10, 20, 30, 40)]
    assert points(metrics.learning_rate)[-1] == (40, pytest.approx(0.0016))
    assert metrics.tokens_per_second.last == 1040
    assert metrics.gradient_norm.buckets[0].high == 2
    assert metrics.best is not None and metrics.best.step == 40
    assert metrics.best.bits_per_byte == loss_at(40)
    assert [one.step for one in metrics.samples] == [10, 20, 30, 40]
    assert metrics.samples[1].text == "text after 20"
    assert (metrics.samples[1].prompt, metrics.samples[1].coherence) == ("Once", 40)
    assert metrics.checkpoint_count == 5
    assert metrics.checkpoints[-1].name == "step-00000040.safetensors"
    assert metrics.checkpoints[-1].seconds == 1 and metrics.checkpoints[0].seconds is None
    assert metrics.total_seconds == 41 and metrics.began == run_logs.BEGAN.timestamp()
    assert metrics.seconds.buckets[9].mean == 10


def test_what_is_heard_is_what_is_read(tmp_path: Path) -> None:
    events = whole_run(5000, every=7)
    read = Metrics.from_log(write_log(tmp_path, events))
    assert vars_of(read) == vars_of(heard(events))
    assert len(read.loss.buckets) <= 1024 and len(read.samples) <= MAX_SAMPLES + 1


def vars_of(metrics: Metrics) -> dict[str, Any]:
    values = dict(vars(metrics))
    del values["_times"]
    return {
        name: value.buckets if isinstance(value, Curve) else value for name, value in values.items()
    }


def test_a_run_is_found_by_its_folder_its_log_and_its_checkpoint(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", whole_run())
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000040.safetensors"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    assert log_path(tmp_path / "run") == log_path(log) == log_path(checkpoint) == log
    with pytest.raises(RunError, match="holds no log"):
        log_path(tmp_path)
    with pytest.raises(RunError, match="isn't there"):
        log_path(tmp_path / "nothing")
    (tmp_path / "text.txt").touch()
    with pytest.raises(RunError, match=r"text\.txt is no file of a run; give the folder of a run"):
        log_path(tmp_path / "text.txt")


# ---- several sessions


def resumed_run() -> list[run_logs.Event]:
    """Killed after step 30, resumed from 20 an hour later, without rewinding the log."""
    first = whole_run()[: whole_run().index(step_event(30)) + 1]
    again = [step_event(step, 3600 + step, loss=9.0) for step in range(21, 41)]
    return [*first, start(3600, resumed_step=20), *again, evaluation(40, 3640.5)]


def test_a_resume_takes_back_what_came_after_it(tmp_path: Path) -> None:
    expected = [(step, loss_at(step)) for step in range(1, 21)]
    expected += [(step, 9.0) for step in range(21, 41)]
    for metrics in (heard(resumed_run()), Metrics.from_log(write_log(tmp_path, resumed_run()))):
        assert points(metrics.loss) == expected
        assert points(metrics.validation)[:2] == points(heard(whole_run()).validation)[:2]
        assert [one.step for one in metrics.samples] == [10, 20]
        assert [session.first_step for session in metrics.sessions] == [0, 20]
        assert metrics.step == 40 and not metrics.is_ended
        assert metrics.checkpoint_count == 3
    # The hour in which nothing was done is no training.
    assert heard(resumed_run()).total_seconds == pytest.approx(30 + 40.5)


def test_a_resume_that_is_heard_twice_counts_once() -> None:
    events = resumed_run()
    at = events.index(start(3600, resumed_step=20))
    metrics = heard([*events[: at + 1], *events[at:]])
    assert len(metrics.sessions) == 2
    assert points(metrics.loss) == points(heard(events).loss)


def test_the_best_evaluation_is_found_again_when_it_was_taken_back() -> None:
    events = [start(), step_event(1), evaluation(1, score=3.0), step_event(2)]
    events += [evaluation(2, score=1.0), start(50, resumed_step=1)]
    metrics = heard(events)
    assert metrics.best is not None and (metrics.best.step, metrics.best.loss) == (1, 3.0)


def test_a_new_run_in_the_same_log_begins_afresh(tmp_path: Path) -> None:
    other = [{**one, "run_id": "other"} for one in whole_run(60)]
    metrics = Metrics.from_log(write_log(tmp_path, [*other, *whole_run()]))
    assert (metrics.run_id, metrics.step) == (run_logs.RUN_ID, 40)
    assert len(metrics.loss.buckets) == 40 and len(metrics.sessions) == 1
    assert vars_of(heard([*other, *whole_run()])) == vars_of(metrics)


# ---- what is missing, damaged or too much


def test_old_logs_lack_fields(tmp_path: Path) -> None:
    events = [event("run.start", 0), event("run.loss", 1, step=1, loss=2.0)]
    events.append(event("run.eval", 2, step=1, eval="validation", score=2.5))
    metrics = Metrics.from_log(write_log(tmp_path, events))
    assert points(metrics.loss) == [(1, 2.0)] and metrics.gradient_norm.last is None
    assert metrics.best is not None and metrics.best.bits_per_byte is None


def test_values_that_are_not_finite_leave_gaps() -> None:
    events = [start(), step_event(1), step_event(2, loss=None, gradient_norm=None, skipped=True)]
    metrics = heard([*events, step_event(3, outlier=9.5), evaluation(3, score=None)])
    assert [step for step, _ in points(metrics.loss)] == [1, 3]
    assert (metrics.skipped, list(metrics.skipped_steps)) == (1, [2])
    assert (metrics.outliers, list(metrics.outlier_steps)) == (1, [3])
    assert metrics.best is None and metrics.step == 3


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    log = write_log(tmp_path, whole_run())
    lines = log.read_bytes().splitlines(keepends=True)
    bad = [b"\xff\xfe\n", b"[1]\n", b"{}\n", b'{"type": "run.loss", "step": -1}\n', b"[" * 9000]
    bad += [b"\n", b'{"type": "run.loss", "run_id": "0123456789abcdef", "step": 1e400}\n']
    log.write_bytes(b"".join([*lines[:9], *bad, b"\n", *lines[9:], b'{"type": "run.lo']))
    assert vars_of(Metrics.from_log(log)) == vars_of(heard(whole_run()))


@pytest.mark.parametrize("seed", range(40))
def test_no_event_can_break_it(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    junk = [None, True, -1, 0, 7, 2**70, 1e300, float("nan"), "x", "2026-13-40T99:99:99Z", [], {}]
    events = whole_run()
    for _ in range(60):
        one = dict(chance.choice(events))
        one[chance.choice(list(one))] = chance.choice(junk)
        events.insert(chance.randrange(len(events)), one)
    log = write_log(tmp_path, events)
    Metrics.from_log(log)
    heard(events)
    csv_export.write_csv(log, io.StringIO())


def test_samples_of_weeks_are_thinned_evenly() -> None:
    steps = range(10, 30_000, 10)
    metrics = heard([start(), *(sample(step, f"text {step}") for step in steps)])
    kept = [one.step for one in metrics.samples]
    assert len(kept) <= MAX_SAMPLES + 1
    assert kept[0] == 10 and kept[-1] == steps[-1]
    gaps = {later - earlier for earlier, later in itertools.pairwise(kept[:-1])}
    assert len(gaps) == 1


def test_notices_and_long_texts_are_bounded() -> None:
    notices = [
        event("run.notice", step, step=step, kind="outlier", text=f"step {step}")
        for step in range(1, 1001)
    ]
    metrics = heard([start(), *notices, sample(1000, "long " * 5000)])
    assert metrics.notice_counts["outlier"] == 1000
    assert len(metrics.notices) == MAX_NOTICES and metrics.notices[-1].text == "step 1000"
    assert len(metrics.samples[0].text) < 7000


def test_times() -> None:
    times = Timestamps()
    assert times.parse("1970-01-01T00:01:00.250Z") == 60.25
    assert times.parse("1970-01-01T00:01:01.5Z") == 61.5
    assert times.parse("1970-01-01T01:01:00+01:00") == 60
    bad = ("", "soon", "1970-01-01T00:01:nanZ", "1970-01-01T00:01:00", 5, None)
    assert [times.parse(value) for value in bad] == [None] * len(bad)


# ---- tables


def test_csv_has_a_row_a_step(tmp_path: Path) -> None:
    log = write_log(tmp_path, resumed_run())
    text = io.StringIO()
    assert csv_export.write_csv(log, text) == 40
    table = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert [int(row["step"]) for row in table] == list(range(1, 41))
    assert [float(row["loss"]) for row in table[:20]] == [loss_at(step) for step in range(1, 21)]
    assert {row["loss"] for row in table[20:]} == {"9.0"}
    assert float(table[9]["validation_loss"]) == loss_at(10) + 0.1
    assert table[9]["coherence"] == "30.0" and table[8]["coherence"] == ""
    assert table[0]["time"] == "2026-11-29T22:15:01.000Z"


def test_csv_marks_what_was_skipped(tmp_path: Path) -> None:
    events = [start(), step_event(1, loss=None, skipped=True), step_event(2, outlier=12.5)]
    text = io.StringIO()
    csv_export.write_csv(write_log(tmp_path, events), text)
    first, second = csv.DictReader(io.StringIO(text.getvalue()))
    assert (first["loss"], first["skipped"], first["outlier_z"]) == ("", "1", "")
    assert (second["skipped"], second["outlier_z"]) == ("", "12.5")


def test_events_are_those_that_count(tmp_path: Path) -> None:
    events = list(read_events(write_log(tmp_path, resumed_run())))
    steps = [one["step"] for one in events if one["type"] == "run.loss"]
    assert steps == list(range(1, 41))
    assert all(json.dumps(one) for one in events)


def test_tensorboard_shows_the_curves_and_samples(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from andrea.reporting.tensorboard import export

    log = write_log(tmp_path / "run", resumed_run())
    export(log, tmp_path / "board")
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    losses = board.Scalars("loss/training")
    assert [one.step for one in losses] == list(range(1, 41))
    assert losses[9].value == pytest.approx(loss_at(10))
    assert losses[9].wall_time == run_logs.BEGAN.timestamp() + 10
    assert [one.step for one in board.Scalars("loss/validation")] == [10, 20, 40]
    texts = [one.tensor_proto.string_val[0] for one in board.Tensors("sample")]
    assert texts == [b"    text after 10", b"    text after 20"]


def test_tensorboard_that_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from andrea.reporting.tensorboard import TensorBoardWriter

    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(RunError, match=r"pip install 'andrea\[tensorboard\]'"):
        TensorBoardWriter(tmp_path / "board")
