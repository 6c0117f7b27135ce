"""Budgets and room: tokens and epochs become steps; what does not fit is told with what does."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from andrea import PRESETS, ModelConfig
from andrea.errors import ConfigError
from andrea.planning.choices import Choices
from andrea.planning.disk import DiskPlan, disk_plan, free_disk
from andrea.planning.memory import (
    Room,
    TooLarge,
    _smaller_presets,
    _smaller_shapes,
    consumers,
    copy_bytes,
    copy_fits,
)
from andrea.planning.plan import TOKENS_PER_PARAMETER, Plan, needs_speed, plan
from andrea.planning.recipes import RECIPES, recipe
from andrea.training import TrainState
from small_runs import small_config, small_model, small_run

TEXT_TOKENS = 1_000_000


def planned(memory: int | None = None, **fixed: Any) -> Plan:
    return plan(
        Choices(**fixed), vocab_size=66, train_tokens=TEXT_TOKENS, memory=memory, device="cpu"
    )


# ---- budgets


def test_tokens_become_the_steps_that_see_them() -> None:
    result = planned(tokens=100_001, batch_size=5, accumulate=2, block_size=100)
    assert result.train.steps == 101 and result.train.seconds is None
    assert result.tokens == 101_000


def test_epochs_are_times_of_the_text() -> None:
    assert planned(epochs=2.5, batch_size=5, block_size=100).train.steps == 5000
    assert planned(epochs=1e-9, batch_size=5, block_size=100).train.steps == 1


def test_the_model_is_the_one_for_so_many_tokens() -> None:
    for tokens in (10**6, 10**7, 4 * 10**7):
        result = planned(tokens=tokens)
        ratio = tokens / result.parameters / TOKENS_PER_PARAMETER
        assert 0.4 < ratio < 2.5, (tokens, result.parameters)
    assert planned(tokens=10**12).parameters <= 2 * TEXT_TOKENS, "the text bounds the model"


def test_a_number_of_tokens_makes_the_same_run_on_every_machine() -> None:
    assert not needs_speed(Choices(tokens=10**7)) and not needs_speed(Choices(epochs=2.0))
    slow = planned(tokens=10**7)
    assert slow.with_speed(5.0).train == slow.with_speed(0.001).train == slow.train


def test_a_warm_up_longer_than_the_run_is_told() -> None:
    notes = planned(steps=100, warmup=100).notes
    assert any(note.startswith("warmup: its 100 steps do not end") for note in notes)
    assert not any(note.startswith("warmup") for note in planned(steps=101, warmup=100).notes)


def test_weights_that_have_learned_go_on_slowly() -> None:
    fresh, tuned = planned(n_embd=128, n_layer=2), planned(n_embd=128, n_layer=2, is_tuning=True)
    assert tuned.train.learning_rate == pytest.approx(0.3 * fresh.train.learning_rate, rel=0.05)
    assert any("0.3 of a new model's" in note for note in tuned.notes)
    chosen = planned(n_embd=128, n_layer=2, is_tuning=True, learning_rate=0.01)
    assert chosen.train.learning_rate == 0.01
    assert not any("rate" in note for note in chosen.notes)


def test_the_recipe_of_the_family() -> None:
    settings = recipe("andrea")
    settings.pop("sample_tokens")
    train = planned(n_layer=2, n_embd=64, **settings).train
    assert (train.steps, train.warmup, train.schedule) == (200_000, 2000, "cosine")
    assert (train.beta1, train.beta2, train.learning_rate) == (0.9, 0.999, 3e-4)
    assert train.tokens_per_step(1024) == 8 * 1024
    assert train.save_every == train.eval_every == 100 and train.coherence_gate == 30
    settings["steps"] = 1
    assert RECIPES["andrea"]["steps"] == 200_000, "a caller gets its own copy"
    with pytest.raises(ConfigError, match="'andres'; there is andrea"):
        recipe("andres")


# ---- memory


def refused(memory: int, **fixed: Any) -> TooLarge:
    with pytest.raises(TooLarge) as caught:
        planned(memory, **fixed)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_batch_that_does_not_fit_is_split_so_that_the_step_stays() -> None:
    fixed = {"n_layer": 4, "n_embd": 128, "block_size": 128, "batch_size": 48, "steps": 10}
    needed = planned(**fixed).memory["total"]
    error = refused(needed - 1, **fixed)
    assert error.changes == {"batch_size": 24, "accumulate": 2}
    fitting = planned(needed - 1, **{**fixed, **error.changes})
    assert fitting.train.tokens_per_step(128) == 48 * 128
    error = refused(needed - 1, **fixed, accumulate=3)
    assert error.changes["accumulate"] == 6


def test_a_model_that_does_not_fit_becomes_a_smaller_one() -> None:
    fixed: dict[str, Any] = {"n_layer": 40, "n_embd": 1024, "steps": 10, "batch_size": 4}
    error = refused(10**9, **fixed)
    changed = {**fixed, **error.changes}
    fitting = planned(10**9, **changed)
    assert 2 * 10**7 < fitting.parameters < 10**8, "the largest of those that fit"
    assert changed["n_layer"] < 40 and fitting.memory["total"] <= 10**9


def test_a_preset_that_does_not_fit_becomes_a_smaller_preset() -> None:
    error = refused(10**9, preset="andrea-480m", steps=10)
    assert error.changes["preset"] == "andrea-12m"
    assert planned(10**9, **{"steps": 10, **error.changes}).model.n_layer == 6


def test_proposals_keep_the_dialect_but_not_the_width_of_its_mlp() -> None:
    fixed = {"dialect": "microgpt", "activation": "swiglu", "mlp_dim": 9000, "steps": 10}
    error = refused(10**9, preset="andrea-480m", **fixed)
    assert error.changes["preset"] == "andrea-12m" and error.changes["mlp_dim"] is None
    smaller = planned(10**9, **{**fixed, **error.changes}).model
    assert (smaller.norm, smaller.activation, smaller.mlp_dim) == ("rmsnorm", "swiglu", 1024)
    error = refused(10**8, n_layer=40, n_embd=1024, residual=False, mlp_dim=4, steps=10)
    fitting = planned(10**8, **{"residual": False, "mlp_dim": 4, "steps": 10, **error.changes})
    assert not fitting.model.residual and fitting.model.mlp_dim == 4 * fitting.model.n_embd


def test_a_preset_never_becomes_one_of_another_dialect_or_a_larger_vocabulary() -> None:
    """gpt2 has fewer parameters than andrea-480m, but three times its tokens."""
    model = ModelConfig(**PRESETS["andrea-480m"])
    names = [name for name, _ in _smaller_presets(Choices(preset="andrea-480m"), model.vocab_size)]
    assert names == ["andrea-480m", "andrea-120m", "andrea-12m", "andrea-nano"]
    assert [name for name, _ in _smaller_presets(Choices(preset="microgpt"), 27)] == ["microgpt"]
    asked = Choices(preset="microgpt", dialect="gpt2")
    assert [name for name, _ in _smaller_presets(asked, 27)] == ["andrea-nano", "microgpt"]


def test_without_its_preset_a_dialect_is_named() -> None:
    choices = Choices(preset="microgpt", n_embd=512, activation="gelu")
    model = ModelConfig(66, 16, 1, 4, 512, **choices.model_dialect())
    *_, (change, smaller) = _smaller_shapes(choices, model, TEXT_TOKENS)
    assert (change["preset"], change["dialect"], change["n_layer"]) == (None, "microgpt", 2)
    assert smaller.dialect() == model.dialect() and smaller.norm == "rmsnorm"
    named = dataclasses.replace(choices, dialect="gpt2")
    *_, (change, smaller) = _smaller_shapes(named, model, TEXT_TOKENS)
    assert "dialect" not in change and smaller.dialect() == {}


def test_where_nothing_fits_nothing_is_proposed() -> None:
    error = refused(10**4, steps=10)
    assert error.changes == {} and "too little for any model" in str(error)
    error = refused(10**7, preset="andrea-12m", is_tuning=True, steps=10, batch_size=1)
    assert error.changes == {}, "weights that are there cannot become smaller"
    assert "too little for these weights" in str(error)


def test_all_that_fits_is_allowed() -> None:
    fixed = {"n_layer": 4, "n_embd": 128, "block_size": 128, "batch_size": 48, "steps": 10}
    needed = planned(**fixed).memory["total"]
    assert planned(needed, **fixed).memory["total"] == needed


def test_the_biggest_consumers_come_first() -> None:
    text = consumers({"a": 5, "b": 7_000_000, "c": 0, "d": 2_500_000_000, "total": 9**20, "e": 1})
    assert text == "d 2.5 GB, b 7.0 MB, a 5 bytes"
    assert consumers({"a": 0, "b": 2000, "total": 2000}) == "b 2.0 KB"


def test_a_copy_for_checkpoints_is_taken_where_there_is_room() -> None:
    assert copy_bytes(100) == 1200
    assert copy_fits(100, None) and copy_fits(100, 2400) and not copy_fits(100, 2399)


def test_room_asks_for_the_device_and_the_precision() -> None:
    config = ModelConfig(66, 64, 2, 2, 64)
    needed = Room(None, "cpu", "bf16").needed(config, 8)["total"]
    assert needed < Room(None, "cpu", "fp32").needed(config, 8)["total"]
    room = Room(needed, "cpu", "bf16")
    assert room.fits(config, 8, 1.0) and not room.fits(config, 9, 1.0)


_PEAK = """
import json, sys
import numpy as np
import andrea
from andrea.planning.memory import Room

def taken():
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))

def train(config):
    model = andrea.GPT(config, device="cpu", precision=sys.argv[1])
    tokens = np.zeros((8, config.block_size), np.int32)
    for _ in range(2):
        model.train_step(tokens, tokens, learning_rate=1e-3)
    model.decoder().feed([tokens[0]])

dialect = json.loads(sys.argv[2])
train(andrea.ModelConfig(64, 8, 1, 1, 8, **dialect))
before = taken()
config = andrea.ModelConfig(512, 128, 4, 4, 256, **dialect)
train(config)
print(taken() - before, Room(None, "cpu", sys.argv[1]).needed(config, 8)["total"])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing tells the peak")
@pytest.mark.parametrize(
    ("precision", "dialect"),
    [
        ("fp32", {}),
        ("bf16", {}),
        ("fp32", {"activation": "swiglu", "norm_position": "post", "tie_embeddings": False}),
    ],
)
def test_a_run_takes_what_is_planned(precision: str, dialect: dict[str, Any]) -> None:
    command = [sys.executable, "-c", _PEAK, precision, json.dumps(dialect)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken, planned = map(int, done.stdout.split())
    assert 0.8 * planned < taken < 1.02 * planned + (4 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is not kept everywhere")
def test_the_limit_of_a_process_counts() -> None:
    program = """
import resource
from andrea.planning.machine import available_memory
resource.setrlimit(resource.RLIMIT_AS, (1 << 40, resource.RLIM_INFINITY))
assert available_memory("cpu") < 1 << 40
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (1 << 26)
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
print(available_memory("cpu"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert 0 < int(done.stdout) <= 1 << 26, done.stderr


# ---- disk


def test_the_size_of_a_checkpoint_is_known_before(tmp_path: Path) -> None:
    config, model = small_config(), small_model()
    run = small_run(tmp_path / "run", config, model)
    with run:
        run.save(model, TrainState(step=1))
        written = run.checkpoint_path.stat().st_size
        tokenizer_bytes = len(str(run.info.tokenizer))
    planned = disk_plan(
        tmp_path / "new",
        parameters=model.num_parameters,
        tokenizer_bytes=tokenizer_bytes,
        train=config,
        steps=20,
        validates=True,
    )
    assert written <= planned.checkpoint <= written + (80 << 10)
    assert planned.present == 0 and planned.free is not None and planned.free > 0


@pytest.mark.parametrize(
    ("keep", "save_every", "validates", "steps", "files"),
    [
        (2, 10, True, None, 4),
        (2, 10, False, None, 3),
        (5, 10, True, 1000, 7),
        (5, 10, False, 30, 5),
        (5, 10, True, 10, 5),
        (5, 0, False, 1000, 2),
        (5, 0, True, 10, 4),
        (1, 0, False, None, 2),
    ],
)
def test_files_are_the_last_ones_the_best_and_one_in_writing(
    keep: int, save_every: int, validates: bool, steps: int | None, files: int, tmp_path: Path
) -> None:
    train = small_config(keep_last=keep, save_every=save_every, eval_every=5)
    planned = disk_plan(
        tmp_path,
        parameters=10,
        tokenizer_bytes=1,
        train=train,
        steps=steps,
        validates=validates,
    )
    assert planned.files == files
    assert planned.total == files * planned.checkpoint + planned.log
    assert (planned.log > 0) == (steps is not None)


def test_a_full_disk_is_refused_with_the_figures() -> None:
    fits = DiskPlan(checkpoint=10**9, files=6, log=10**6, free=6_001_000_000)
    fits.check(keep_last=4)
    with pytest.raises(TooLarge, match=r"takes 6\.0 GB of disk \(6 checkpoints of 1\.0 GB\)") as e:
        dataclasses.replace(fits, free=4_500_000_000).check(keep_last=4)
    assert e.value.changes == {"keep_last": 2}
    with pytest.raises(TooLarge) as e:
        dataclasses.replace(fits, free=2_000_000_000).check(keep_last=4)
    assert e.value.changes == {}
    # What a resumed run has written already is there.
    dataclasses.replace(fits, free=2_500_000_000, present=4 * 10**9).check(keep_last=4)


def test_free_space_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    deep = free_disk(tmp_path / "a" / "b" / "c")
    assert deep is not None and deep > 0
    assert abs(deep - (free_disk(tmp_path) or 0)) < 10**9
