"""The benchmarks run and count right. What they measure is never judged here."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmark_programs import BENCHMARKS, SMALL, check_figures, check_table, module, run
from patience import PATIENCE

DOCS = BENCHMARKS.parent / "docs"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="no benchmarks beside the tests")


# ---- whole runs, of a model so small that it takes a second or two


def test_speed(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    settings = ["--rounds", 2, "--seconds", 0.02, "--attempts", 1, "--threads", 2, "--scaling"]
    text = run("speed.py", "--shape", SMALL, "--no-peers", *settings, "--json", file)
    told = json.loads(file.read_text("utf-8"))
    check_figures(told, {"others_share", "disturbed_rounds"})
    check_table(text)

    precisions = told["engines"]["andrea"]["precisions"]
    assert "fp32" in precisions
    limits, training, decoding = told["limits"][0], told["training"][0], told["decoding"][0]
    assert set(limits["flops"]) == {"fp32", *precisions}
    assert all(set(by_threads) == {"1", "2"} for by_threads in limits["flops"].values())
    assert set(limits["bandwidth"]) == {"1", "2"}
    for part in (training, decoding):
        assert set(part["engines"]) >= {f"andrea {precision}" for precision in precisions}
        assert len(part["rounds"]) == 2
        for name in part["engines"]:
            assert name in text
    for name, one in training["engines"].items():
        # The share of the peak is taken round by round: it lies between those of the rounds.
        precision, threads = name.split()[1], "1" if name.endswith(" 1 thread") else "2"
        work = training["flops_per_token"]
        shares = [
            r[name]["tokens_per_second"] * work / r["limits"]["flops"][precision][threads]
            for r in training["rounds"]
        ]
        assert min(shares) * 0.999 <= one["share_of_peak"] <= max(shares) * 1.001
        assert one["slowest"] <= one["tokens_per_second"] <= one["fastest"]
        assert one["first_step_seconds"] > 0.01  # a Python starts in it
    pairs = [(one["of"], one["to"]) for one in training["comparisons"]]
    assert pairs == [(f"andrea {p}", f"andrea {p} 1 thread") for p in precisions]
    for one in training["comparisons"]:
        rounds = [
            r[one["of"]]["tokens_per_second"] / r[one["to"]]["tokens_per_second"]
            for r in training["rounds"]
        ]
        assert one["rounds"] == pytest.approx(rounds)
        assert one["median"] == pytest.approx(sum(rounds) / 2)


def test_ops(tmp_path: Path) -> None:
    file = tmp_path / "ops.json"
    settings = ["--seconds", 0.001, "--attempts", 1, "--threads", 1]
    text = run("ops.py", "--shape", SMALL, *settings, "--json", file)
    told = json.loads(file.read_text("utf-8"))
    check_figures(told, {"others_share", "calls_of_a_step", "flops", "launches"})
    check_table(text)
    ops = told["ops"]
    for part in ("embedding", "norm", "c_attn", "attn proj", "c_fc", "mlp proj", "attention"):
        assert any(name.startswith(part) for name in ops), part
    # The products of all ops are those of a training step, counted for the model as a whole.
    shape = module("shapes").Shape(**told["shape"])
    flops = sum(one["calls_of_a_step"] * one["flops"] for one in ops.values())
    assert flops == shape.training_flops_per_token * shape.tokens
    for name, one in ops.items():
        assert re.search(rf"^{re.escape(name)} ", text, re.MULTILINE)
        limits = (one["flops"] / one["peak_flops"], one["bytes"] / one["bandwidth"])
        assert one["limit_seconds"] == pytest.approx(max(limits))
        assert one["bound_by"] == ("FLOPs" if limits[0] >= limits[1] else "bytes")


def test_overhead() -> None:
    """The figures of each round add up, whatever they are."""
    *_, first, second, medians = run(
        "overhead.py", "--shape", SMALL, "--rounds", 2, "--steps", 3
    ).splitlines()
    shares, rounded = [], 0.005
    for line in (first, second):
        alone, whole, outside = map(float, re.findall(r"[\d.]+(?= ms| us)", line))
        assert alone > 0 and 0 < outside < 1e3 * whole
        shares.append(outside / (1e3 * whole))
        # Both figures were rounded: to half a us each.
        rounded += 50 * (0.5 + 0.5 * shares[-1]) / (1e3 * whole)
    assert re.fullmatch(r"medians: [+-][\d.]+% longer, [\d.]+% outside of the work", medians)
    median = float(medians.split()[3].rstrip("%"))
    assert median == pytest.approx(50 * sum(shares), abs=1.01 * rounded)


def test_bad_arguments_are_refused_in_a_line() -> None:
    for script, *arguments in (
        ("speed.py", "--shape", "huge"),
        ("speed.py", "--shape", "V65,T32,L2,d32,h3,B2"),
        ("speed.py", "--what", "train,sleep"),
        ("speed.py", "--rounds", "0"),
        ("speed.py", "--device", "cuda", "--scaling"),
        ("speed.py", "--tokens", "1000"),
        ("ops.py", "--shape", "V65,T32"),
        ("ops.py", "--tokens", "1000"),
        ("roofline.py", "--gpu", "abacus"),
        ("roofline.py", "--gemm", "1.5"),
        ("roofline.py", "--tokens", "1000"),
        ("roofline.py", "--measured", "nowhere.json"),
        ("ops.py", "--attempts", "0"),
    ):
        command = [sys.executable, str(BENCHMARKS / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 2, arguments
        assert arguments[0] in done.stderr.splitlines()[-1]


def test_the_commands_of_the_page_are_accepted() -> None:
    """The pages' blocks are not run: they take minutes. Their options must exist."""
    pages = (DOCS / "performance.md", DOCS / "cuda.md")
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("python benchmarks/")]
    assert len(commands) >= 3
    for _, script, *arguments in commands:
        text = run(Path(script).name, *arguments, "--plan")
        assert text.strip()


# ---- what the figures rest on


@pytest.mark.parametrize(
    ("name", "mflops"),
    [("tiny", 5.3), ("small", 72.6), ("andrea-12m", 83.2), ("andrea-120m", 605.2)],
)
def test_work_of_a_shape(name: str, mflops: float) -> None:
    from andrea.config import ModelConfig
    from andrea.planning.sizes import parameter_table

    shape = module("shapes").SHAPES[name]
    assert shape.training_flops_per_token / 1e6 == pytest.approx(mflops, abs=0.05)
    config = ModelConfig(
        vocab_size=shape.vocab_size,
        block_size=shape.block_size,
        n_layer=shape.n_layer,
        n_head=shape.n_head,
        n_embd=shape.n_embd,
    )
    rows = parameter_table(config)
    assert shape.parameters == sum(row.total for row in rows)
    matrices = [row for row in rows if len(row.shape) == 2 and row.name != "wpe.weight"]
    assert shape.matrix_parameters == sum(row.total for row in matrices)


def test_bytes_of_a_decoded_token() -> None:
    shape = module("shapes").SHAPES["andrea-120m"]
    assert shape.decoding_bytes_per_token(2) == 2 * (12 * 12 * 768**2 + 8449 * 768)
    assert shape.decoding_bytes_per_token(4) == 2 * shape.decoding_bytes_per_token(2)
    assert (shape.early_positions, shape.late_positions) == (256, 192)


def test_a_shape_in_letters() -> None:
    shapes = module("shapes")
    shape = shapes.shape_of(SMALL)
    assert (shape.vocab_size, shape.n_embd, shape.tokens) == (65, 32, 64)
    assert shapes.shape_of(str(shape)) == shape


def test_least_bytes_of_an_op_are_its_operands(tmp_path: Path) -> None:
    """One product by hand: weight and bias in float32, both activations in the precision."""
    file = tmp_path / "ops.json"
    settings = ["--only", "^c_attn forward$", "--seconds", 0.001, "--attempts", 1]
    run("ops.py", "--shape", SMALL, *settings, "--json", file)
    (one,) = json.loads(file.read_text("utf-8"))["ops"].values()
    assert one["flops"] == 2 * 64 * 96 * 32
    assert one["bytes"] == 4 * (96 * 32 + 96) + 4 * 64 * (32 + 96)


# ---- disturbance, with counters that are made up


def counters(disturbance: ModuleType, wall: float, busy: float, own: float) -> Any:
    return disturbance.Counters(wall=wall, busy=busy, own=own, cpus=2, tick=0.01)


def share_of(disturbance: ModuleType, *readings: tuple[float, float, float]) -> float:
    queue = [counters(disturbance, *reading) for reading in readings]
    watch = disturbance.CoreWatch(read=lambda: queue.pop(0))
    return float(watch.others_share())


def test_others_share_of_the_cores() -> None:
    disturbance = module("disturbance")
    # In 10 s two cores worked 19 s, 15 of them for us: others had 4 of 20, less a tick a core.
    assert share_of(disturbance, (0, 100, 3), (10, 119, 18)) == pytest.approx((4 - 0.02) / 20)
    # Ticks that are counted late make no negative share.
    assert share_of(disturbance, (0, 100, 3), (10, 115, 18.3)) == 0
    silent = disturbance.CoreWatch(read=lambda: None)
    assert silent.others_share() is None


def test_the_counters_of_this_machine() -> None:
    disturbance = module("disturbance")
    before = disturbance.read_counters()
    if before is None:  # no /proc/stat: nothing is known, and nothing is repeated
        assert disturbance.CoreWatch().others_share() is None
        return
    while (after := disturbance.read_counters()).own < before.own + 0.05:
        pass
    assert after.wall > before.wall and after.busy >= before.busy
    assert after.cpus >= 1 and after.tick > 0


class Measuring:
    """A measurement whose share of others is the next of a list."""

    def __init__(self, *shares: float | None) -> None:
        self.shares = list(shares)
        self.done = 0

    def __call__(self) -> dict[str, Any]:
        self.done += 1
        return {"others_share": self.shares.pop(0), "number": self.done}


def test_a_disturbed_measurement_is_repeated() -> None:
    undisturbed = module("disturbance").undisturbed
    measuring = Measuring(0.3, 0.06, 0.02, 0.0)
    result = undisturbed(measuring, 0.05, 5)
    assert (result["number"], result["attempts"], result["disturbed"]) == (3, 3, False)
    assert measuring.done == 3


def test_one_that_stays_disturbed_is_marked() -> None:
    undisturbed = module("disturbance").undisturbed
    measuring = Measuring(0.3, 0.1, 0.2)
    result = undisturbed(measuring, 0.05, 3)
    # The least disturbed one is told.
    assert (result["number"], result["attempts"], result["disturbed"]) == (2, 3, True)


def test_what_is_not_known_is_not_repeated() -> None:
    undisturbed = module("disturbance").undisturbed
    result = undisturbed(Measuring(None), 0.05, 3)
    assert (result["attempts"], result["disturbed"]) == (1, False)
