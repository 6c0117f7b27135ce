"""Damaged records of bad steps: of single bytes, and of facts in an archive that is whole."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import andrea
from andrea.runs.incident_file import Incident, encode, read_incident
from andrea.training import TrainConfig, TrainState
from andrea.training.measure import KINDS, Measurement, Size

from .damage import damage_bytes, damage_json

_NUMBERS = ("loss", "norm", "learning_rate")
_TEXTS = ("reason", "device", "precision", "isa")


class IncidentFile:
    """Refused, or read as it was written: batches bit for bit, facts of their kinds."""

    def __init__(self, _folder: Path) -> None:
        sizes = {"wte.weight": Size(1.5, 0), "h.0.ln_1.bias": Size(0.25, 3)}
        batches = np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4)
        self.good = Incident(
            step=7,
            reason="not finite",
            z=None,
            loss=math.nan,
            norm=math.inf,
            learning_rate=1e-3,
            updated=False,
            model=andrea.ModelConfig(30, 4, 1, 1, 4),
            config=TrainConfig(3, 1e-3, accumulate=2, steps=9),
            state=TrainState(step=7, skipped=1, skipped_in_row=1),
            device="cpu",
            precision="fp32",
            isa="avx2",
            record={"sources": ["book.txt"], "fingerprint": "0" * 32},
            measured=Measurement(
                **{kind: sizes for kind in KINDS}, losses=(1.5, 2.5), first_not_finite="wte.weight"
            ),
            inputs=batches,
            targets=batches + 1,
        )
        self.content = encode(self.good)

    def case(self, random: Random, folder: Path) -> str:
        path = folder / "step-00000007.npz"
        is_archive_whole = random.random() < 0.5
        if is_archive_whole:
            path.write_bytes(self.with_facts(partial(damage_json, random)))
        else:
            path.write_bytes(damage_bytes(random, self.content))
        read = read_incident(path)
        np.testing.assert_array_equal(read.inputs, self.good.inputs)
        np.testing.assert_array_equal(read.targets, self.good.targets)
        if not is_archive_whole:
            # Times and the like of an archive are no content.
            assert encode(read) == self.content
        for name in _TEXTS:
            assert isinstance(getattr(read, name), str)
        assert all(type(getattr(read, name)) is float for name in _NUMBERS)
        assert type(read.step) is int and read.step >= 1
        # What was read can be written, and is the same then.
        path.write_bytes(encode(read))
        assert encode(read_incident(path)) == path.read_bytes()
        return "read"

    def with_facts(self, change: Callable[[Any], Any]) -> bytes:
        """The file with other facts, in an archive that is whole."""
        with np.load(io.BytesIO(self.content)) as archive:
            arrays = dict(archive)
        facts: Any = json.loads(arrays["metadata"].tobytes())
        text = json.dumps(change(facts)).encode("ascii")
        arrays["metadata"] = np.frombuffer(text, dtype=np.uint8)
        file = io.BytesIO()
        np.savez(file, **arrays)
        return file.getvalue()
