"""Checkpoints in the background: of the state as it was, told when done, and never in the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import andrea
from andrea.errors import CheckpointError
from andrea.runs import RunFolder, writer
from andrea.training import TrainState, train
from patience import PATIENCE
from small_runs import small_config, small_data, small_model, small_run


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Checkpoints reach the disk when the event is set."""
    opened = threading.Event()
    write = writer.write_checkpoint

    def wait_and_write(*arguments: object) -> int:
        assert opened.wait(PATIENCE)
        return write(*arguments)

    monkeypatch.setattr(writer, "write_checkpoint", wait_and_write)
    return opened


def test_training_goes_on_while_the_disk_is_slow(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    """And what is written is the state of the step that it is named after."""
    plain = small_model()
    for report in train(plain, small_data(), small_config(steps=12)):
        if report.step == 4:
            break
    model, state = small_model(), TrainState()
    config = small_config(steps=12, save_every=4, keep_last=9)
    run = small_run(tmp_path / "run", config, model)
    slow_disk.set()
    saved = []
    for report in train(model, small_data(), config, run=run, state=state):
        saved += [report.saved] if report.saved else []
        if report.step == 3:
            slow_disk.clear()  # training runs into this at step 4 and doesn't stop
        if report.step == 7:
            assert not saved
            slow_disk.set()
            run.finish_save()
    with RunFolder.open(tmp_path / "run" / "checkpoints" / "step-00000004.safetensors") as early:
        assert early.state().step == 4
        early.load(model)
    for name, values in model.read().items():
        assert values.tobytes() == plain.read()[name].tobytes()
    run.close()


def test_a_save_that_is_due_while_the_disk_is_busy_comes_later(
    tmp_path: Path, slow_disk: threading.Event
) -> None:
    model = small_model()
    config = small_config(steps=20, save_every=4, keep_last=20)
    slow_disk.set()
    run = small_run(tmp_path, config, model)
    for report in train(model, small_data(), config, run=run):
        if report.step == 3:
            slow_disk.clear()
        if report.step == 10:  # 4 is being written, 8 waits
            slow_disk.set()
            run.finish_save()
            slow_disk.clear()
        if report.step == 15:  # 11 is being written, 12 waits
            slow_disk.set()
            run.finish_save()
    run.close()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert "step-00000004.safetensors" in names and "step-00000011.safetensors" in names
    assert "step-00000008.safetensors" not in names
    assert names[-1] == "step-00000020.safetensors"


def test_without_room_for_a_copy_training_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a checkpoint has the same bytes, and no copy is made."""
    model = small_model()
    contents = []
    for name, room in (("copied", True), ("direct", False)):
        monkeypatch.setattr(writer, "_fits", lambda _bytes, room=room: room)
        with small_run(tmp_path / name, small_config(), model) as run:
            assert run.begin_save(model, TrainState())
            assert room or not run._writer.is_busy
            assert (run._writer._memory is not None) == room
            run.finish_save()
            contents.append(run.checkpoint_path.read_bytes())
    assert contents[0] == contents[1]


def test_numbers_that_are_not_finite_rotate_nothing_out(tmp_path: Path) -> None:
    model: andrea.GPT = small_model()
    config = small_config(keep_last=1)
    with small_run(tmp_path, config, model) as run:
        state = TrainState(step=3)
        run.save(model, state)
        model.parameters()["h.0.mlp.c_fc.weight"][2, 5] = float("inf")
        state.step = 4
        assert run.begin_save(model, state)
        run._writer.wait()
        written = run.take_written()
        assert written is not None and isinstance(written.error, CheckpointError)
        assert "h.0.mlp.c_fc.weight holds values that are not finite" in str(written.error)
        with pytest.raises(CheckpointError, match="not finite"):
            run.save(model, state)
    with RunFolder.open(tmp_path) as run:
        assert run.state().step == 3
