"""What the benchmarks compare: the same models in other engines, and what a dialect implies."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from andrea.config import DIALECTS, ModelConfig
from andrea.planning.sizes import parameter_table
from benchmark_programs import BENCHMARKS, SMALL, check_figures, check_table, module, run
from extras import needs
from patience import PATIENCE

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no benchmarks beside the tests")
NAMES = ("gpt2", "microgpt", "swiglu")


def python(*arguments: str) -> str:
    """What a fresh Python prints that finds the modules of benchmarks/."""
    path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# ---- what a dialect implies


def test_a_dialect_is_the_one_of_that_name() -> None:
    known: dict[str, Any] = module("shapes").DIALECTS
    assert tuple(known) == NAMES
    sizes = ModelConfig(*(8,) * 5).to_full_dict()
    for name, settings in DIALECTS.items():
        expected = ModelConfig(**{**sizes, **settings}).to_full_dict()
        assert {**sizes, **asdict(known[name])} == expected


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_a_dialect(name: str) -> None:
    shapes = module("shapes")
    (shape,) = shapes.in_dialects({"tiny": shapes.SHAPES["tiny"]}, [name]).values()
    sizes = shape.vocab_size, shape.block_size, shape.n_layer, shape.n_head, shape.n_embd
    config = ModelConfig(*sizes, **asdict(shape.parts))
    assert (shape.mlp_dim, shape.hidden_dim) == (config.mlp_dim, config.hidden_dim)
    rows = parameter_table(config)
    assert shape.parameters == sum(row.total for row in rows)
    # Multiplied with: all matrices, but for tables whose rows are only added.
    tables = {"wpe.weight"} | ({"wte.weight"} if not config.tie_embeddings else set())
    matrices = [row for row in rows if len(row.shape) == 2 and row.name not in tables]
    assert shape.matrix_parameters == sum(row.total for row in matrices)


def test_speed_takes_dialects(tmp_path: Path) -> None:
    plan = run("speed.py", "--shape", SMALL, "--dialect", *NAMES, "--plan").splitlines()
    shown = ["", ", microgpt", ", swiglu"]
    assert [line.partition(" (")[0] for line in plan if line.startswith("train: ")] == [
        f"train: {SMALL}{dialect}" for dialect in shown
    ]
    file = tmp_path / "speed.json"
    settings = ["--what", "train", "--rounds", 1, "--seconds", 0.01, "--attempts", 1]
    shape = ["--shape", SMALL, "--dialect", "swiglu", "--precision", "fp32", "--threads", 1]
    run("speed.py", "--no-peers", *shape, *settings, "--json", file)
    (swiglu,) = json.loads(file.read_text("utf-8"))["training"]
    assert swiglu["shape"]["dialect"] == "swiglu"
    # GPT-2's MLP of 128 numbers has 2 x 128 x 32 weights; SwiGLU's, as wide here, has 3 x 128 x 32.
    gpt2 = module("shapes").shape_of(SMALL).training_flops_per_token
    assert swiglu["flops_per_token"] - gpt2 == 6 * 2 * 128 * 32


def test_ops_of_a_dialect_do_its_work(tmp_path: Path) -> None:
    for name in ("microgpt", "swiglu"):
        file = tmp_path / f"{name}.json"
        settings = ["--seconds", 0.001, "--attempts", 1, "--threads", 1]
        text = run("ops.py", "--shape", SMALL, "--dialect", name, *settings, "--json", file)
        check_table(text)
        told = json.loads(file.read_text("utf-8"))
        check_figures(told, {"others_share", "calls_of_a_step", "flops", "launches"})
        shape = module("shapes").Shape(**told["shape"])
        assert shape.dialect == name
        flops = sum(one["calls_of_a_step"] * one["flops"] for one in told["ops"].values())
        assert flops == shape.training_flops_per_token * shape.tokens
        # Each norm once in either direction; those of a block, and the one that the dialect has.
        calls = {op: one["calls_of_a_step"] for op, one in told["ops"].items()}
        for way in ("forward", "backward"):
            norms = [n for op, n in calls.items() if "norm" in op and op.endswith(way)]
            assert sum(norms) == 2 * shape.n_layer + 1
            assert calls[f"{shape.parts.activation} {way}"] == shape.n_layer


# ---- the same model in PyTorch

SAME = """
import json
import numpy as np
import torch
import andrea
from andrea_engine import _model
from shapes import Shape, DIALECTS
from torch_decoding import DecodedSequence
from torch_gpt import TorchGPT

NAMES = {"attn.c_attn": "c_attn", "attn.c_proj": "attn_proj", "mlp.c_fc": "c_fc",
         "mlp.c_proj": "mlp_proj"}

def peer_name(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return "blocks" + name[1:] if name.startswith("h.") else name

told = {}
for dialect in DIALECTS:
    shape = Shape(65, 32, 2, 32, 2, 2, dialect)
    ours, rng = _model(shape, "fp32", 1, "cpu"), np.random.default_rng(0)
    parameters = ours.parameters()
    for name, values in parameters.items():
        values[...] = rng.normal(values.ndim == 1 and "weight" in name, 0.1, values.shape)
    ours.refresh()
    weights = {peer_name(name): torch.tensor(v.copy()) for name, v in parameters.items()}
    model, tokens = TorchGPT(shape), rng.integers(0, 65, (2, 2, 32))
    sequence = DecodedSequence(shape, "fp32", 1)
    for peer in (model, sequence._model):
        tied = {"lm_head.weight"} if shape.parts.tie_embeddings else set()
        missing, unexpected = peer.load_state_dict(weights, strict=False)
        assert set(missing) == tied and not unexpected, (missing, unexpected)
    loss = model(*torch.tensor(tokens))
    loss.backward()
    gradients = [parameter.grad.norm() for parameter in model.parameters()]
    # A prompt and two tokens, and the likeliest token after each.
    fed, decoder = ([1, 2, 3], [4], [5]), ours.decoder()
    likeliest = [[int(decoder.feed([part])[0].argmax()) for part in fed],
                 [sequence.feed(part) for part in fed]]
    x, y = tokens.astype(np.int32)
    told[dialect] = {
        "losses": [ours.train_step(x, y, learning_rate=1e-3), loss.item()],
        "norms": [ours.last_gradient_norm, torch.stack(gradients).norm().item()],
        "likeliest": likeliest,
    }
print(json.dumps(told))
"""


@needs("torch", extra="interchange")
def test_pytorch_computes_the_same() -> None:
    """A second or more: the time that PyTorch takes to start."""
    told = json.loads(python("-c", SAME))
    assert tuple(told) == NAMES
    for one in told.values():
        for ours, theirs in (one["losses"], one["norms"]):
            assert ours == pytest.approx(theirs, rel=1e-5)
        assert one["likeliest"][0] == one["likeliest"][1]


# ---- llama.cpp


@needs("gguf", "xllamacpp", extra="interchange")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_llama_cpp_decodes_a_sequence(precision: str) -> None:
    shape = module("shapes").shape_of(SMALL).to_dict()
    asked = {"engine": "llama.cpp", "device": "cpu", "precision": precision, "threads": 1}
    child = str(BENCHMARKS / "child.py")
    request = {**asked, "task": "decode", "shape": shape, "seconds": 0.01}
    told = json.loads(python(child, json.dumps(request)).splitlines()[-1])
    assert told["sequences"] >= 1
    for part in ("early", "prompt", "late"):
        speed = told[f"{part}_tokens_per_second"]
        assert math.isfinite(speed) and speed > 0
    version = json.loads(python(child, json.dumps({**asked, "task": "describe"})).splitlines()[-1])
    assert version["version"].startswith("xllamacpp ") and version["isa"] in version["version"]
