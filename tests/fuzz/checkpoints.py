"""Damaged checkpoints: of single bytes, and of content whose checksum was made to fit again."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors.numpy

import andrea
from andrea.errors import CheckpointError, RunError
from andrea.runs import Checkpoint, CheckpointInfo, RunFolder, save_checkpoint
from andrea.runs.tensorfile import canonical_json
from andrea.tokenizers import train_tokenizer
from andrea.training import TrainConfig, TrainState

from .damage import ODD_TEXTS, damage_bytes, damage_json

_CHECKSUM = "checksum"
ENTRIES = ("model", "tokenizer", "train", "state", "record", "andrea_checkpoint", "optimizer_steps")


def seal(header: Any, data: bytes) -> bytes:
    """A file of header and tensors whose checksum is right, whatever is in it."""
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if isinstance(metadata, dict) and _CHECKSUM in metadata:
        metadata[_CHECKSUM] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + data
    checksum = hashlib.sha256(whole).hexdigest().encode()
    return whole.replace(b'"checksum":"' + b"0" * 64, b'"checksum":"' + checksum, 1)


def split(content: bytes) -> tuple[Any, bytes]:
    """Header and tensors of a file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def damage_sealed(random: Random, content: bytes, entries: tuple[str, ...] = ENTRIES) -> bytes:
    """Damage a checkpoint so that its checksum fits; of its metadata, these entries."""
    header, data = split(content)
    metadata = header["__metadata__"]
    choice = random.randrange(6)
    if choice == 0 and entries == ENTRIES:
        return seal(damage_json(random, header), data)
    if choice == 1:
        return seal(header, damage_bytes(random, data))
    name = random.choice(entries)
    if choice == 2:
        metadata[name] = random.choice((*ODD_TEXTS, "[" * 100_000, "9" * 5000, "\u0663"))
    elif choice == 3:
        metadata[name] = damage_bytes(random, metadata[name].encode()).decode("latin-1")
    else:
        metadata[name] = json.dumps(damage_json(random, json.loads(metadata[name])))
    return seal(header, data)


class _Checkpoints:
    """A small checkpoint with everything in it, and its damaged copies."""

    # What of its model is not GPT-2's.
    dialect: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path) -> None:
        tokenizer = train_tokenizer("bpe", ["the theme of the thesis"], vocab_size=259).tokenizer
        self.config = andrea.ModelConfig(tokenizer.vocab_size, 4, 1, 1, 4, **self.dialect)
        self.model = andrea.GPT(self.config, seed=3)
        path = folder / "good.safetensors"
        info = CheckpointInfo(
            self.config,
            tokenizer.to_dict(),
            train=TrainConfig(2, 1e-3, steps=5).to_dict(),
            state=TrainState(step=3, best_loss=1.5, best_step=2).to_dict(timed=False),
            record={"sources": ["book.txt"], "options": {"encoding": None}},
        )
        save_checkpoint(path, self.model, info)
        self.good = path.read_bytes()
        self.other = andrea.GPT(self.config, seed=4)


class CheckpointBytes(_Checkpoints):
    """Whatever was changed: it is noticed."""

    def case(self, random: Random, folder: Path) -> str:
        path = folder / "damaged.safetensors"
        path.write_bytes(damage_bytes(random, self.good))
        Checkpoint(path).close()
        raise AssertionError("an altered checkpoint was accepted")


class SealedCheckpoint(_Checkpoints):
    """A checkpoint of another program, with a checksum: refused, or read as it stands there."""

    def case(self, random: Random, folder: Path) -> str:
        path = folder / "sealed.safetensors"
        path.write_bytes(damage_sealed(random, self.good))
        with RunFolder.open(path) as run:
            run.tokenizer()
            run.config  # noqa: B018 - reading it is what may fail
            assert run.state().step >= 0
            if run.info.model != self.config:
                # Of a shape that its tensors don't have, or a new one altogether.
                return "another shape"
            run.load(self.other)
        self._check_tensors(path, "", "parameters")
        with Checkpoint(path) as checkpoint:
            checkpoint.load(self.other, moments=True)
        self._check_tensors(path, "optimizer.v.", "second_moments")
        return "read"

    def _check_tensors(self, path: Path, prefix: str, kind: str) -> None:
        """What was read is what the public library reads."""
        there = safetensors.numpy.load_file(path)
        for name, values in getattr(self.other, kind)().items():
            np.testing.assert_array_equal(values, there[prefix + name], err_msg=name)


class SealedDialect(SealedCheckpoint):
    """One whose model has other tensors than GPT-2's, and more to be said of it."""

    dialect: ClassVar[dict[str, Any]] = {
        "norm": "rmsnorm",
        "norm_position": "post",
        "activation": "swiglu",
        "mlp_dim": 6,
        "attn_bias": False,
        "tie_embeddings": False,
        "embedding_norm": True,
        "init_std": 0.5,
    }


class DamagedRun:
    """A run's folder in which some checkpoints are damaged: the newest whole one is taken."""

    def __init__(self, folder: Path) -> None:
        good = _Checkpoints(folder)
        self.model = good.other
        self.contents = {}
        for step in (2, 4, 6, 10):
            header, data = split(good.good)
            header["__metadata__"]["state"] = canonical_json({"step": step})
            self.contents[step] = seal(header, self._with_wte(header, data, step))

    @staticmethod
    def _with_wte(header: Any, data: bytes, value: float) -> bytes:
        start, end = header["wte.weight"]["data_offsets"]
        values = np.full((end - start) // 4, value, "<f4").tobytes()
        return data[:start] + values + data[end:]

    def case(self, random: Random, folder: Path) -> str:
        run_path = folder / "run"
        shutil.rmtree(run_path, ignore_errors=True)
        checkpoints = run_path / "checkpoints"
        checkpoints.mkdir(parents=True)
        intact, broken = [], []
        for step, content in self.contents.items():
            path = checkpoints / f"step-{step:08}.safetensors"
            choice = random.randrange(4)
            if choice == 0:
                continue
            if choice == 1:
                path.write_bytes(content)
                intact.append(step)
                continue
            broken.append(step)
            if random.random() < 0.1:
                path.mkdir()
            else:
                path.write_bytes(damage_bytes(random, content))
        (checkpoints / "step-00000099.safetensors.tmp").write_bytes(random.randbytes(40))
        (checkpoints / "notes.txt").write_text("mine")
        if not intact:
            kind = CheckpointError if broken else RunError
            with pytest.raises(kind) as caught:
                RunFolder.open(run_path)
            raise caught.value
        with RunFolder.open(run_path) as run:
            assert run.state().step == max(intact)
            run.load(self.model)
            assert len(run.damaged) == sum(step > max(intact) for step in broken)
            assert all(line and "\n" not in line for line in run.damaged)
        assert (self.model.parameters()["wte.weight"] == max(intact)).all()
        return "fell back" if run.damaged else "read"
