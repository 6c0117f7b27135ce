"""Training: Andrea and PyTorch in turn, beside what the machine can do."""

from __future__ import annotations

import statistics
from typing import Any

from bench import LIMITS, Bench, comparison, comparison_line, limits_summary, say
from disturbance import Measurement
from processes import Engine
from rounds import Round, disturbance, in_turn, median
from shapes import Shape
from tables import figure, others, percent, table

SPEED = "tokens_per_second"


def fastest_of_each_precision(measured: dict[Engine, Measurement]) -> list[Engine]:
    """Of PyTorch's modes, the one that each precision is fastest with.

    A precision that is more than twice as slow as the other is left out: it can't be PyTorch's
    best, and would take most of the time (bfloat16 where the CPU doesn't have it).
    """
    best: dict[str, Engine] = {}
    for engine, result in measured.items():
        other = best.get(engine.precision)
        if other is None or result[SPEED] > measured[other][SPEED]:
            best[engine.precision] = engine
    limit = max((measured[engine][SPEED] for engine in best.values()), default=0.0) / 2
    return [engine for engine in best.values() if measured[engine][SPEED] >= limit]


def compare_training(bench: Bench, name: str, shape: Shape) -> dict[str, Any]:
    """Limits, Andrea and PyTorch at one shape, in turn for the rounds of the run.

    PyTorch's modes run once for a short time; the fastest of each precision takes part in the
    rounds.
    """
    say(f"training, {name}")
    peers = [
        Engine("torch", p, mode) for p in bench.torch_precisions for mode in bench.torch_modes(p)
    ]
    tried, left_out = bench.those_that_run("train", peers if bench.with_torch else [], shape)
    counts = (False, True) if bench.scaling and bench.threads > 1 else (False,)
    engines = [Engine("andrea", p, alone=alone) for p in bench.precisions for alone in counts]
    engines += fastest_of_each_precision(tried)
    by_name = {engine.name: engine for engine in engines}

    def measure(what: str) -> Measurement:
        if what == LIMITS:
            return bench.limits()
        return bench.measure("train", by_name[what], shape)

    rounds = in_turn([LIMITS, *by_name], bench.rounds, measure, say)
    return {
        "name": name,
        "shape": shape.to_dict(),
        "flops_per_token": shape.training_flops_per_token,
        "limits": limits_summary(rounds),
        "engines": {engine.name: _summary(bench, engine, shape, rounds) for engine in engines},
        "comparisons": _comparisons(engines, rounds),
        "tried": {engine.name: result[SPEED] for engine, result in tried.items()},
        "left_out": left_out,
        "rounds": rounds,
    }


def _summary(bench: Bench, engine: Engine, shape: Shape, rounds: list[Round]) -> dict[str, Any]:
    """Medians of one engine; its share of the peak is taken round by round."""
    work = shape.training_flops_per_token
    shares = []
    for one in rounds:
        peaks = one[LIMITS]["flops"].get(engine.precision)  # none where only PyTorch has it
        if peaks is not None:
            shares.append(one[engine.name][SPEED] * work / peaks[str(bench.threads_of(engine))])
    speeds = [one[engine.name][SPEED] for one in rounds]
    return {
        SPEED: statistics.median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "flops": statistics.median(speeds) * work,
        "share_of_peak": statistics.median(shares) if shares else None,
        "peak_mb": median(rounds, engine.name, "peak_mb"),
        "first_step_seconds": median(rounds, engine.name, "first_step_seconds"),
        **disturbance(rounds, engine.name),
    }


def _comparisons(engines: list[Engine], rounds: list[Round]) -> list[dict[str, Any]]:
    """Each precision of Andrea to PyTorch's best, to that of its precision, and to 1 thread."""
    torch = [engine for engine in engines if engine.kind == "torch"]
    torch.sort(key=lambda engine: -median(rounds, engine.name, SPEED))
    found = []
    andrea = [engine for engine in engines if engine.kind == "andrea"]
    for own in (engine for engine in andrea if not engine.alone):
        same = [peer for peer in torch if peer.precision == own.precision]
        slower = [peer for peer in andrea if peer.alone and peer.precision == own.precision]
        for peer in dict.fromkeys([*torch[:1], *same, *slower]):
            found.append(comparison(rounds, own.name, peer.name, SPEED))
    return found


def training_lines(told: dict[str, Any], threads: int) -> list[str]:
    """The figures of one shape for a reader."""
    shape = Shape(**told["shape"])
    work = f"{told['flops_per_token'] / 1e6:.1f} MFLOP a token"
    heads = ("", "tokens/s", "slowest", "fastest", "GFLOP/s", "of peak", "MB", "1st step", "others")
    rows = [
        (
            name,
            figure(one[SPEED]),
            figure(one["slowest"]),
            figure(one["fastest"]),
            figure(one["flops"] / 1e9),
            percent(one["share_of_peak"]),
            f"{one['peak_mb']:,.0f}",
            f"{one['first_step_seconds']:.2f} s",
            others(one),
        )
        for name, one in told["engines"].items()
    ]
    peaks = ", ".join(
        f"{precision} {figure(by_threads[str(threads)] / 1e9)} GFLOP/s"
        for precision, by_threads in told["limits"]["flops"].items()
    )
    lines = [f"training, {told['name']}: {shape}; {threads} threads", f"{work}; peak {peaks}", ""]
    lines += table(heads, rows)
    lines += [comparison_line(one, "") for one in told["comparisons"]]
    if told["tried"]:
        tried = ", ".join(
            f"{name.removeprefix('torch ')} {figure(speed)}"
            for name, speed in told["tried"].items()
        )
        lines.append(f"PyTorch in a short try: {tried}"[:100])
    lines += [f"left out: {name}: {reason}"[:100] for name, reason in told["left_out"].items()]
    return lines
