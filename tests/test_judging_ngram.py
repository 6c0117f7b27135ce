"""The 5-gram model beside one out of dictionaries that follows the paper's formulas."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.errors import ArgumentError
from andrea.judging.ngram import KneserNey

Gram = tuple[int, ...]


class Brute:
    """Interpolated modified Kneser-Ney, by the book (Chen & Goodman 1998, equations 23 to 26)."""

    def __init__(self, text: list[int], vocab_size: int, order: int) -> None:
        self.vocab_size, self.order = vocab_size, min(order, len(text))
        self.counts: list[Counter[Gram]] = [Counter()]
        for n in range(1, self.order + 1):
            raw = Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
            self.counts.append(raw)
        for n in range(1, self.order):
            before: dict[Gram, set[int]] = defaultdict(set)
            for gram in Counter(tuple(text[i : i + n + 1]) for i in range(len(text) - n)):
                before[gram[1:]].add(gram[0])
            self.counts[n] = Counter({gram: len(heads) for gram, heads in before.items()})
        self.discounts = [self._discounts(counts) for counts in self.counts]

    @staticmethod
    def _discounts(counts: Counter[Gram]) -> dict[int, float]:
        n = Counter(counts.values())
        if not all(n[k] for k in (1, 2, 3, 4)):
            return {1: 0.5, 2: 1.0, 3: 1.5}
        y = n[1] / (n[1] + 2 * n[2])
        found = {k: k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)}
        return {k: min(max(d, 0.05), k) for k, d in found.items()}

    def p(self, word: int, context: Gram) -> float:
        n = len(context) + 1
        lower = 1 / self.vocab_size if n == 1 else self.p(word, context[1:])
        followers = {
            gram[-1]: count for gram, count in self.counts[n].items() if gram[:-1] == context
        }
        total = sum(followers.values())
        if total == 0:
            return lower
        discount = self.discounts[n]
        taken = sum(discount[min(count, 3)] for count in followers.values())
        count = followers.get(word, 0)
        own = max(count - discount[min(count, 3)], 0) / total if count else 0.0
        return own + taken / total * lower

    def nats(self, text: list[int]) -> list[float]:
        return [
            -math.log(self.p(word, tuple(text[max(i - self.order + 1, 0) : i])))
            for i, word in enumerate(text)
        ]


def random_text(length: int, vocab_size: int, seed: int) -> list[int]:
    """A text with structure: the next token often depends on the last two."""
    rng = np.random.default_rng(seed)
    text = [0, 1]
    for _ in range(length - 2):
        usual = (3 * text[-1] + 5 * text[-2] + 1) % vocab_size
        text.append(usual if rng.random() < 0.7 else int(rng.integers(vocab_size)))
    return text


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_it_is_what_the_paper_says(order: int) -> None:
    text, unseen = random_text(500, 23, seed=1), random_text(60, 23, seed=2)
    model = KneserNey(np.array(text, dtype=np.uint8), 23, order=order)
    brute = Brute(text, 23, order)
    assert order == 1 or brute.discounts[2][1] not in (0.05, 0.5, 1.0)  # an estimate
    for tokens in (text[:50], unseen):
        assert model.nats(np.array(tokens)) == pytest.approx(brute.nats(tokens), abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=24),
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.integers(1, 5),
)
def test_small_and_odd_texts_too(text: list[int], unseen: list[int], order: int) -> None:
    model = KneserNey(np.array(text, dtype=np.uint8), 5, order=order)
    expected = Brute(text, 5, order).nats(unseen)
    assert model.nats(np.array(unseen)) == pytest.approx(expected, abs=1e-6)


def test_probabilities_sum_to_one_after_any_context(shakespeare: Path) -> None:
    text = np.frombuffer(shakespeare.read_bytes()[:200_000], dtype=np.uint8)
    model = KneserNey(text, 256)
    rng = np.random.default_rng(3)
    contexts = [text[start : start + 4] for start in rng.integers(0, len(text) - 4, 20)]
    contexts += [rng.integers(0, 256, 4).astype(np.uint8) for _ in range(5)]
    contexts += [text[:0], text[:1], text[-4:]]
    for context in contexts:
        every = [
            math.exp(-model.nats(np.append(context, word), len(context))[0]) for word in range(256)
        ]
        assert sum(every) == pytest.approx(1.0, abs=1e-6)
        assert min(every) > 0


def test_a_longer_context_helps_on_text_it_has_not_seen(shakespeare: Path) -> None:
    text = np.frombuffer(shakespeare.read_bytes(), dtype=np.uint8)
    cut = len(text) * 9 // 10
    bits = []
    for order in (1, 2, 3, 5):
        model = KneserNey(text[:cut], 256, order=order)
        bits.append(float(model.nats(text[cut - 4 :], 4).mean()) / math.log(2))
    assert bits == sorted(bits, reverse=True)
    # What others report for 5-grams of characters on this split is of this size.
    assert 2.2 < bits[-1] < 2.3


def test_the_context_is_what_stands_before_a_stretch() -> None:
    text = np.array(random_text(300, 9, seed=4))
    model = KneserNey(text[:200], 9)
    whole = model.nats(text[200:])
    assert model.nats(text[210 - 4 : 230], 4) == pytest.approx(whole[10:30], rel=1e-12)


def test_documents_markers_are_tokens_of_large_vocabularies_too() -> None:
    text = np.array([69_999, 5, 69_998, 5, 69_999, 5, 69_998] * 5, dtype=np.uint32)
    model = KneserNey(text, 70_000)
    assert model.nats(text)[5:].max() < 1.0


def test_memory_is_bounded_by_the_tokens_that_are_read() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 4096, 1 << 18).astype(np.uint16)  # the worst: all 3-grams differ
    KneserNey(tokens[:100], 4096)
    tracemalloc.start()
    try:
        model = KneserNey(tokens, 4096)
        whole = tracemalloc.get_traced_memory()[1]
        del model
        tracemalloc.reset_peak()
        model = KneserNey(tokens, 4096, max_tokens=1 << 15)
        part = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert whole < 120 * len(tokens)
    assert part < 120 * (1 << 15) + 2 * 1024 * 1024 and model.num_tokens == 1 << 15


def test_a_long_text_is_read_at_stretches_spread_over_it() -> None:
    text = np.repeat(np.arange(100, dtype=np.uint8), 1000)
    model = KneserNey(text, 100, max_tokens=25_600)
    # Every token was met: none costs more than one that is as rare as all.
    assert model.nats(np.arange(100, dtype=np.uint8)[:, None].ravel()).max() < math.log(100) + 3
    same = model.nats(np.array([57, 57, 57, 57, 57]))
    assert same[-1] < 0.2


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ArgumentError, match="order 0"):
        KneserNey(np.array([1]), 2, order=0)
    with pytest.raises(ArgumentError, match="0 tokens"):
        KneserNey(np.array([], dtype=np.uint8), 2)
    with pytest.raises(ArgumentError, match="outside 3 tokens"):
        KneserNey(np.array([3]), 3)
