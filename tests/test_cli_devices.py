"""`--device`: which one a run gets, what it says about that, and runs that move to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import andrea
from andrea.runs.checkpoint import Checkpoint
from andrea.runs.folder import RunFolder
from cli_process import TINY_RUN, Shell, checkpoints
from small_runs import small_config, small_data, small_model, small_run

INFO = andrea.cuda_info()
without_gpu = pytest.mark.skipif(INFO.usable, reason="this library has a GPU to use")
with_gpu = pytest.mark.skipif(not INFO.usable, reason=f"no CUDA device: {INFO.reason}")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def recorded(run: Path) -> dict[str, Any]:
    with Checkpoint(checkpoints(run)[-1]) as checkpoint:
        return dict(checkpoint.info.record)


@without_gpu
def test_auto_says_why_it_is_the_cpu(shell: Shell) -> None:
    options = (*TINY_RUN, "--steps", "2")
    first = shell.succeed("train", "book.txt", *options).splitlines()[0]
    reason = INFO.reason.partition(";")[0].partition(" (")[0]
    assert first.startswith("machine ") and first.endswith(f"instructions; no GPU: {reason}")
    # Asked for, it needs no reason.
    first = shell.succeed("train", "book.txt", *options, "--device", "cpu").splitlines()[0]
    assert first.endswith("instructions")
    machine = json.loads(shell.succeed("info", "--json"))["machine"]
    assert (machine["devices"], machine["gpu"], machine["no_gpu"]) == (["cpu"], "", INFO.reason)
    assert "gpu           none: " in shell.succeed("info")


@without_gpu
def test_a_device_that_is_not_there_is_refused_before_anything_is_made(shell: Shell) -> None:
    for length in (("--steps", "2"), ("--for", "2s")):
        line = shell.refuse("train", "book.txt", *TINY_RUN, *length, "--device", "cuda")
        assert "'cuda" in line  # with its number where the build has CUDA
    assert "'tpu'" in shell.refuse("train", "book.txt", *TINY_RUN, "--device", "tpu")
    assert not (shell.folder / "runs").exists()


@without_gpu
def test_a_run_of_a_gpu_goes_on_here_when_told_to(shell: Shell) -> None:
    options = (*TINY_RUN, "--steps", "2", "--device", "cpu")
    shell.succeed("train", "book.txt", *options, "--out", "run")
    run = shell.folder / "run"
    model = andrea.GPT(RunFolder.open(run).info.model, device="cpu", precision="fp32")
    with RunFolder.open(run) as opened:
        record = {**opened.info.record, "device": "cuda:1"}
        state = opened.resume(model, record=record)
        state.step += 1  # as if one more had been done there
        opened.save(model, state)
    assert recorded(run)["device"] == "cuda:1"
    line = shell.refuse("train", "--resume", "run", "--steps", "5")
    assert "'cuda:1'" in line and "--device cpu" in line
    output = shell.succeed("train", "--resume", "run", "--steps", "5", "--device", "auto")
    assert "device: cuda:1 -> auto" in output and "done: 5 steps" in output
    assert recorded(run)["device"] == "auto"


@pytest.mark.gpu
@with_gpu
def test_a_run_moves_between_devices(shell: Shell) -> None:
    shell.succeed("train", "book.txt", *TINY_RUN, "--steps", "4", "--device", "cuda", "--out", "a")
    output = shell.succeed("train", "--resume", "a", "--steps", "6", "--device", "cpu")
    assert "device: cuda -> cpu" in output
    output = shell.succeed("train", "--resume", "a", "--steps", "8", "--device", "cuda")
    assert "device: cpu -> cuda" in output and "done: 8 steps" in output
    texts = {
        device: shell.succeed(
            "sample", "a", "--device", device, "--temperature", "0", "--tokens", "20"
        )
        for device in ("cpu", "cuda")
    }
    assert texts["cpu"] == texts["cuda"]


@pytest.mark.gpu
@with_gpu
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_run_on_a_gpu_resumes_exactly(tmp_path: Path, accumulate: int) -> None:
    from small_runs import interrupted_run

    config = small_config(steps=8, accumulate=accumulate, save_every=3, eval_every=4)

    def model_of(seed: int) -> andrea.GPT:
        shape = small_model().config
        return andrea.GPT(shape, device="cuda", precision="fp32", seed=seed)

    whole = interrupted_run(tmp_path / "whole", config, [], model_of)
    parts = interrupted_run(tmp_path / "parts", config, [2, 5], model_of)
    assert whole == parts


@pytest.mark.gpu
@with_gpu
def test_training_curves_of_cpu_and_gpu_agree(tmp_path: Path) -> None:
    from andrea.training import train

    losses = {}
    for device in ("cpu", "cuda"):
        config = small_config(steps=12, accumulate=2)
        model = andrea.GPT(small_model().config, device=device, precision="fp32")
        with small_run(tmp_path / device, config, model) as run:
            losses[device] = [r.loss for r in train(model, small_data(), config, run=run)]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-4)
