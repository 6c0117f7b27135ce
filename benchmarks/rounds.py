"""Measurements in turn, A B A B: a machine that changes its speed changes it for all."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from disturbance import Measurement

Round = dict[str, Measurement]


def in_turn(
    names: list[str], count: int, measure: Callable[[str], Measurement], say: Callable[[str], None]
) -> list[Round]:
    """Each of the names measured once a round, always in that order."""
    rounds: list[Round] = []
    for number in range(1, count + 1):
        rounds.append({})
        for name in names:
            say(f"round {number} of {count}: {name}")
            rounds[-1][name] = measure(name)
    return rounds


def median(rounds: list[Round], name: str, key: str) -> float:
    """The median over the rounds of one figure."""
    return float(statistics.median(one[name][key] for one in rounds))


def ratios(rounds: list[Round], above: str, below: str, key: str) -> list[float]:
    """One figure of two names, divided round by round."""
    return [one[above][key] / one[below][key] for one in rounds]


def disturbance(rounds: list[Round], name: str) -> dict[str, Any]:
    """The largest share of the cores that others used, how often it was repeated, and the verdict.

    "disturbed_rounds" counts those that stayed disturbed.
    """
    shares = [one[name]["others_share"] for one in rounds]
    known = [share for share in shares if share is not None]
    return {
        "others_share": max(known) if known else None,
        "attempts": sum(one[name]["attempts"] for one in rounds),
        "disturbed_rounds": sum(one[name]["disturbed"] for one in rounds),
    }
