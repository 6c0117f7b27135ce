"""`andrea train --init-from`: a new run that begins with weights which learned something before."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import andrea
from andrea.runconfig import read_config
from andrea.runs.checkpoint import CheckpointInfo, save_checkpoint
from andrea.runs.folder import RunFolder
from cli_process import TEXT, TINY_RUN, Shell

STEPS = 40


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A run of the book, its weights alone, and another text of the same characters."""
    shell = Shell(tmp_path_factory.mktemp("init"))
    typed = ("--learning-rate", "0.01", "--steps", str(STEPS), "--eval-every", "0")
    shell.succeed("train", "book.txt", *TINY_RUN, *typed, "--out", "base")
    with RunFolder.open(shell.folder / "base") as run:
        model = andrea.GPT(run.info.model)
        run.load(model)
        info = CheckpointInfo(run.info.model, run.info.tokenizer)
        save_checkpoint(shell.folder / "weights.safetensors", model, info)
    other = TEXT.replace("lazy", "quick").replace("fox", "dog")
    (shell.folder / "poem.txt").write_text(other, encoding="utf-8")
    return shell


def parameters(path: Path) -> dict[str, np.ndarray]:
    with RunFolder.open(path) as run:
        model = andrea.GPT(run.info.model)
        run.load(model)
        return model.read()


def first_loss(run: Path) -> float:
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(line) for line in lines]
    return float(next(entry["loss"] for entry in losses if entry["type"] == "run.loss"))


def test_a_new_run_goes_on_from_the_weights(shell: Shell) -> None:
    """With its own text, steps and optimizer, the shape and the tokenizer of the weights."""
    typed = ("train", "poem.txt", "--init-from", "base", "--batch-size", "4", "--steps", "6")
    output = shell.succeed(*typed, "--seed", "5", "--warmup", "0", "--out", "tuned")
    tuned = shell.folder / "tuned"
    assert re.search(rf"^weights +those of base/.*, after {STEPS} steps$", output, re.MULTILINE)
    assert re.search(r"^rate +[\d.e-]+, 0\.3 of a new model's", output, re.MULTILINE)
    assert "tokenizer   char, " in output and "1 layer, 2 heads, 32 wide, context 16" in output
    assert first_loss(tuned) < 0.8 * np.log(45)  # a new model begins at the logarithm of these
    with RunFolder.open(tuned) as run, RunFolder.open(shell.folder / "base") as base:
        assert run.state().step == 6
        assert run.info.model == base.info.model and run.info.tokenizer == base.info.tokenizer
        source = run.info.record["init_from"]
        assert source == str(base.checkpoint_path)
    assert first_loss(tuned) < first_loss(shell.folder / "base")

    # The very same from the weights alone: nothing else of the old run is in it.
    output = shell.succeed(
        *(word if word != "base" else "weights.safetensors" for word in typed),
        *("--seed", "5", "--warmup", "0", "--out", "lone"),
    )
    assert "those of weights.safetensors\n" in output
    lone = parameters(shell.folder / "lone")
    for name, value in parameters(tuned).items():
        assert np.array_equal(value, lone[name]), name

    # And the same again from the file that tells how it was made.
    written = read_config(tuned / "config.toml")
    assert written["init_from"] == source and written["n_layer"] == 1
    shell.succeed("train", "--config", "tuned/config.toml", "--out", "twice")
    newest = "checkpoints/step-00000006.safetensors"
    assert (tuned / newest).read_bytes() == (shell.folder / "twice" / newest).read_bytes()


def test_the_first_checkpoint_is_the_weights(shell: Shell) -> None:
    """Measuring the speed trains the model a little; nothing of that may stay."""
    typed = ("train", "poem.txt", "--init-from", "base", "--steps", "2", "--warmup", "1000000")
    shell.succeed(*typed, "--learning-rate", "1e-30", "--weight-decay", "0", "--out", "still")
    base = parameters(shell.folder / "base")
    for name, value in parameters(shell.folder / "still").items():
        assert np.array_equal(value, base[name]), name


def test_a_file_of_weights_cannot_be_resumed(shell: Shell) -> None:
    line = shell.refuse("train", "--resume", "weights.safetensors")
    assert "holds weights only" in line and "--init-from weights.safetensors" in line


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--n-layer", "2", "--n-layer is 1 in these weights and cannot become 2"),
        ("--tokenizer", "byte", "--tokenizer is char in these weights"),
        ("--vocab-size", "999", "--vocab-size is"),
        ("--preset", "andrea-nano", "--preset andrea-nano has block_size 128, these weights have"),
    ],
)
def test_another_shape_is_refused(option: str, value: str, told: str, shell: Shell) -> None:
    line = shell.refuse("train", "poem.txt", "--init-from", "base", option, value)
    assert told in line and "or leave out --init-from" in line


def test_the_same_shape_may_be_repeated(shell: Shell) -> None:
    shell.succeed(
        *("train", "poem.txt", "--init-from", "base", "--n-embd", "32", "--tokenizer", "char"),
        *("--steps", "1", "--out", "repeated"),
    )


@pytest.mark.parametrize("block_size", [8, 40])
def test_the_context_may_be_cropped_and_extended(block_size: int, shell: Shell) -> None:
    """Positions keep what they learned; more of them begin as those, over and over."""
    name = f"context-{block_size}"
    typed = ("train", "poem.txt", "--init-from", "base", "--block-size", str(block_size))
    typed += ("--steps", "2", "--warmup", "1000000", "--learning-rate", "1e-30")
    output = shell.succeed(*typed, "--weight-decay", "0", "--out", name)
    assert f"their context of 16 becomes {block_size}" in output
    base, changed = parameters(shell.folder / "base"), parameters(shell.folder / name)
    positions = base.pop("wpe.weight")
    found = changed.pop("wpe.weight")
    assert np.array_equal(found, np.concatenate([positions] * 3)[:block_size])
    for tensor, value in changed.items():
        assert np.array_equal(value, base[tensor]), tensor
    # And once more from the file that tells how it was made.
    shell.succeed("train", "--config", f"{name}/config.toml", "--out", f"{name}-again")
    again = parameters(shell.folder / f"{name}-again")
    assert np.array_equal(again["wpe.weight"], found)


def test_a_text_with_other_characters_is_told(shell: Shell) -> None:
    (shell.folder / "greek.txt").write_text("αβγ " * 400, encoding="utf-8")
    line = shell.refuse("train", "greek.txt", "--init-from", "base")
    assert "U+03B1" in line


def test_what_is_no_run_is_told(shell: Shell) -> None:
    assert "nowhere" in shell.refuse("train", "poem.txt", "--init-from", "nowhere")


def test_a_damaged_newest_checkpoint_is_passed_over_and_told(shell: Shell) -> None:
    copy = shell.folder / "damaged"
    shutil.copytree(shell.folder / "base", copy)
    older, newest = sorted((copy / "checkpoints").glob("*.safetensors"))[-2:]
    data = bytearray(newest.read_bytes())
    data[-100] ^= 1
    newest.write_bytes(data)
    typed = ("train", "poem.txt", "--init-from", "damaged", "--steps", "1", "--out", "saved")
    output = shell.succeed(*typed)
    assert newest.name in output and "damaged" in output
    with RunFolder.open(shell.folder / "saved") as run:
        assert run.info.record["init_from"] == str(older)


def test_weights_do_not_hold_on_to_their_run(shell: Shell) -> None:
    """The source can be trained on at the same time: it is read, not locked."""
    with RunFolder.open(shell.folder / "base") as base:
        model = andrea.GPT(base.info.model)
        config = dataclasses.replace(base.config, steps=STEPS + 1)
        base.resume(model, config=config)
        typed = ("train", "poem.txt", "--init-from", "base", "--steps", "1", "--out", "beside")
        shell.succeed(*typed)
