"""The checkpoints of a run: which stay, which is read, and what becomes of damaged ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import andrea
from andrea.errors import AndreaError, CheckpointError, RunError
from andrea.runs import RunFolder
from andrea.training import TrainState, train
from small_runs import small_config, small_data, small_model, small_run


def trained(folder: Path, model: andrea.GPT | None = None, **settings: object) -> TrainState:
    """A run of 12 steps, saved at every third; each save waits for the disk."""
    model = small_model() if model is None else model
    config = small_config(**{"steps": 12, "save_every": 3, **settings})
    state = TrainState()
    with small_run(folder, config, model) as run:
        for report in train(model, small_data(), config, run=run, state=state):
            if report.step % 3 == 0:
                run.finish_save()
    return state


def steps_of(folder: Path) -> list[int]:
    names = sorted(os.listdir(folder / "checkpoints"))
    return [int(name.removeprefix("step-").removesuffix(".safetensors")) for name in names]


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08}.safetensors"


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_the_last_ones_stay(tmp_path: Path) -> None:
    trained(tmp_path / "run", keep_last=2)
    assert steps_of(tmp_path / "run") == [9, 12]
    trained(tmp_path / "many", keep_last=9)
    assert steps_of(tmp_path / "many") == [0, 3, 6, 9, 12]


def test_the_best_one_stays_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However old: and it is the model as it was when it was evaluated, though no save was due."""
    model = small_model()
    losses = iter([3.0, 2.0, 2.5, 2.6, 2.7, 2.8])
    parameters = {}

    def forward(*_: object) -> float:
        parameters.setdefault(model.step_count, model.read())
        return next(losses)

    monkeypatch.setattr(model, "forward", forward)
    state = trained(tmp_path / "run", model, eval_every=2, eval_windows=1, keep_last=1)
    assert state.best_step == 4
    assert steps_of(tmp_path / "run") == [4, 12]
    other = small_model(seed=5)
    with RunFolder.open(tmp_path / "run", best=True) as run:
        assert run.checkpoint_path == checkpoint(tmp_path / "run", 4)
        run.load(other)
    for name, values in other.read().items():
        assert values.tobytes() == parameters[4][name].tobytes()


def test_a_run_without_evaluation_has_no_best(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    with pytest.raises(RunError, match="no best checkpoint: it was never evaluated"):
        # Its last step evaluates; the checkpoint of step 9 knows nothing of that.
        RunFolder.open(checkpoint(tmp_path / "run", 9), best=True)


@pytest.mark.parametrize("how", ["a bit", "cut off", "empty"])
def test_a_damaged_newest_one_is_passed_over_and_said(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "run"
    trained(folder)
    newest = checkpoint(folder, 12)
    if how == "a bit":
        damage(newest)
    else:
        newest.write_bytes(newest.read_bytes()[: 3000 if how == "cut off" else 0])
    with RunFolder.open(folder) as run:
        assert run.state().step == 9
        (line,) = run.damaged
        assert str(newest) in line and "\n" not in line


def test_a_resume_from_the_one_before_sets_the_damaged_one_aside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder)
    whole = checkpoint(folder, 12).read_bytes()
    damage(checkpoint(folder, 12))
    broken = checkpoint(folder, 12).read_bytes()
    model = small_model(seed=9)
    with RunFolder.open(folder) as run:
        state = run.resume(model)
        (aside,) = run.set_aside
        assert aside.read_bytes() == broken
        for _ in train(model, small_data(), run.config, run=run, state=state):
            pass
    assert checkpoint(folder, 12).read_bytes() == whole
    assert aside.read_bytes() == broken


def test_resuming_an_older_one_loses_nothing(tmp_path: Path) -> None:
    """The newer ones are renamed: else a later resume would go on from the abandoned line."""
    folder = tmp_path / "run"
    trained(folder)
    model = small_model()
    with RunFolder.open(checkpoint(folder, 9)) as run:
        state = run.resume(model, config=small_config(steps=10, learning_rate=1e-4))
        assert [path.name for path in run.set_aside] == ["step-00000012.safetensors.set-aside"]
        for _ in train(model, small_data(), run.config, run=run, state=state):
            pass
    with RunFolder.open(folder) as run:
        assert run.state().step == 10


def test_what_was_set_aside_before_stays(tmp_path: Path) -> None:
    """Two ways are tried from one checkpoint: the end of the first is there after the second."""
    folder = tmp_path / "run"
    trained(folder)
    ends = [checkpoint(folder, 12).read_bytes()]
    for learning_rate in (1e-4, 1e-3):
        model = small_model()
        with RunFolder.open(checkpoint(folder, 9)) as run:
            config = small_config(steps=12, learning_rate=learning_rate)
            state = run.resume(model, config=config)
            for _ in train(model, small_data(), config, run=run, state=state):
                pass
        ends.append(checkpoint(folder, 12).read_bytes())
    kept = [path.read_bytes() for path in (folder / "checkpoints").iterdir()]
    assert len(set(ends)) == 3 and set(ends) <= set(kept)


def test_a_checkpoint_with_the_name_of_another_step_is_passed_over(tmp_path: Path) -> None:
    """It is not newer than those whose names are right."""
    folder = tmp_path / "run"
    trained(folder)
    wrong = checkpoint(folder, 77)
    checkpoint(folder, 9).rename(wrong)
    with RunFolder.open(folder) as run:
        assert run.state().step == 12
        assert [f"{wrong} was renamed, for it holds step 9" in line for line in run.damaged] == [
            True
        ]
    with RunFolder.open(wrong) as run:
        assert run.state().step == 9
    checkpoint(folder, 12).unlink()
    with pytest.raises(CheckpointError, match="holds step 9: give it the name of its step"):
        RunFolder.open(folder)


def test_a_pipe_in_place_of_a_file_holds_up_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder)
    os.mkfifo(checkpoint(folder, 15))
    (folder / "checkpoints" / "step-00000018.safetensors").mkdir()
    with RunFolder.open(folder) as run:
        assert run.state().step == 12
        assert ["it is not a file" in line for line in run.damaged] == [True, True]
    (folder / "log.jsonl").unlink()
    os.mkfifo(folder / "log.jsonl")
    with RunFolder.open(folder) as run, pytest.raises(RunError, match="it is not a file"):
        run.resume(small_model())


def test_where_all_are_damaged_that_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder)
    for step in steps_of(folder):
        damage(checkpoint(folder, step))
    with pytest.raises(CheckpointError, match="none of its 2 checkpoints can be used"):
        RunFolder.open(folder)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(folder)
    left = folder / "checkpoints" / "step-00000015.safetensors.tmp"
    left.write_bytes(b"half")
    notes = folder / "checkpoints" / "notes.tmp"
    notes.write_text("somebody's own")
    with RunFolder.open(folder) as run:
        assert left.exists(), "reading changes nothing"
        run.resume(small_model(), config=small_config(steps=15))
        assert not left.exists()
    assert notes.exists(), "what others put there is theirs"


def test_a_save_that_fails_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old checkpoints go only after a newer one is on the disk."""
    folder = tmp_path / "run"
    trained(folder, keep_last=2)
    model = small_model()
    with RunFolder.open(folder) as run:
        state = run.resume(model, config=small_config(steps=20, keep_last=1))
        state.step = 15
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(AndreaError, match="Input/output error"):
            run.save(model, state)
        assert steps_of(folder) == [9, 12]
        monkeypatch.undo()
        run.save(model, state)
    assert steps_of(folder) == [12, 15], "12 was the best"


def test_where_the_best_could_not_be_saved_the_one_before_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model = tmp_path / "run", small_model()
    config = small_config(keep_last=1)
    with small_run(folder, config, model) as run:
        run.save(model, TrainState(step=3, best_loss=2.0, best_step=3))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(AndreaError, match="Input/output error"):
                run.save(model, TrainState(step=6, best_loss=1.9, best_step=6))
        run.save(model, TrainState(step=9, best_loss=1.9, best_step=6))
    assert steps_of(folder) == [3, 9]
    with pytest.raises(RunError, match="no best checkpoint: that of step 6 isn't in"):
        RunFolder.open(folder, best=True)


def refuse(_descriptor: int) -> None:
    raise OSError(5, "Input/output error")
