"""How well a model predicts a text, beside compressors and models that count: is its loss normal?

Everyone is judged by the same passages of the same text, in bits per byte of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .baselines import (
    beginning_of_text,
    gzip_bits_per_byte,
    ngram_nats,
    unigram_nats,
    xz_bits_per_byte,
)
from .chunks import Tokens
from .confidence import Interval, ratio_interval
from .ngram import KneserNey
from .passages import Losses, Passages, measure, model_nats
from .unigram import unigram_counts

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

ORDER = 5

Progress = Callable[[str, int, int], None]
"""Called with what is done ("model", "5-gram", ...), how much of it, and how much in all."""


@dataclass(frozen=True)
class Score:
    """What a model or compressor makes of the text; interval: 95%, of bits_per_byte.

    loss: nats per token, and perplexity, its exponential; None of a compressor, which knows no
    tokens.
    """

    name: str
    bits_per_byte: float
    interval: Interval | None = None
    loss: float | None = None

    @property
    def perplexity(self) -> float | None:
        """Among how many equally likely tokens the model chooses, so to say."""
        return None if self.loss is None else math.exp(min(self.loss, 700.0))

    def to_dict(self) -> dict[str, Any]:
        """The score as plain data."""
        return {
            "loss": self.loss,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "interval": None if self.interval is None else list(self.interval),
        }


@dataclass(frozen=True)
class Difference:
    """Bits per byte that the model needs less than another, on the same passages; its 95%."""

    bits_per_byte: float
    interval: Interval | None

    @property
    def is_clear(self) -> bool:
        """Whether 0 is outside the interval."""
        return self.interval is not None and not self.interval.low <= 0 <= self.interval.high


@dataclass(frozen=True)
class Judgement:
    """A model's score beside those of others, and what they were measured on.

    passages of all_passages were predicted, num_tokens and num_bytes in all; each token from
    `context` to block_size others, but for the text's first ones. blocks: what the intervals were
    drawn from. compressed: bytes of text, from its beginning, that the compressors had. ahead_of:
    name -> how far the model is ahead of that one. counted_tokens: what the 5-gram learned from, of
    training_tokens. uniform: bits per byte of one who knows nothing but the vocabulary.
    """

    model: Score
    others: tuple[Score, ...]
    ahead_of: dict[str, Difference]
    vocab_size: int
    passages: int
    all_passages: int
    num_tokens: int
    num_bytes: int
    context: int
    block_size: int
    blocks: int
    compressed: int
    training_tokens: int = 0
    counted_tokens: int = 0
    uniform: float = math.inf

    def other(self, name: str) -> Score | None:
        """The score of that name, if it was measured."""
        return next((score for score in self.others if score.name == name), None)


def judge(
    model: GPT,
    tokenizer: Tokenizer,
    text: Tokens,
    training: Tokens | None,
    *,
    max_passages: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Judgement:
    """Judge a model by a text, (n,) tokens, that it has not seen.

    training: the tokens that it learned from, for the counting models; without them these are
    left out. max_passages: how many are predicted, spread evenly; 0 for all.

    Raises:
        DataError: the text is too short to predict anything of it.
    """
    vocab_size = tokenizer.vocab_size
    passages = Passages(len(text), model.config.block_size, max_passages)

    def losses(name: str, nats_of: Any) -> Losses:
        return measure(
            passages, text, tokenizer, nats_of, lambda done, all_: progress(name, done, all_)
        )

    own = losses("model", model_nats(model))
    others: list[Score] = []
    ahead_of: dict[str, Difference] = {}
    counted = 0
    if training is not None and len(training):
        progress(f"{ORDER}-gram", 0, 0)
        ngram = KneserNey(training, vocab_size, order=ORDER)
        counted = ngram.num_tokens
        counts = unigram_counts(training, vocab_size)
        for name, nats_of in (
            (f"{ORDER}-gram", ngram_nats(ngram)),
            ("unigram", unigram_nats(counts)),
        ):
            found = losses(name, nats_of)
            others.append(_score(name, found))
            ahead_of[name] = _difference(own, found)
    progress("xz", 0, 0)
    beginning = beginning_of_text(text, tokenizer)
    others.append(Score("xz -9", xz_bits_per_byte(beginning)))
    others.append(Score("gzip -9", gzip_bits_per_byte(beginning)))
    num_tokens, num_bytes = int(own.tokens.sum()), int(own.num_bytes.sum())
    return Judgement(
        model=_score("model", own),
        others=tuple(others),
        ahead_of=ahead_of,
        vocab_size=vocab_size,
        passages=len(passages),
        all_passages=passages.num_all,
        num_tokens=num_tokens,
        num_bytes=num_bytes,
        context=passages.block_size - passages.stride + 1,
        block_size=passages.block_size,
        blocks=len(own.nats),
        compressed=len(beginning),
        training_tokens=0 if training is None else len(training),
        counted_tokens=counted,
        uniform=math.log2(vocab_size) * num_tokens / num_bytes,
    )


def _score(name: str, losses: Losses) -> Score:
    interval = ratio_interval(losses.nats / np.log(2), losses.num_bytes)
    return Score(name, losses.bits_per_byte, interval, losses.loss)


def _difference(own: Losses, other: Losses) -> Difference:
    bits = (other.nats - own.nats) / np.log(2)
    return Difference(float(bits.sum() / own.num_bytes.sum()), ratio_interval(bits, own.num_bytes))
