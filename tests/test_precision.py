"""Precision of the CPU backend: which there are, which "auto" picks, and what bf16 must not change.

How near bf16 comes to the truth stands in tests/ops and test_parity.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import andrea
from andrea.runs.folder import RunFolder
from andrea.training import TrainConfig, train
from ops.device import ISAS, PRECISIONS, Device, Kind
from small_runs import (
    interrupted_run,
    small_config,
    small_data,
    small_model,
    state_bytes,
)

CONFIG = andrea.ModelConfig(vocab_size=19, block_size=24, n_layer=2, n_head=2, n_embd=32)
TOKENS = np.random.default_rng(8).integers(0, 19, (3, 24), np.int32)
TARGETS = np.roll(TOKENS, -1, axis=1)


@pytest.fixture
def default_threads() -> Iterator[None]:
    yield
    andrea.set_num_threads(0)


def bf16_model(seed: int = 0, config: andrea.ModelConfig = CONFIG) -> andrea.GPT:
    return andrea.GPT(config, device="cpu", precision="bf16", seed=seed)


# ---- which precision


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_instruction_set_has_both(isa: str, precision: str, tmp_path: Path) -> None:
    """Elsewhere a precision that isn't there is skipped; here it fails."""
    if isa not in andrea.available_instruction_sets():
        pytest.skip(f"no device cpu-{isa}")
    Device(Kind("cpu", precision, isa), tmp_path).close()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model_says_its_precision(precision: str) -> None:
    model = andrea.GPT(CONFIG, precision=precision)
    assert (model.device, model.precision) == ("cpu", precision)
    assert precision in repr(model)


CHILD = "import andrea; print(andrea.GPT(andrea.ModelConfig(3, 2, 1, 1, 2)).precision)"


@pytest.mark.parametrize("isa", ISAS)
def test_auto_is_bf16_where_the_instruction_set_computes_it(isa: str) -> None:
    if isa not in andrea.available_instruction_sets():
        pytest.skip(f"no device cpu-{isa}")
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "MICROGPT_ISA": isa},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == ("bf16" if isa == "avx512bf16" else "fp32")


@pytest.mark.parametrize("precision", ["fp64", "BF16", "bf16 ", "", "bfloat16", "%s%n"])
def test_an_unknown_precision_is_refused(precision: str) -> None:
    for call in (
        lambda: andrea.GPT(CONFIG, precision=precision),
        lambda: andrea.engine_memory(CONFIG, 1, precision=precision),
    ):
        with pytest.raises(andrea.DeviceError) as caught:
            call()
        seen, there = str(caught.value).split(": ")
        assert f"precision is '{precision}'" in seen and "\n" not in seen + there
        assert "fp32" in there and "bf16" in there


# ---- what stays float32, and what gets smaller


def test_weights_gradients_and_moments_are_float32() -> None:
    """Not bf16's numbers in a float32 array, either: small updates must not be lost."""
    model = bf16_model()
    model.train_step(TOKENS, TARGETS, learning_rate=1e-3)
    model.forward_backward(TOKENS, TARGETS)
    for kind in (
        model.parameters(),
        model.gradients(),
        model.first_moments(),
        model.second_moments(),
    ):
        for name, tensor in kind.items():
            assert tensor.dtype == np.float32
            lower_bits = tensor.reshape(-1).view(np.uint32) & 0xFFFF
            # All but ones and zeros that have not moved yet.
            assert (lower_bits != 0).mean() > 0.5, name
    assert model.logits(TOKENS).dtype == np.float32


def test_initial_weights_do_not_depend_on_the_precision() -> None:
    other = andrea.GPT(CONFIG, precision="fp32", seed=5)
    for name, tensor in bf16_model(seed=5).parameters().items():
        assert tensor.tobytes() == other.parameters()[name].tobytes(), name


def test_activations_take_less_memory() -> None:
    """8 of 10 rows that a block keeps are Elements: 24 bytes a number of the width, not 40."""
    config = andrea.ModelConfig(256, 256, 6, 6, 192)
    half, whole = (
        andrea.engine_memory(config, 4, device="cpu", precision=precision)
        for precision in ("bf16", "fp32")
    )
    assert half["activations"] < 0.65 * whole["activations"]
    assert half["workspace"] < whole["workspace"]
    for kind in ("gradients", "moments"):
        assert half[kind] == whole[kind]
    assert half["total"] < whole["total"]


# ---- training


def test_overfits_one_batch() -> None:
    model = bf16_model()
    losses = [
        model.train_step(TOKENS, TARGETS, learning_rate=1e-2, weight_decay=0.0) for _ in range(120)
    ]
    assert losses[0] == pytest.approx(np.log(19), abs=0.1)
    assert losses[-1] < 0.02


def test_threads_do_not_change_a_bit(default_threads: None) -> None:
    states, logits = set(), set()
    for threads in (1, 2, 3):
        andrea.set_num_threads(threads)
        model = bf16_model()
        for _ in range(3):
            model.train_step(TOKENS, TARGETS, learning_rate=1e-2)
        states.add(state_bytes(model))
        decoder = model.decoder(3)
        decoder.feed(list(TOKENS[:, :9]))
        logits.add(decoder.feed(list(TOKENS[:, 9:10])).tobytes())
    assert len(states) == len(logits) == 1


def test_decoding_follows_the_weights() -> None:
    """Decoding reads a bf16 copy of the weights, which must be renewed with them."""
    model = bf16_model()
    decoder = model.decoder(3)
    other = bf16_model(seed=9).parameters()

    def write() -> None:
        for name, tensor in model.parameters().items():
            tensor[...] = 2.0 * other[name]
        model.refresh()

    changes = {
        "nothing": lambda: None,
        "steps": lambda: [model.train_step(TOKENS, TARGETS, learning_rate=0.02) for _ in range(9)],
        "written": write,
        "reset": lambda: model.reset(3),
    }
    before = np.zeros((3, 19))
    for change, make in changes.items():
        make()
        decoder.reset()
        decoder.feed(list(TOKENS[:, :20]))
        one_more, whole = decoder.feed(list(TOKENS[:, 20:21])), model.logits(TOKENS)[:, 20]
        size = np.abs(whole).max()
        assert np.abs(one_more - whole).max() < 0.02 * size, change
        assert np.abs(one_more - before).max() > 0.2 * size, change
        before = one_more


def test_training_ends_near_that_of_fp32() -> None:
    losses = {}
    for precision in PRECISIONS:
        model = andrea.GPT(small_model().config, precision=precision)
        reports = list(train(model, small_data(), small_config(steps=80, batch_size=8)))
        evaluation = reports[-1].evaluation
        assert evaluation is not None
        losses[precision] = evaluation.loss
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.03)


def trained(folder: Path, config: TrainConfig, stops: list[int]) -> bytes:
    """The checkpoint of a bf16 run that was closed at some steps and resumed by a new model."""
    shape = small_model().config
    return interrupted_run(folder, config, stops, lambda seed: bf16_model(seed=seed, config=shape))


def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    config = small_config(steps=14, accumulate=2, eval_every=5, save_every=6)
    whole = trained(tmp_path / "whole", config, [])
    assert trained(tmp_path / "parts", config, [1, 9]) == whole


def test_a_checkpoint_goes_into_either_precision(tmp_path: Path) -> None:
    """It holds the float32 weights, so what one precision wrote the other reads unchanged."""
    trained(tmp_path / "run", small_config(steps=6), [])
    config = small_model().config
    loaded = {}
    for precision in PRECISIONS:
        model = andrea.GPT(config, precision=precision, seed=3)
        with RunFolder.open(tmp_path / "run") as run:
            assert run.resume(model).step == 6
        loaded[precision] = model
    assert state_bytes(loaded["fp32"]) == state_bytes(loaded["bf16"])
    tokens = np.arange(16, dtype=np.int32)[None] % config.vocab_size
    logits = {precision: model.logits(tokens) for precision, model in loaded.items()}
    assert (logits["fp32"] != logits["bf16"]).any()
    apart = np.abs(logits["fp32"] - logits["bf16"]).max()
    assert apart < 0.02 * np.abs(logits["fp32"]).max()
