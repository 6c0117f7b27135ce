"""Bad steps done again: the same bits as recorded, or a word about what is not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.data import PreparedData
from andrea.errors import RunError
from andrea.runs.folder import RunFolder
from andrea.runs.incident_file import Incident, encode, read_incident
from andrea.runs.incidents import incident_paths
from andrea.runs.replay import Replay, Replayed
from andrea.training import TrainConfig, TrainState, train
from cli_process import TINY_RUN, Shell, checkpoints
from small_runs import small_config, small_data, small_model, small_run

# So low that every run has outliers.
SENSITIVE: dict[str, Any] = {"steps": 50, "save_every": 10, "keep_last": 100, "outlier_z": 0.7}


def recorded(folder: Path, config: TrainConfig, stops: tuple[int, ...] = ()) -> list[Incident]:
    """The incidents of a run that was stopped and resumed after each of the steps."""
    model, state = small_model(), TrainState()
    run = small_run(folder, config, model)
    for stop in (*stops, None):
        reports = train(model, small_data(), config, run=run, state=state)
        for report in reports:
            run.finish_save()
            if report.step == stop:
                break
        reports.close()
        run.save(model, state)
        run.close()
        if stop is not None:
            model, run = small_model(seed=9), RunFolder.open(folder)
            state = run.resume(model)
    return [read_incident(path) for path in incident_paths(folder)]


def replayed(
    folder: Path,
    incident: Incident,
    data: PreparedData | None = None,
    model: andrea.GPT | None = None,
) -> Replayed:
    with Replay(folder, incident) as replay:
        return replay.do(model or small_model(seed=5), data or small_data())


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, ()),
        ({"skip_outliers": True}, ()),
        ({"accumulate": 2, "schedule": "linear"}, (21, 34)),
        ({"max_norm": 0.0, "weight_decay": 0.3, "beta2": 0.9}, (25,)),
    ],
)
def test_outliers_come_again_bit_for_bit(
    tmp_path: Path, changes: dict[str, Any], stops: tuple[int, ...]
) -> None:
    incidents = recorded(tmp_path, small_config(**SENSITIVE, **changes), stops)
    assert len(incidents) >= 2
    for incident in incidents:
        steps: list[int] = []
        with Replay(tmp_path, incident) as replay:
            start = replay.state.step
            done = replay.do(small_model(seed=5), small_data(), steps.append)
        assert done.is_same and done.different == () and done.first_different is None
        assert (done.loss, done.norm, done.z) == (incident.loss, incident.norm, incident.z)
        assert done.measured == incident.measured
        assert done.skipped == bool(changes.get("skip_outliers")) != incident.updated
        assert steps == list(range(start + 1, incident.step + 1))
        assert done.compared == len(steps)
        newest = max(n for n in (*range(0, 50, 10), *stops) if n < incident.step)
        assert start == newest


def test_a_step_that_is_not_finite_comes_again(tmp_path: Path) -> None:
    config = small_config(steps=30, learning_rate=1e18, max_skipped=3)
    with pytest.raises(RunError, match="not finite"):
        recorded(tmp_path, config)
    incidents = [read_incident(path) for path in incident_paths(tmp_path)]
    assert [incident.step for incident in incidents] == [2, 3, 4]
    for incident in incidents:
        done = replayed(tmp_path, incident)
        assert done.is_same and done.skipped
        assert not np.isfinite(done.norm)
        first = done.measured.first_not_finite
        assert first is not None and first.startswith("activations ")
        assert first == incident.measured.first_not_finite


def test_any_number_of_threads_gives_the_bits(tmp_path: Path) -> None:
    before = andrea.get_num_threads()
    try:
        andrea.set_num_threads(1)
        incident = recorded(tmp_path, small_config(**SENSITIVE))[-1]
        andrea.set_num_threads(3)
        assert replayed(tmp_path, incident).is_same
    finally:
        andrea.set_num_threads(before)


def test_what_followed_the_clock_goes_by_the_log(tmp_path: Path) -> None:
    changes = {**SENSITIVE, "steps": None, "seconds": 3.0, "keep_last": 1000}
    incident = recorded(tmp_path, small_config(**changes))[-1]
    done = replayed(tmp_path, incident)
    assert done.is_same and done.first_different is None
    with Replay(tmp_path, incident) as replay:
        start = replay.state.step
    (tmp_path / "log.jsonl").unlink()
    if incident.step == start + 1:  # its own learning rate is in its file
        assert replayed(tmp_path, incident).is_same
    else:
        with pytest.raises(RunError, match=f"learning rate of step {start + 1}"):
            replayed(tmp_path, incident)


def test_without_a_log_the_schedule_is_known(tmp_path: Path) -> None:
    incident = recorded(tmp_path, small_config(**SENSITIVE))[-1]
    (tmp_path / "log.jsonl").unlink()
    done = replayed(tmp_path, incident)
    assert done.is_same and done.compared == 0


def test_the_log_is_compared(tmp_path: Path) -> None:
    incident = recorded(tmp_path, small_config(**{**SENSITIVE, "save_every": 0}))[-1]
    log = tmp_path / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line["type"] == "run.loss" and line["step"] == 7:
            line["loss"] = float(np.nextafter(np.float32(line["loss"]), np.float32(9)))
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = replayed(tmp_path, incident)
    assert done.is_same and done.first_different == 7 and done.compared == incident.step


def test_what_differs_is_named(tmp_path: Path) -> None:
    incident = recorded(tmp_path, small_config(**SENSITIVE))[-1]
    other = andrea.GPT(incident.model, device="cpu", precision="bf16")
    done = replayed(tmp_path, incident, model=other)
    assert not done.is_same
    assert done.different[:2] == ("loss", "norm")
    assert "gradients wte.weight" in done.different
    with Replay(tmp_path, incident) as replay:
        assert done.first_different == replay.state.step + 1

    sizes = dict(incident.measured.activations)
    sizes["ln_f"] = sizes["ln_f"]._replace(not_finite=1)
    del sizes["losses"]
    changed = dataclasses.replace(incident.measured, activations=sizes)
    done = replayed(tmp_path, dataclasses.replace(incident, measured=changed, norm=np.nan))
    assert done.different == ("norm", "activations ln_f", "activations losses")


def test_another_text_is_refused(tmp_path: Path) -> None:
    incident = recorded(tmp_path, small_config(**SENSITIVE))[-1]
    data = small_data()
    other = dataclasses.replace(data, train=np.roll(data.train, 1))
    with pytest.raises(RunError, match="gives other batches for step"):
        replayed(tmp_path, incident, other)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    incident = recorded(tmp_path, small_config(**SENSITIVE))[-1]
    before = [path for path in checkpoints(tmp_path) if _step(path) < incident.step]
    content = bytearray(before[-1].read_bytes())
    content[-1] ^= 1
    before[-1].write_bytes(content)
    with Replay(tmp_path, incident) as replay:
        assert replay.state.step == _step(before[-2])
        assert len(replay.damaged) == 1 and str(before[-1]) in replay.damaged[0]
        assert replay.do(small_model(), small_data()).is_same
    for path in before:
        path.unlink()
    with pytest.raises(RunError, match=f"no checkpoint left of before step {incident.step}"):
        Replay(tmp_path, incident)


def test_a_record_of_another_model_is_refused(tmp_path: Path) -> None:
    incident = recorded(tmp_path, small_config(**SENSITIVE))[-1]
    other = dataclasses.replace(incident.model, n_layer=3)
    with pytest.raises(RunError, match="of another model"):
        Replay(tmp_path, dataclasses.replace(incident, model=other))


def _step(checkpoint: Path) -> int:
    return int(checkpoint.stem.split("-")[1])


# ---- the command


OUTLIERS = ("--steps", "40", "--save-every", "10", "--outlier-z", "0.7", "--threads", "1")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with a run that has several incidents."""
    shell = Shell(tmp_path_factory.mktemp("replay"))
    shell.succeed("train", "book.txt", *TINY_RUN, *OUTLIERS, "--out", "run")
    assert len(incident_paths(shell.folder / "run")) > 1
    return shell


def test_several_are_listed(shell: Shell) -> None:
    steps = [read_incident(path).step for path in incident_paths(shell.folder / "run")]
    listed = shell.succeed("replay", "run")
    for step in steps:
        assert f"\n{step:>10}  outlier, z " in listed
    assert listed.endswith(f"one of them again: andrea replay run --step {steps[0]}\n")
    facts = json.loads(shell.succeed("replay", "run", "--json"))
    assert [each["step"] for each in facts["incidents"]] == steps


def test_one_is_replayed(shell: Shell) -> None:
    step = read_incident(incident_paths(shell.folder / "run")[-1]).step
    told = shell.succeed("replay", "run", "--step", str(step))
    assert told.splitlines()[0].startswith(f"step        {step}: outlier, ")
    assert "with the losses that the log tells, bit for bit" in told
    assert told.endswith("\nthe same bits as recorded: the step is reproduced\n")
    assert "differs" not in told
    facts = json.loads(shell.succeed("replay", "run", "--step", str(step), "--json"))
    assert facts["is_same"] and facts["recorded"] == facts["replayed"]
    assert facts["recorded"]["sizes"]["gradients"]["wte.weight"]["norm"] > 0

    other = shell.succeed("replay", "run", "--step", str(step), "--precision", "bf16")
    assert "\nnot the same bits as recorded: " in other
    assert "other devices, precisions and instruction sets round in other ways" in other
    assert "  differs\n" in other


def test_a_text_elsewhere_is_named(shell: Shell) -> None:
    step = str(read_incident(incident_paths(shell.folder / "run")[0]).step)
    book, moved = shell.folder / "book.txt", shell.folder / "moved.txt"
    book.rename(moved)
    try:
        assert "book.txt" in shell.refuse("replay", "run", "--step", step)
        assert "reproduced" in shell.succeed("replay", "run", "moved.txt", "--step", step)
        moved.write_text(moved.read_text() + "and more")
        line = shell.refuse("replay", "run", "moved.txt", "--step", step)
        assert "moved.txt is not the text that the run learned from" in line
    finally:
        moved.write_text(moved.read_text().removesuffix("and more"))
        moved.rename(book)


def test_what_cannot_be_replayed_is_said_in_a_line(shell: Shell) -> None:
    assert "nowhere isn't there" in shell.refuse("replay", "nowhere")
    assert "no step that went wrong" in shell.refuse("replay", ".")
    line = shell.refuse("replay", "run", "--step", "99")
    first = read_incident(incident_paths(shell.folder / "run")[0]).step
    assert f"run has no record of step 99; of these: {first}, " in line
    path = incident_paths(shell.folder / "run")[0]
    content = path.read_bytes()
    odd = dataclasses.replace(read_incident(path), record={"sources": 7})
    path.write_bytes(encode(odd))
    try:
        assert "its record has sources 7" in shell.refuse("replay", "run")
        path.write_bytes(content[: len(content) // 2])
        assert "damaged or no incident" in shell.refuse("replay", "run")
    finally:
        path.write_bytes(content)
