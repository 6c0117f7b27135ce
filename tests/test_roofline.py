"""benchmarks/roofline.py counts what a step on a GPU does; here it is counted another way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from andrea.config import ModelConfig
from andrea.planning.sizes import flops_per_token, num_parameters
from benchmark_programs import BENCHMARKS, SMALL, check_figures, check_table, refusal, run

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no benchmarks beside the tests")

DOCS = BENCHMARKS.parent / "docs"
ODD = "V1003,T48,L3,d60,h5,B7"  # nothing in it is a power of two
LARGE = "V50257,T1024,L12,d768,h12,B64"  # logits of all rows are more than a 32nd of an L4


def roofline(folder: Path, *arguments: object) -> dict[str, Any]:
    file = folder / "roofline.json"
    check_table(run("roofline.py", *arguments, "--json", file))
    told: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return told


def config_of(told: dict[str, Any]) -> ModelConfig:
    sizes = dict(told["shape"])
    assert sizes.pop("dialect") == "gpt2"
    return ModelConfig(**{name: size for name, size in sizes.items() if name != "batch_size"})


def tokens_of(told: dict[str, Any]) -> int:
    return int(told["shape"]["batch_size"] * told["shape"]["block_size"])


@pytest.mark.parametrize("shape", ["120m", "tiny", ODD, LARGE])
def test_work_is_that_of_the_model(shape: str, tmp_path: Path) -> None:
    told = roofline(tmp_path, "--shape", shape, "--tokens", 1024 * 48, "--gpu", "l4")
    work = flops_per_token(config_of(told), training=True)
    assert told["needed"] == pytest.approx(work * tokens_of(told), rel=1e-12)
    assert sum(op["needed"] for op in told["ops"].values()) == pytest.approx(told["needed"])
    assert sum(op["launches"] for op in told["ops"].values()) == told["launches"]


def test_work_done_twice(tmp_path: Path) -> None:
    """Of attention's kernels nine products are done where the model asks for six."""
    told = roofline(tmp_path, "--shape", "120m", "--tokens", 2048)
    B, T, L, NH = (
        told["shape"][name] for name in ("batch_size", "block_size", "n_layer", "n_head")
    )
    head_dim = told["shape"]["n_embd"] // NH
    one = 2 * head_dim * T * T / 2 * NH * B * L
    forward, backward = told["ops"]["attention forward"], told["ops"]["attention backward"]
    assert (forward["flops"], forward["needed"]) == pytest.approx((2 * one, 2 * one))
    # dq: scores, dp, dq; dk and dv: scores, dp, dv, dk.
    assert (backward["flops"], backward["needed"]) == pytest.approx((7 * one, 4 * one))
    # Logits and their input gradient have columns up to a multiple of 8: 8449 become 8456.
    padding = 2 * (2 * 2048 * 768 * 7)
    head = told["ops"]["head and loss, both ways"]
    assert head["flops"] - head["needed"] == pytest.approx(padding)
    assert told["flops"] - told["needed"] == pytest.approx(3 * one + padding)


def test_bytes_are_those_of_the_operands(tmp_path: Path) -> None:
    told = roofline(tmp_path, "--shape", ODD, "--tokens", 48 * 7)
    ops = {name: op["bytes"] for name, op in told["ops"].items()}
    C, N, L, heads = 60, 48 * 7, 3, 5
    P = num_parameters(config_of(told))
    fp32, bf16 = 4, 2
    assert ops["gradient norm"] == fp32 * P
    in_and_out = 2
    assert ops["AdamW"] == 4 * in_and_out * fp32 * P + bf16 * P
    weight, bias, x, out = 3 * C * C * bf16, 3 * C * bf16, N * C * bf16, N * 3 * C * bf16
    assert ops["c_attn forward"] == L * (weight + bias + x + out)
    assert ops["c_attn input gradient"] == L * (weight + x + out)
    accumulated, own_sum = in_and_out * 3 * C * C * fp32, 4 * 3 * C * fp32
    assert ops["c_attn weight gradient"] == L * (x + out + accumulated + own_sum)
    stream, wide = N * C * fp32, N * 4 * C * bf16
    projection = 4 * C * C * bf16 + C * fp32
    assert ops["mlp proj forward, residual"] == L * (wide + projection + in_and_out * stream)
    # The product: dout, weight, the layer's input before GELU, its gradient; then GELU in place.
    product = x + 4 * C * C * bf16 + 2 * wide
    assert ops["mlp proj input gradient, GELU"] == L * (product + in_and_out * wide)
    qkv, sums = 3 * x, N * heads * fp32
    assert ops["attention forward"] == L * (qkv + x + sums)
    queries = qkv + 2 * x + sums + x + sums  # q, k, v, dout, out, L; dq, D
    keys = qkv + x + 2 * sums + 2 * x  # q, k, v, dout, L, D; dk, dv
    assert ops["attention backward"] == L * (queries + keys)
    statistics, vector = 2 * N * fp32, C * fp32
    assert ops["norm forward"] == (2 * L + 1) * (stream + x + statistics + 2 * vector)


def test_limits_come_from_the_gpu_and_the_shares_from_the_command(tmp_path: Path) -> None:
    told = roofline(tmp_path, "--gpu", "a100", "--gemm", 0.5, "--memory", 0.5, "--gap", 0)
    flops, bandwidth = told["gpu"]["flops"], told["gpu"]["bandwidth"]
    assert (flops, bandwidth) == (312e12, 2.039e12)
    for name in ("c_fc forward, GELU", "norm backward", "attn proj forward, residual", "AdamW"):
        op = told["ops"][name]
        limits = (op["flops"] / flops, op["bytes"] / bandwidth)
        assert op["limit_seconds"] == pytest.approx(max(limits))
        assert op["bound_by"] == ("FLOPs" if limits[0] > limits[1] else "bytes")
        assert op["reach_seconds"] == pytest.approx(2 * max(limits))
    step = sum(op["limit_seconds"] for op in told["ops"].values())
    assert told["seconds"]["limit_seconds"] == pytest.approx(step)
    assert told["mfu"]["limit_seconds"] == pytest.approx(told["needed"] / (step * flops))
    assert sum(told["where"].values()) == pytest.approx(step)
    slower = roofline(tmp_path, "--gpu", "a100", "--gemm", 0.5, "--memory", 0.5, "--gap", 3)
    more = slower["seconds"]["reach_seconds"] - told["seconds"]["reach_seconds"]
    launches_and_clear = told["launches"] + 1
    assert more == pytest.approx(3e-6 * launches_and_clear)


def test_the_bar_of_a_step_on_an_h200(tmp_path: Path) -> None:
    told = roofline(tmp_path, "--shape", "120m", "--tokens", 32768, "--gpu", "h200")
    check_figures(told, {"flops", "needed", "launches"})
    assert told["mfu"]["limit_seconds"] >= 0.6
    assert told["launches"] <= 24 * told["shape"]["n_layer"] + 30


def test_logits_in_chunks(tmp_path: Path) -> None:
    """65,536 rows of 50,264 floats are 13 GB: 18 times the 32nd of an L4's 24 GB."""
    head = roofline(tmp_path, "--shape", LARGE, "--tokens", 65536, "--gpu", "l4")["ops"][
        "head and loss, both ways"
    ]
    assert (head["calls"], head["launches"]) == (1, 4 * 18)
    whole = roofline(tmp_path, "--shape", LARGE, "--tokens", 1024, "--gpu", "l4")["ops"]
    assert whole["head and loss, both ways"]["launches"] == 4


def test_ops_are_those_that_can_be_measured(tmp_path: Path) -> None:
    """By name, and as often a step: --measured needs no more than ops.py writes."""
    told = roofline(tmp_path, "--shape", SMALL, "--tokens", 64)
    file = tmp_path / "ops.json"
    settings = ["--seconds", 0.0005, "--attempts", 1, "--threads", 1]
    run("ops.py", "--shape", SMALL, *settings, "--json", file)
    measured = json.loads(file.read_text("utf-8"))["ops"]
    calls = {name: one["calls_of_a_step"] for name, one in measured.items()}
    counted = {name: op["calls"] for name, op in told["ops"].items()}
    assert {name: count for name, count in calls.items() if count} == {
        name: count
        for name, count in counted.items()
        if name not in ("clear dx", "loss of the batch")
    }
    # They ran on a CPU: these times are of no use for a GPU.
    text = refusal_of_usage("--measured", file)
    assert "cpu in fp32" in text


def refusal_of_usage(*arguments: object) -> str:
    with pytest.raises(AssertionError) as caught:
        run("roofline.py", *arguments)
    return str(caught.value)


def test_measured_times_stand_beside_the_limits(tmp_path: Path) -> None:
    told = roofline(tmp_path, "--shape", "120m", "--tokens", 8192)
    one_call = {
        name: 3 * op["limit_seconds"] / op["calls"]
        for name, op in told["ops"].items()
        if name not in ("clear dx", "loss of the batch")
    }
    file = tmp_path / "ops.json"
    ops = {name: {"seconds": seconds} for name, seconds in one_call.items()}
    written = {"device": "cuda", "precision": "bf16", "shape": told["shape"], "ops": ops}
    file.write_text(json.dumps(written), "utf-8")
    text = run("roofline.py", "--measured", file)
    check_table(text)
    (line,) = (line for line in text.splitlines() if line.startswith("c_fc forward"))
    assert line.split()[-1] == "33%"
    measured = roofline(tmp_path, "--measured", file)
    assert measured["shape"] == told["shape"]
    assert measured["mfu"]["measured_seconds"] == pytest.approx(
        told["mfu"]["limit_seconds"] / 3, rel=0.01
    )
    # Where an op is missing there is no sum.
    del ops["AdamW"]
    file.write_text(json.dumps({**written, "ops": ops}), "utf-8")
    assert "measured_seconds" not in roofline(tmp_path, "--measured", file)["mfu"]


def test_the_page_has_the_table_of_its_command() -> None:
    lines = (DOCS / "cuda.md").read_text("utf-8").splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith("python benchmarks/roofline"))
    _, script, *arguments = lines[start].split()
    assert script == "benchmarks/roofline.py"
    told = run("roofline.py", *arguments).rstrip().splitlines()
    begin = lines.index("```text", start) + 1
    assert lines[begin : lines.index("```", begin)] == told


def test_no_gpu_is_said_in_a_line() -> None:
    from andrea._library import cuda_info

    info = cuda_info()
    if info.usable:
        pytest.skip("this library can use a GPU")
    for script in ("speed.py", "ops.py"):
        assert info.reason in refusal(script, "--device", "cuda")
