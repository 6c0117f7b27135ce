"""Checkpoint files: read by the public library, exact, and never half, altered or lost."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import andrea
from andrea.errors import CheckpointError
from andrea.runs.checkpoint import Checkpoint, CheckpointInfo, save_checkpoint
from andrea.runs.tensorfile import write_tensor_file
from andrea.training import train
from patience import PATIENCE, wait_until
from small_runs import small_config, small_data, small_model, small_tokenizer, state_bytes


def information(model: andrea.GPT, **changes: Any) -> CheckpointInfo:
    settings: dict[str, Any] = {
        "model": model.config,
        "tokenizer": small_tokenizer().to_dict(),
        "train": small_config().to_dict(),
        "state": {"step": 3},
        "record": {"sources": ['/a/"quoted".txt', "ü"], "nothing": None},
    }
    return CheckpointInfo(**{**settings, **changes})


@pytest.fixture(scope="module")
def trained() -> andrea.GPT:
    model = small_model()
    for _ in train(model, small_data(), small_config(steps=3)):
        pass
    return model


@pytest.fixture
def saved(tmp_path: Path, trained: andrea.GPT) -> Path:
    path = tmp_path / "checkpoint.safetensors"
    assert save_checkpoint(path, trained, information(trained)) == path.stat().st_size
    return path


def only_files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# ---- content


def test_the_public_library_reads_it(saved: Path, trained: andrea.GPT) -> None:
    tensors = safetensors.numpy.load_file(saved)
    kinds = {
        "": trained.parameters(),
        "optimizer.m.": trained.first_moments(),
        "optimizer.v.": trained.second_moments(),
    }
    expected = {
        prefix + name: view for prefix, kind in kinds.items() for name, view in kind.items()
    }
    assert tensors.keys() == expected.keys()
    for name, view in expected.items():
        assert tensors[name].dtype == np.float32
        np.testing.assert_array_equal(tensors[name], view, err_msg=name)
    assert np.abs(tensors["optimizer.v.wte.weight"]).max() > 0


def test_everything_comes_back_bit_for_bit(saved: Path, trained: andrea.GPT) -> None:
    other = small_model(seed=99)
    with Checkpoint(saved) as checkpoint:
        assert checkpoint.has_moments
        assert checkpoint.info == information(trained)
        checkpoint.load(other, moments=True)
    assert state_bytes(other) == state_bytes(trained)
    assert other.step_count == trained.step_count == 3
    # refresh() was called: the engine computes with what was read.
    tokens = np.arange(10, dtype=np.int32)[None]
    np.testing.assert_array_equal(other.logits(tokens), trained.logits(tokens))


def test_equal_states_give_equal_bytes(saved: Path, trained: andrea.GPT) -> None:
    again = saved.with_name("again.safetensors")
    time.sleep(0.01)
    record = {"nothing": None, "sources": ['/a/"quoted".txt', "ü"]}
    save_checkpoint(again, trained, information(trained, record=record))
    assert again.read_bytes() == saved.read_bytes()
    save_checkpoint(again, trained, information(trained, state={"step": 4}))
    assert again.read_bytes() != saved.read_bytes()


def test_weights_only_can_be_sampled_from_but_not_trained_on(
    tmp_path: Path, trained: andrea.GPT
) -> None:
    path = tmp_path / "weights.safetensors"
    save_checkpoint(path, trained, information(trained, train=None, state=None))
    assert safetensors.numpy.load_file(path).keys() == trained.parameters().keys()
    other = small_model(seed=5)
    with Checkpoint(path) as checkpoint:
        assert not checkpoint.has_moments
        with pytest.raises(CheckpointError, match=r"holds weights only.* --init-from "):
            checkpoint.load(other, moments=True)
        checkpoint.load(other, moments=False)
    for name, view in trained.parameters().items():
        np.testing.assert_array_equal(other.parameters()[name], view)


def test_another_shape_is_refused_with_both_sizes(saved: Path) -> None:
    wider, deeper = small_model(n_embd=32), small_model(n_layer=3)
    before = state_bytes(wider)
    with Checkpoint(saved) as checkpoint:
        with pytest.raises(CheckpointError, match="n_embd 16, but the model has n_embd 32"):
            checkpoint.load(wider, moments=True)
        with pytest.raises(CheckpointError, match="n_layer 2, but the model has n_layer 3"):
            checkpoint.load(deeper, moments=False)
    assert state_bytes(wider) == before


def test_another_dialect_is_refused_by_the_setting_that_differs(saved: Path) -> None:
    for name, value, ours in (
        ("norm", "rmsnorm", "layernorm"),
        ("residual", False, True),
        ("activation", "relu", "gelu"),
        ("mlp_dim", 65, 64),
    ):
        other = small_model(**{name: value})
        with Checkpoint(saved) as checkpoint, pytest.raises(CheckpointError) as caught:
            checkpoint.load(other, moments=True)
        assert f"has {name} {ours}, but the model has {name} {value}" in str(caught.value)
    # How a model began is no matter once it has weights.
    began = small_model(init_std=0.5, scaled_init=False)
    with Checkpoint(saved) as checkpoint:
        checkpoint.load(began, moments=True)


DIALECTS: dict[str, dict[str, Any]] = {
    "no norms": {"norm_position": "none", "final_norm": False},
    "norms without parameters": {"norm_affine": False, "attn_bias": False, "mlp_bias": False},
    "an untied head": {"tie_embeddings": False, "embedding_norm": True, "norm": "rmsnorm"},
    "a gate": {"activation": "swiglu", "mlp_dim": 5, "norm_position": "post"},
}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_dialect_comes_back_bit_for_bit(tmp_path: Path, dialect: dict[str, Any]) -> None:
    model, other = small_model(**dialect), small_model(seed=9, **dialect)
    for _ in train(model, small_data(), small_config(steps=2)):
        pass
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model, information(model))
    with Checkpoint(path) as checkpoint:
        assert checkpoint.info.model == model.config
        checkpoint.load(other, moments=True)
    assert state_bytes(other) == state_bytes(model) and other.step_count == 2


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ({"tie_embeddings": False}, "lm_head.weight is missing, the model needs ("),
        ({"embedding_norm": True}, "ln_emb.weight is missing, the model needs (16,)"),
        ({"mlp_dim": 2**30}, "h.0.mlp.c_fc.weight is (64, 16), the model needs (1073741824, 16)"),
        ({"activation": "swiglu", "mlp_dim": 64}, "h.0.mlp.c_fc.weight is (64, 16), the model ne"),
    ],
)
def test_a_dialect_that_the_tensors_are_not_of_is_refused(
    tmp_path: Path, claim: dict[str, Any], told: str
) -> None:
    model = small_model()
    path = tmp_path / "checkpoint.safetensors"
    claimed = andrea.ModelConfig(**{**model.config.to_full_dict(), **claim})
    save_checkpoint(path, model, dataclasses.replace(information(model), model=claimed))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(path)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"norm": "batchnorm"}, "norm must be one of layernorm, rmsnorm"),
        ({"residual": "yes"}, "residual must be True or False"),
        ({"mlp_dim": -5}, "mlp_dim must be between"),
        ({"init_std": None}, "init_std must be a number"),
        ({"biases": True}, "unknown model setting 'biases'"),
        ({"norm_position": "none", "final_norm": False, "norm": "rmsnorm"}, "has no norm"),
    ],
)
def test_a_damaged_dialect_is_refused(saved: Path, model: dict[str, Any], told: str) -> None:
    """By its metadata, which a program may have written: the file's own sum is right."""
    with Checkpoint(saved) as checkpoint:
        metadata = dict(checkpoint.tensors.metadata)
        tensors = {
            name: np.asarray(view) for name, view in safetensors.numpy.load_file(saved).items()
        }
    metadata["model"] = json.dumps({**json.loads(metadata["model"]), **model})
    write_tensor_file(saved, tensors, metadata)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(saved)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_tensors_that_contradict_the_configuration_are_refused(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "checkpoint.safetensors"
    claimed = andrea.ModelConfig(**{**model.config.to_dict(), "block_size": 8})
    save_checkpoint(path, model, dataclasses.replace(information(model), model=claimed))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(path)
    assert "wpe.weight is (16, 16), the model needs (8, 16)" in str(caught.value)


def test_an_opened_file_stays_what_it_was(saved: Path, trained: andrea.GPT) -> None:
    """A run that goes on replaces the file between opening and reading."""
    with Checkpoint(saved) as checkpoint:
        save_checkpoint(saved, small_model(seed=1), information(trained))
        other = small_model(seed=2)
        checkpoint.load(other, moments=True)
    assert state_bytes(other) == state_bytes(trained)


# ---- damage


def test_every_altered_byte_is_noticed(tmp_path: Path) -> None:
    model = small_model(block_size=1, n_layer=1, n_head=1, n_embd=1)
    path = tmp_path / "checkpoint.safetensors"
    # Weights only and a short tokenizer, for a small file.
    save_checkpoint(path, model, CheckpointInfo(model.config, {"name": "byte"}))
    good = path.read_bytes()
    Checkpoint(path).close()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError) as caught:
            Checkpoint(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_every_other_length_is_noticed(saved: Path) -> None:
    good = saved.read_bytes()
    lengths = [0, 1, 7, 8, 9, 100, len(good) // 2, len(good) - 1]
    for damaged in [*(good[:length] for length in lengths), good + b"\0", good + good]:
        saved.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="truncated, altered or no checkpoint"):
            Checkpoint(saved)


def test_other_files_are_refused(tmp_path: Path) -> None:
    cases = {
        "text.safetensors": b"once upon a time, this was a text and no checkpoint",
        "huge.safetensors": (2**62).to_bytes(8, "little") + b"{}",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match="no checkpoint"):
            Checkpoint(tmp_path / name)
    foreign = tmp_path / "foreign.safetensors"
    safetensors.numpy.save_file({"wte.weight": np.ones((2, 2), np.float32)}, foreign)
    with pytest.raises(CheckpointError, match="not an Andrea checkpoint"):
        Checkpoint(foreign)
    half = tmp_path / "half.safetensors"
    safetensors.numpy.save_file({"wte.weight": np.ones((2, 2), np.float16)}, half)
    with pytest.raises(CheckpointError, match="is F16, expected F32"):
        Checkpoint(half)
    with pytest.raises(CheckpointError, match=r"cannot read .*: No such file"):
        Checkpoint(tmp_path / "absent.safetensors")
    with pytest.raises(CheckpointError, match="cannot read"):
        Checkpoint(tmp_path)


def test_values_that_are_not_finite_never_replace_a_checkpoint(
    saved: Path, trained: andrea.GPT
) -> None:
    good = saved.read_bytes()
    for bad in (np.nan, np.inf, -np.inf):
        model = small_model()
        model.parameters()["h.1.mlp.c_fc.weight"][3, 5] = bad
        with pytest.raises(CheckpointError, match=r"h\.1\.mlp\.c_fc\.weight holds values"):
            save_checkpoint(saved, model, information(trained))
    model = small_model()
    model.second_moments()["ln_f.bias"][2] = np.nan
    with pytest.raises(CheckpointError, match=r"optimizer\.v\.ln_f\.bias"):
        save_checkpoint(saved, model, information(trained))
    assert saved.read_bytes() == good
    assert only_files(saved.parent) == [saved.name]


# ---- a disk that refuses


class Disk:
    """Stands between os and the disk: gives out when so many bytes were written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, space: int, most: int = 1 << 30) -> None:
        self.space, self.most, self.write = space, most, os.write
        monkeypatch.setattr(os, "write", self.limited_write)

    def limited_write(self, descriptor: int, data: Any) -> int:
        if self.space == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.write(descriptor, data[: min(self.space, self.most)])
        self.space -= written
        return written


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_full_disk_keeps_the_old_checkpoint(
    saved: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = saved.read_bytes()
    Disk(monkeypatch, space=int(share * len(good)))
    model = small_model(seed=8)
    with pytest.raises(CheckpointError, match=r"No space left on device; .* is intact") as caught:
        save_checkpoint(saved, model, information(model))
    assert "\n" not in str(caught.value)
    assert saved.read_bytes() == good
    assert only_files(saved.parent) == [saved.name]


def test_short_writes_are_continued(
    saved: Path, trained: andrea.GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = saved.read_bytes()
    Disk(monkeypatch, space=1 << 30, most=777)
    save_checkpoint(saved, trained, information(trained))
    assert saved.read_bytes() == good


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_every_refusal_keeps_the_old_checkpoint(
    saved: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = saved.read_bytes()

    def refuse(*_arguments: Any, **_named: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    model = small_model(seed=8)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(CheckpointError, match="Input/output error"):
            save_checkpoint(saved, model, information(model))
    assert saved.read_bytes() == good
    assert only_files(saved.parent) == [saved.name]


def test_an_interrupt_while_writing_keeps_the_old_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = saved.read_bytes()

    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    model = small_model(seed=8)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "fsync", interrupt)
        save_checkpoint(saved, model, information(model))
    assert saved.read_bytes() == good
    assert only_files(saved.parent) == [saved.name]


_SAVE_FOREVER = """
import resource, sys
from pathlib import Path
from small_runs import small_model, small_tokenizer
from andrea.runs.checkpoint import CheckpointInfo, save_checkpoint
from andrea.errors import CheckpointError

path, limit = Path(sys.argv[1]), int(sys.argv[2])
model = small_model(n_embd=64)
tokenizer = small_tokenizer().to_dict()
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print("ready", flush=True)
for step in range(limit and 1 or 10**9):
    info = CheckpointInfo(model.config, tokenizer, train={}, state={"step": step})
    try:
        save_checkpoint(path, model, info)
    except CheckpointError as error:
        print(error, flush=True)
"""


def start_saving(path: Path, limit: int = 0) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen(
        [sys.executable, "-c", _SAVE_FOREVER, str(path), str(limit)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX resource limits")
def test_a_real_file_size_limit_keeps_the_old_checkpoint(saved: Path) -> None:
    good = saved.read_bytes()
    process = start_saving(saved, limit=len(good) // 2)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "File too large; the checkpoint before it is intact" in output
    assert saved.read_bytes() == good
    assert only_files(saved.parent) == [saved.name]


def time_of(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_process_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    moments = random.Random(1)
    steps = []
    for _ in range(4):
        process = start_saving(path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            before = time_of(path)
            wait_until(lambda before=before: time_of(path) != before, "another checkpoint")
        time.sleep(moments.uniform(0.01, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=PATIENCE)
        process.stdout.close()
        with Checkpoint(path) as checkpoint:
            assert checkpoint.info.state is not None
            steps.append(checkpoint.info.state["step"])
    assert min(steps) > 0, "each process saved more than once before it was killed"
    # What a killed process left behind is written over, not piled up.
    assert set(only_files(tmp_path)) <= {path.name, path.name + ".tmp"}


# ---- memory


def test_neither_saving_nor_loading_copies_the_state(tmp_path: Path) -> None:
    model = small_model(n_layer=6, n_embd=256)
    state = 3 * 4 * model.num_parameters
    path = tmp_path / "checkpoint.safetensors"
    for kind in (model.parameters(), model.first_moments(), model.second_moments()):
        assert len(kind) > 0
    tracemalloc.start()
    try:
        save_checkpoint(path, model, information(model))
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with Checkpoint(path) as checkpoint:
            tracemalloc.reset_peak()
            checkpoint.load(model, moments=True)
            loading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert state > 50e6
    assert saving < 2e6
    assert loading < 2e6


def test_saving_into_a_folder_that_is_gone_is_told(tmp_path: Path, trained: andrea.GPT) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match=r"cannot write .*: No such file or directory$"):
        save_checkpoint(folder / "checkpoint.safetensors", trained, information(trained))
