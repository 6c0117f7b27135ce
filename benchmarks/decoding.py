"""Decoding one sequence: Andrea and its peers in turn, beside the reading of the weights."""

from __future__ import annotations

import statistics
from typing import Any

from bench import LIMITS, Bench, comparison, comparison_line, limits_summary, say
from disturbance import Measurement
from processes import Engine
from rounds import Round, disturbance, in_turn, median
from shapes import ELEMENT_BYTES, Shape
from tables import figure, others, percent, table

EARLY, PROMPT, LATE = (
    "early_tokens_per_second",
    "prompt_tokens_per_second",
    "late_tokens_per_second",
)


def compare_decoding(bench: Bench, name: str, shape: Shape) -> dict[str, Any]:
    """Limits, Andrea, PyTorch and llama.cpp at one shape, in turn for the rounds of the run.

    The weights are untrained: speed doesn't depend on what they say.
    """
    say(f"decoding, {name}")
    peers = [Engine("torch", p) for p in bench.torch_precisions] if bench.with_torch else []
    if bench.with_llama and shape.dialect == "gpt2":  # which is what llama.cpp is given
        peers += [Engine("llama.cpp", precision) for precision in ELEMENT_BYTES]
    tried, left_out = bench.those_that_run("decode", peers, shape)
    engines = [Engine("andrea", precision) for precision in bench.precisions] + list(tried)
    by_name = {engine.name: engine for engine in engines}

    def measure(what: str) -> Measurement:
        if what == LIMITS:
            return bench.limits()
        return bench.measure("decode", by_name[what], shape)

    rounds = in_turn([LIMITS, *by_name], bench.rounds, measure, say)
    comparisons = [
        comparison(rounds, own.name, peer.name, key)
        for own in engines
        for peer in engines
        for key in (EARLY, LATE)
        if own.kind == "andrea" != peer.kind and own.precision == peer.precision
    ]
    return {
        "name": name,
        "shape": shape.to_dict(),
        "bytes_per_token": {
            precision: shape.decoding_bytes_per_token(size)
            for precision, size in ELEMENT_BYTES.items()
        },
        "limits": limits_summary(rounds),
        "engines": {engine.name: _summary(bench, engine, shape, rounds) for engine in engines},
        "comparisons": comparisons,
        "left_out": left_out,
        "rounds": rounds,
    }


def _summary(bench: Bench, engine: Engine, shape: Shape, rounds: list[Round]) -> dict[str, Any]:
    """Medians of one engine; shares of the read limit are taken round by round.

    The limit is the weights alone: keys and values that are read beside them count against the
    engine.
    """
    size = shape.decoding_bytes_per_token(ELEMENT_BYTES[engine.precision])

    def share(key: str) -> float:
        shares: list[float] = [
            one[engine.name][key] * size / one[LIMITS]["bandwidth"][str(bench.threads)]
            for one in rounds
        ]
        return statistics.median(shares)

    return {
        EARLY: median(rounds, engine.name, EARLY),
        LATE: median(rounds, engine.name, LATE),
        PROMPT: median(rounds, engine.name, PROMPT),
        "early_share_of_read_limit": share(EARLY),
        "late_share_of_read_limit": share(LATE),
        "peak_mb": median(rounds, engine.name, "peak_mb"),
        **disturbance(rounds, engine.name),
    }


def decoding_lines(told: dict[str, Any], threads: int) -> list[str]:
    """The figures of one shape for a reader."""
    shape = Shape(**told["shape"])
    first, last = f"first {shape.early_positions}", f"last {shape.late_positions}"
    heads = ("tokens/s", first, "of limit", last, "of limit", "prompt", "MB", "others")
    rows = [
        (
            name,
            figure(one[EARLY]),
            percent(one["early_share_of_read_limit"]),
            figure(one[LATE]),
            percent(one["late_share_of_read_limit"]),
            figure(one[PROMPT]),
            f"{one['peak_mb']:,.0f}",
            others(one),
        )
        for name, one in told["engines"].items()
    ]
    bandwidth = told["limits"]["bandwidth"][str(threads)]
    read_limits = ", ".join(
        f"{precision} {figure(bandwidth / size)}"
        for precision, size in told["bytes_per_token"].items()
    )
    lines = [
        f"decoding, {told['name']}: {shape}, but 1 sequence; {threads} threads",
        f"read {figure(bandwidth / 1e9)} GB/s; limit by the weights, tokens/s: {read_limits}",
        "",
        *table(heads, rows),
    ]
    named = {EARLY: f", {first}", LATE: f", {last}"}
    lines += [comparison_line(one, named[one["figure"]]) for one in told["comparisons"]]
    lines += [f"left out: {name}: {reason}"[:100] for name, reason in told["left_out"].items()]
    return lines
