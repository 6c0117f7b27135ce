"""One sentence for "is my loss normal?", out of the numbers of an evaluation and nothing else."""

from __future__ import annotations

from .confidence import Interval
from .evaluate import ORDER, Difference, Judgement

_NGRAM = f"{ORDER}-gram"


def verdict(judgement: Judgement) -> str:
    """Say how the model stands beside the others; "by x" is always in bits per byte.

    Beside the 5-gram and the unigram of its training text where they were measured: a difference
    whose 95% interval holds 0 is none. Else beside xz -9.
    """
    own = judgement.model.bits_per_byte
    if own >= judgement.uniform:
        return (
            f"no better than chance: {own:.3f} bits per byte, and equally likely tokens give "
            f"{judgement.uniform:.3f}"
        )
    if _NGRAM not in judgement.ahead_of:
        return _beside_xz(judgement)
    ngram, unigram = judgement.ahead_of[_NGRAM], judgement.ahead_of["unigram"]
    if _is_ahead(ngram):
        return (
            f"better than a {_NGRAM} model of its training text by {_by(ngram)}: it uses more than "
            f"the last {ORDER - 1} tokens"
        )
    if _is_open(ngram):
        return (
            f"about as good as a {_NGRAM} model of its training text: the difference, "
            f"{_by(ngram)}, may be chance"
        )
    if _is_ahead(unigram):
        return (
            f"better than token frequencies by {_by(unigram)}, but behind a {_NGRAM} model of its "
            f"training text by {_by(ngram, -1)}: it needs more training, or is too small"
        )
    if _is_open(unigram):
        return "about as good as the token frequencies of its training text: it has hardly learned"
    return (
        f"behind the token frequencies of its training text by {_by(unigram, -1)}: it has not "
        "learned this kind of text"
    )


def _is_open(difference: Difference) -> bool:
    return difference.interval is not None and not difference.is_clear


def _is_ahead(difference: Difference) -> bool:
    return difference.bits_per_byte > 0 and (difference.is_clear or difference.interval is None)


def _by(difference: Difference, sign: int = 1) -> str:
    value = f"{sign * difference.bits_per_byte:.3f} bits per byte"
    interval = difference.interval
    if interval is None:
        return f"{value} (of one passage, without an interval)"
    if sign < 0:
        interval = Interval(-interval.high, -interval.low)
    return f"{value} (95% interval {interval.low:.3f} to {interval.high:.3f})"


def _beside_xz(judgement: Judgement) -> str:
    xz = judgement.other("xz -9")
    assert xz is not None
    own = judgement.model.bits_per_byte
    share = abs(1 - own / xz.bits_per_byte)
    if own < xz.bits_per_byte:
        return f"needs {share:.0%} fewer bits than xz -9 ({own:.3f} and {xz.bits_per_byte:.3f})"
    return f"needs {share:.0%} more bits than xz -9 ({own:.3f} and {xz.bits_per_byte:.3f})"
