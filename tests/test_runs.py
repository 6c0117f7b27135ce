"""Run folders: made once, opened whole, logs joined without doubled or missing steps."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from andrea.errors import CheckpointError, RunError
from andrea.runs.checkpoint import save_checkpoint
from andrea.runs.folder import RunFolder
from andrea.runs.log import newest_run_id
from andrea.training import TrainState, train
from small_runs import (
    small_config,
    small_data,
    small_model,
    small_run,
    small_tokenizer,
    state_bytes,
)


def lines(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.log_path.read_text().splitlines()]


def trained_run(
    path: Path, steps: int, *, stop_after: int | None = None, **settings: Any
) -> RunFolder:
    """A run of so many steps, stopped and saved before its end."""
    config = small_config(steps=steps, eval_every=2, **settings)
    model, state = small_model(), TrainState()
    run = small_run(path, config, model, record={"sources": ["here"]})
    reports = train(model, small_data(), config, run=run, state=state)
    for report in reports:
        if report.step == stop_after:
            reports.close()
            run.save(model, state)
    run.end(1.25, 60.0)
    run.close()
    return run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but the lock, which whoever looks writes to."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_second_run_never_replaces_the_first(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=2)
    before = contents(run.path)
    with pytest.raises(RunError, match=r"holds a run already.*--resume .*--out") as caught:
        small_run(run.path, small_config(), small_model())
    assert "\n" not in str(caught.value)
    assert contents(run.path) == before


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a note of mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match="cannot make the folder"):
            small_run(path, small_config(), small_model())
    assert (tmp_path / "file").read_text() == "a note of mine"


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    trained_run(tmp_path, steps=2)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_log_follows_the_schema(tmp_path: Path) -> None:
    run = trained_run(tmp_path, steps=5)
    log = lines(run)
    for line in log:
        assert line["run_id"] == run.run_id
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])
    # Checkpoints are told when they are on the disk: the first and the last one in their place.
    kinds = [line["type"] for line in log if line["type"] != "run.loss"]
    assert kinds[:2] == ["run.start", "run.checkpoint"]
    assert kinds[-2:] == ["run.checkpoint", "run.end"]
    assert [kind for kind in kinds[2:-2] if kind != "run.checkpoint"] == ["run.eval"] * 3
    start = log[0]
    assert start["schema"] == "unfirehose/1.0/training-run"
    assert start["model"] == small_model().config.to_dict()
    assert start["config"] == small_config(steps=5, eval_every=2).to_dict()
    losses = [line for line in log if line["type"] == "run.loss"]
    assert [line["step"] for line in losses] == [1, 2, 3, 4, 5]
    assert losses[0].keys() >= {"step", "loss", "lr"}
    evaluations = [line for line in log if line["type"] == "run.eval"]
    assert [line["step"] for line in evaluations] == [2, 4, 5]
    assert evaluations[0]["eval"] == "validation"
    assert evaluations[0]["score"] > 0 and evaluations[0]["bits_per_byte"] > 0
    saved = [line for line in log if line["type"] == "run.checkpoint"][-1]
    assert saved["step"] == 5 and saved["path"] == str(run.checkpoint_path)
    assert saved["size_bytes"] == run.checkpoint_path.stat().st_size
    assert (log[-1]["final_loss"], log[-1]["wall_ms"]) == (1.25, 60000)


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    with small_run(tmp_path, small_config(), small_model()) as run:
        run.log_sample(4, "über\n", float("nan"))
    assert lines(run)[-1]["text"] == "über\n"
    assert lines(run)[-1]["loss"] is None
    assert "NaN" not in run.log_path.read_text()


def test_a_resumed_log_is_joined(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=9, stop_after=4)
    whole = trained_run(tmp_path / "whole", steps=9)
    # As a killed process leaves it: steps after the checkpoint, and half a line.
    with run.log_path.open("a") as file:
        for step in (5, 6):
            late = {"type": "run.loss", "run_id": run.run_id, "step": step, "loss": 9.0}
            file.write(json.dumps(late) + "\n")
        file.write('{"type": "run.loss", "run_i')
    model = small_model(seed=3)
    with RunFolder.open(run.path) as again:
        state = again.resume(model)
        assert again.run_id == run.run_id
        for _ in train(model, small_data(), again.config, run=again, state=state):
            pass

    def values(run: RunFolder, kind: str, *names: str) -> list[list[Any]]:
        return [[line[name] for name in names] for line in lines(run) if line["type"] == kind]

    for kind, names in {
        "run.loss": ("step", "loss", "lr", "gradient_norm"),
        "run.eval": ("step", "score", "bits_per_byte"),
    }.items():
        assert values(again, kind, *names) == values(whole, kind, *names)
    starts = [line for line in lines(again) if line["type"] == "run.start"]
    assert [line.get("resumed_step") for line in starts] == [None, 4]
    assert not values(again, "run.end", "final_loss"), "the run went on"
    assert again.checkpoint_path.read_bytes() == whole.checkpoint_path.read_bytes()


def test_resuming_twice_from_one_step_leaves_one_trace(tmp_path: Path) -> None:
    run = trained_run(tmp_path, steps=9, stop_after=4)
    for _ in range(3):
        with RunFolder.open(run.path) as again:
            again.resume(small_model())
    starts = [line for line in lines(run) if line["type"] == "run.start"]
    assert [line.get("resumed_step") for line in starts] == [None, 4]


def test_lines_of_others_survive_a_resume(tmp_path: Path) -> None:
    run = trained_run(tmp_path, steps=9, stop_after=4)
    own = run.log_path.read_text()
    other = '{"type": "run.loss", "run_id": "another", "step": 700}\n'
    run.log_path.write_text("not JSON at all\n" + other + "[1, 2]\n" + own)
    with RunFolder.open(run.path) as again:
        again.resume(small_model())
    text = again.log_path.read_text()
    assert text.startswith("not JSON at all\n" + other + "[1, 2]\n")


def test_a_run_whose_log_is_gone_goes_on(tmp_path: Path) -> None:
    run = trained_run(tmp_path, steps=9, stop_after=4)
    run.log_path.unlink()
    with RunFolder.open(run.path) as again:
        assert again.resume(small_model()).step == 4
    assert [line["type"] for line in lines(again)] == ["run.start"]


@pytest.mark.parametrize("length", [1, 65_535, 65_536, 65_537, 200_000])
def test_half_a_line_of_a_killed_process_spoils_no_other(tmp_path: Path, length: int) -> None:
    """It never saved, so a new run begins in its folder."""
    path = tmp_path / "log.jsonl"
    for before in ("", '{"type": "run.start", "run_id": "other"}\n'):
        path.write_text(before + "x" * length)
        with small_run(tmp_path, small_config(), small_model()) as run:
            assert newest_run_id(path) == run.run_id
        assert path.read_text().startswith(before + '{"type": "run.start"')


def test_a_run_that_never_saved_keeps_its_log(tmp_path: Path) -> None:
    with small_run(tmp_path, small_config(), small_model()) as first:
        first.log_sample(1, "a", 1.0)
    with small_run(tmp_path, small_config(), small_model()) as second:
        second.log_sample(1, "b", 1.0)
    assert [line.get("text") for line in lines(second)] == [None, "a", None, "b"]
    assert first.run_id != second.run_id


def test_a_full_disk_delays_the_log_and_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model()
    run = small_run(tmp_path, small_config(), model)

    def full(_descriptor: int, _data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        run.log_sample(1, "while full", 1.0)
        with pytest.raises(RunError, match=r"cannot write .*log.jsonl: No space left"):
            run.save(model, TrainState(step=1))
    run.log_sample(2, "with space again", 1.0)
    run.close()
    texts = [line.get("text") for line in lines(run)]
    assert texts == [None, "while full", "with space again"]


def test_saving_a_step_again_does_nothing(tmp_path: Path) -> None:
    model = small_model()
    with small_run(tmp_path, small_config(), model) as run:
        run.save(model, TrainState(step=1))
        written = run.checkpoint_path.stat().st_mtime_ns
        assert run.save(model, TrainState(step=1)) == run.checkpoint_path
        assert run.checkpoint_path.stat().st_mtime_ns == written
        assert len([line for line in lines(run) if line["type"] == "run.checkpoint"]) == 1


def test_opening_gives_back_everything(tmp_path: Path) -> None:
    run = trained_run(tmp_path, steps=9, stop_after=4)
    for path in (tmp_path, str(tmp_path), run.checkpoint_path):
        with RunFolder.open(path) as again:
            assert again.config == small_config(steps=9, eval_every=2)
            assert again.tokenizer() == small_tokenizer()
            assert again.info.model == small_model().config
            assert again.info.record == {"sources": ["here"]}
            assert again.state().step == 4
            assert again.run_id == run.run_id


def test_resume_with_other_settings_records_them(tmp_path: Path) -> None:
    trained_run(tmp_path, steps=9, stop_after=4)
    model = small_model()
    with RunFolder.open(tmp_path) as run:
        config = dataclasses.replace(run.config, steps=6, learning_rate=5e-3)
        state = run.resume(model, config=config, record={"sources": ["there"]})
        for _ in train(model, small_data(), config, run=run, state=state):
            pass
    with RunFolder.open(tmp_path) as run:
        assert run.config == config
        assert run.info.record == {"sources": ["there"]}
        assert run.state().step == 6


def test_sampling_loads_parameters_alone(tmp_path: Path) -> None:
    model = small_model(seed=4)
    with small_run(tmp_path, small_config(), model) as run:
        run.save(model, TrainState(step=1))
    other = small_model(seed=5)
    with RunFolder.open(tmp_path) as run:
        run.load(other)
        with pytest.raises(RunError, match="opened for reading"):
            run.log_sample(1, "x", 1.0)
    assert state_bytes(other) == state_bytes(model)
    with pytest.raises(RunError, match="closed"):
        run.load(other)


def test_a_folder_without_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunError, match="isn't there"):
        RunFolder.open(tmp_path / "absent")


def test_weights_alone_are_not_resumed(tmp_path: Path) -> None:
    run = trained_run(tmp_path, steps=2)
    model = small_model()
    info = dataclasses.replace(run.info, train=None, state=None)
    save_checkpoint(run.checkpoint_path, model, info)
    with RunFolder.open(tmp_path) as again:
        again.load(model)
        with pytest.raises(CheckpointError, match="weights only"):
            again.resume(model)


def test_a_tokenizer_of_another_size_is_refused(tmp_path: Path) -> None:
    model = small_model(vocab_size=77)
    with small_run(tmp_path, small_config(), model) as run:
        run.save(model, TrainState(step=1))
    size = small_tokenizer().vocab_size
    with (
        RunFolder.open(tmp_path) as run,
        pytest.raises(CheckpointError, match=f"tokenizer has {size} tokens, the model 77"),
    ):
        run.tokenizer()
