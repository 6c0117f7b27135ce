"""An interrupted run is the run that was never interrupted: bytes, log, guards, and memory."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from andrea.data import BatchSampler
from andrea.runs import RunFolder
from andrea.training import TrainConfig, TrainState, train
from cli_process import ANDREA, TEXT, TINY
from small_runs import interrupted_run, small_config, small_data, small_model, small_run


def uninterrupted_run(folder: Path, config: TrainConfig) -> bytes:
    model = small_model()
    with small_run(folder, config, model) as run:
        for _ in train(model, small_data(), config, run=run):
            pass
        return run.checkpoint_path.read_bytes()


def told(folder: Path) -> list[dict[str, Any]]:
    """What the log says of the run itself: without times, sessions and files."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    kept = [line for line in lines if line["type"] in ("run.loss", "run.eval", "run.notice")]
    return [
        {key: value for key, value in line.items() if key not in NOT_OF_THE_RUN} for line in kept
    ]


NOT_OF_THE_RUN = ("ts", "run_id", "tokens_per_second")


def test_logs_join_without_doubled_or_missing_steps(tmp_path: Path) -> None:
    """Also where the log had gone on after the checkpoint that is resumed."""
    config = small_config(steps=16, eval_every=5)
    whole = uninterrupted_run(tmp_path / "whole", config)
    folder = tmp_path / "killed"
    model, state = small_model(), TrainState()
    run = small_run(folder, config, model)
    for report in train(model, small_data(), config, run=run, state=state):
        if report.step == 6:
            run.save(model, state)
        if report.step == 11:
            run._log.flush()  # type: ignore[union-attr]
            break
    model = small_model(seed=3)
    run.close()  # as the end of a process would, without a save
    with RunFolder.open(folder) as run:
        state = run.resume(model)
        for _ in train(model, small_data(), run.config, run=run, state=state):
            pass
        assert run.checkpoint_path.read_bytes() == whole
    assert told(folder) == told(tmp_path / "whole")
    steps = [line["step"] for line in told(folder) if line["type"] == "run.loss"]
    assert steps == list(range(1, 17))


@pytest.mark.parametrize("skip", [True, False])
def test_guards_judge_as_if_nothing_had_happened(tmp_path: Path, skip: bool) -> None:
    """With a limit so low that many steps are outliers."""
    config = small_config(steps=60, outlier_z=1.0, skip_outliers=skip, eval_every=6, early_stop=30)
    whole = uninterrupted_run(tmp_path / "whole", config)
    outliers = [line["step"] for line in told(tmp_path / "whole") if "outlier" in line]
    assert len(outliers) > 4
    stops = [19, 25, outliers[2], outliers[3], 59]
    assert interrupted_run(tmp_path / "parts", config, sorted(set(stops)), small_model) == whole
    assert told(tmp_path / "parts") == told(tmp_path / "whole")


@pytest.mark.complete
@pytest.mark.parametrize("seed", range(60))
def test_any_run_stopped_anywhere(tmp_path: Path, seed: int) -> None:
    """Random settings, stops and thread counts; half of the runs cross epochs."""
    import andrea

    choose = random.Random(seed)
    steps = choose.randint(12, 60)
    config = small_config(
        steps=steps,
        batch_size=choose.randint(1, 7),
        accumulate=choose.choice([1, 1, 3, 4]),
        eval_every=choose.choice([0, 1, 5]),
        save_every=choose.choice([0, 1, 4]),
        schedule=choose.choice(["cosine", "linear", "constant", "wsd"]),
        outlier_z=choose.choice([0.0, 1.0, 8.0]),
        skip_outliers=choose.random() < 0.5,
        keep_last=choose.randint(1, 3),
        seed=seed,
    )
    stops = sorted(choose.sample(range(1, steps), choose.randint(1, 5)))
    before = andrea.get_num_threads()
    try:
        whole = uninterrupted_run(tmp_path / "whole", config)
        andrea.set_num_threads(choose.randint(1, 4))
        assert interrupted_run(tmp_path / "parts", config, stops, small_model) == whole
    finally:
        andrea.set_num_threads(before)
    assert told(tmp_path / "parts") == told(tmp_path / "whole")


def test_the_border_of_an_epoch_is_crossed() -> None:
    """The runs above see the text more than once."""
    windows = BatchSampler(small_data().train, 4, 16).windows_per_epoch
    assert 1.2 * windows < 60 * 4


def peak_memory(folder: Path, *arguments: str) -> int:
    """Highest resident memory of `andrea`, in bytes."""
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(
            [ANDREA, *arguments],
            cwd=folder,
            env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=nowhere,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return 1024 * usage.ru_maxrss


def test_a_resume_takes_no_more_memory_than_the_first_run(tmp_path: Path) -> None:
    """Its state is read into the model's memory, never beside it."""
    (tmp_path / "book.txt").write_text(TEXT, "utf-8")
    wide = ("--n-embd", "512", "--n-head", "4", "--n-layer", "3", "--batch-size", "2")
    options = ("train", "book.txt", *TINY, *wide, "--save-every", "2", "--out", "run")
    first = peak_memory(tmp_path, *options, "--steps", "5")
    resumed = peak_memory(tmp_path, "train", "--resume", "run", "--steps", "8")
    parameters = 12 * 3 * 512**2
    assert first > 4 * 4 * parameters, "the state is what counts"
    assert resumed < 1.03 * first
