"""What the numbers of a few seeds say: means, paired differences, and verdicts on claims.

Every variant is trained with the same seeds: the same data in the same order. So a seed gives a
pair, and what is judged are the differences within pairs, which the luck of a seed does not blur.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from andrea.errors import ArgumentError

LEVEL = 0.95
"""Of every interval: so many of those that are made this way hold the true value."""

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"


@dataclass(frozen=True)
class Summary:
    """Numbers of one kind, one for each seed.

    mean, and sd, the sample standard deviation (divided by n - 1; None of a single number).
    interval: where the mean of very many seeds lies, by Student's t with n - 1 degrees of freedom
    at LEVEL, which takes the numbers for normally distributed; None of a single number.
    """

    values: tuple[float, ...]
    mean: float
    sd: float | None
    interval: tuple[float, float] | None

    @property
    def effect_size(self) -> float | None:
        """Cohen's d of paired differences, mean / sd; None where there is no sd, or it is 0."""
        return self.mean / self.sd if self.sd else None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "values": list(self.values),
            "mean": self.mean,
            "sd": self.sd,
            "interval": None if self.interval is None else list(self.interval),
        }


@dataclass(frozen=True)
class Verdict:
    """What numbers say of a claim: "holds", "does not hold" or "undecided", and why."""

    outcome: str
    why: str


def summary(values: Sequence[float]) -> Summary:
    """Mean, spread and interval of one number for each seed.

    Raises:
        ArgumentError: there is none, or one is not finite.
    """
    if not values or not all(map(math.isfinite, values)):
        raise ArgumentError(f"a summary needs finite numbers, got {list(values)!r:.60}")
    n = len(values)
    # A sum of equal numbers, divided again, may be off by a rounding, and so beside a bound.
    mean = values[0] if len(set(values)) == 1 else math.fsum(values) / n
    if n == 1:
        return Summary(tuple(values), mean, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = student_t(n - 1) * sd / math.sqrt(n)
    return Summary(tuple(values), mean, sd, (mean - half, mean + half))


def judge(effect: Summary, least: float, unit: str) -> Verdict:
    """Whether an effect is at least `least`; below 0, whether it is no worse than that.

    It is where the whole interval is, it isn't where no part of the interval is; else the seeds
    leave it open.
    """
    if effect.interval is None:
        return _one_seed(effect, unit)
    low, high = effect.interval
    told, bound = _told(effect, unit), _amount(least, unit)
    if low >= least:
        return Verdict(HOLDS, f"{told}: all of the interval is at or above {bound}")
    if high < least:
        other = ""
        if low > 0:
            other = "; there is an effect, but a smaller one than counts"
        elif high < 0:
            other = "; it is the other way round"
        return Verdict(FAILS, f"{told}: all of the interval is below {bound}{other}")
    return Verdict(
        UNDECIDED, f"{told}: the interval is on both sides of {bound}; more seeds would narrow it"
    )


def judge_alike(effect: Summary, most: float, unit: str) -> Verdict:
    """Whether a difference is at most `most` in either direction (equivalence)."""
    if effect.interval is None:
        return _one_seed(effect, unit)
    low, high = effect.interval
    told, bound = _told(effect, unit), _amount(most, unit)
    if -most <= low and high <= most:
        return Verdict(HOLDS, f"{told}: all of the interval is within {bound} of 0")
    if low > most or high < -most:
        return Verdict(FAILS, f"{told}: no part of the interval is within {bound} of 0")
    return Verdict(
        UNDECIDED, f"{told}: a part of the interval is within {bound} of 0; more seeds would tell"
    )


def all_of(verdicts: Sequence[Verdict]) -> str:
    """The outcome of a claim that is made of several, all of which have to hold.

    No correction for their number is made. That all hold by chance is less likely than that one
    does; but that one of k parts fails by chance, where all are true and just on their bounds, is
    up to k times as likely as of one, (1 - LEVEL) / 2.
    """
    outcomes = [verdict.outcome for verdict in verdicts]
    if FAILS in outcomes:
        return FAILS
    return UNDECIDED if UNDECIDED in outcomes or not outcomes else HOLDS


def _one_seed(effect: Summary, unit: str) -> Verdict:
    return Verdict(
        UNDECIDED,
        f"{_amount(effect.mean, unit)} with one seed, which does not tell how much is luck",
    )


def _amount(number: float, unit: str) -> str:
    """A number with its unit, which is given in the plural: 0.5 nats, 1 power of ten."""
    written = f"{number:.3g}"
    return written + (re.sub(r"^( \w+)s\b", r"\1", unit) if written == "1" else unit)


def _told(effect: Summary, unit: str) -> str:
    assert effect.interval is not None
    low, high = effect.interval
    if low == high:  # as numbers that are counted may be
        return f"{_amount(effect.mean, unit)}, alike in all {len(effect.values)} seeds"
    d = effect.effect_size
    size = "" if d is None else f", d {d:,.0f}" if abs(d) >= 10 else f", d {d:.1f}"
    return (
        f"{_amount(effect.mean, unit)} ({LEVEL:.0%} interval {low:.3g} to {high:.3g} from "
        f"{len(effect.values)} seeds{size})"
    )


def student_t(freedom: int, level: float = LEVEL) -> float:
    """How many standard errors around a mean hold the true one with probability `level`.

    Raises:
        ArgumentError: there is no degree of freedom, or level is not between 0 and 1.
    """
    if freedom < 1 or not 0 < level < 1:
        raise ArgumentError(f"Student's t needs 1 degree of freedom or more, got {freedom}")
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if _within(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|t| <= sqrt(freedom) tan(angle)), exact: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom % 2:
        term, total = cosine, 0.0
        for odd in range(3, freedom + 1, 2):
            total += term
            term *= cosine * cosine * (odd - 1) / odd
        return 2 / math.pi * (angle + sine * total)
    term, total = 1.0, 0.0
    for even in range(2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (even - 1) / even
    return sine * total
