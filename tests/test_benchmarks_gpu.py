"""The benchmarks on device cuda, real or simulated: they run, and count what the engine does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark_programs import BENCHMARKS, SMALL, check_figures, check_table, run
from gpu import require_gpu
from patience import PATIENCE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no benchmarks beside the tests"),
]

SHAPE = SMALL.rpartition(",")[0]
SHORT = ["--attempts", 1, "--threads", 1]


@pytest.fixture(autouse=True)
def _gpu() -> Iterator[None]:
    require_gpu()
    yield


def test_each_op_and_the_roofline_of_its_times(tmp_path: Path) -> None:
    file = tmp_path / "ops.json"
    device = ["--device", "cuda", "--precision", "bf16"]
    run("ops.py", *device, "--shape", SMALL, "--seconds", 1e-4, *SHORT, "--json", file)
    told = json.loads(file.read_text("utf-8"))
    check_figures(told, {"others_share", "calls_of_a_step", "flops"})
    text = run("roofline.py", "--measured", file)
    check_table(text)
    assert any(line.startswith("measured: ") for line in text.splitlines())
    counted = tmp_path / "roofline.json"
    run("roofline.py", "--measured", file, "--json", counted)
    for name, op in json.loads(counted.read_text("utf-8"))["ops"].items():
        if name in told["ops"] and name != "AdamW":  # which copies its state there and back
            assert told["ops"][name]["launches"] == op["launches"] / op["calls"], name


LAUNCHES = """
import sys
import numpy as np
import andrea
from andrea._library import check, ffi, lib

V, T, L, C, NH, B = map(int, sys.argv[1:])
config = andrea.ModelConfig(vocab_size=V, block_size=T, n_layer=L, n_head=NH, n_embd=C)
model = andrea.GPT(config, device="cuda", precision="bf16")
backend = ffi.new("mg_backend **")
check(lib.mg_backend_create(b"cuda", b"bf16", backend))
inputs, targets = np.random.default_rng(0).integers(0, V, (2, B, T), dtype=np.int32)
for step in range(3):
    before = lib.mg_backend_launches(backend[0])
    model.train_step(inputs, targets, learning_rate=1e-3)
    print(lib.mg_backend_launches(backend[0]) - before)
"""


def test_launches_of_a_step_are_those_of_the_roofline(tmp_path: Path) -> None:
    """At the first step, at the second, which is recorded, and at the third, which is replayed."""
    file = tmp_path / "roofline.json"
    run("roofline.py", "--shape", SMALL, "--tokens", 64, "--json", file)
    expected = json.loads(file.read_text("utf-8"))["launches"]
    sizes = ["65", "32", "2", "32", "2", "2"]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHES, *sizes], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert list(map(int, done.stdout.split())) == [expected] * 3


def test_speed(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    settings = ["--rounds", 1, "--seconds", 0.01, "--no-peers", "--precision", "bf16"]
    sizes = ["--shape", SMALL, "--tokens", "32,64"]
    text = run("speed.py", "--device", "cuda", *sizes, *settings, *SHORT, "--json", file)
    check_table(text)
    told = json.loads(file.read_text("utf-8"))
    # Simulated memory isn't told apart from the host's.
    check_figures(told, {"others_share", "disturbed_rounds", "peak_mb", "memory"})
    assert [one["shape"]["batch_size"] for one in told["training"]] == [1, 2]
    limits = told["limits"][0]["rounds"][0]["limits"]
    assert set(limits["products"]["bf16"]) == {"registers", "large product"}
    best = max(limits["products"]["bf16"].values())
    assert limits["flops"]["bf16"] == {"1": best}
    (decoding,) = told["decoding"]
    assert set(decoding["engines"]) == {"andrea bf16"}
