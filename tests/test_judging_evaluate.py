"""Bits per byte, intervals and baselines, each beside an independent computation of it."""

from __future__ import annotations

import dataclasses
import gzip
import lzma
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea import GPT, ModelConfig
from andrea.errors import ArgumentError, DataError
from andrea.judging import baselines
from andrea.judging.confidence import Interval, ratio_interval
from andrea.judging.evaluate import Difference, Judgement, Score, judge
from andrea.judging.ngram import KneserNey
from andrea.judging.passages import Losses, Passage, Passages, measure, model_nats
from andrea.judging.unigram import unigram_counts
from andrea.judging.verdict import verdict
from andrea.tokenizers import train_tokenizer
from andrea.training import train
from small_runs import TEXT, small_config, small_data, small_model

# ---- passages


@settings(deadline=None)
@given(st.integers(2, 300), st.integers(1, 40))
def test_passages_hold_each_token_but_the_first_once(length: int, block_size: int) -> None:
    passages = list(Passages(length, block_size))
    told = [token for _, first, end in passages for token in range(first, end)]
    assert told == list(range(1, length))
    for number, (window, first, end) in enumerate(passages):
        assert 0 <= window < first < end <= length
        assert end - 1 - window <= block_size  # as many inputs as the model takes
        least = block_size - max(block_size // 2, 1) + 1
        assert window == 0 if number == 0 else first - window >= least


@settings(deadline=None)
@given(st.integers(2, 3000), st.integers(1, 40), st.integers(1, 50))
def test_some_passages_are_spread_evenly(length: int, block_size: int, most: int) -> None:
    every, some = list(Passages(length, block_size)), list(Passages(length, block_size, most))
    assert len(some) == min(len(every), most) and some[0] == every[0]
    assert Passages(length, block_size, most).num_all == len(every)
    places = [every.index(passage) for passage in some]
    gaps = np.diff(places)
    assert len(gaps) == 0 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(DataError, match="1 tokens, and 2 are needed"):
        Passages(1, 8)


@pytest.fixture(scope="module")
def trained() -> GPT:
    model = small_model()
    for _ in train(model, small_data(), small_config(steps=150)):
        pass
    return model


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def test_the_loss_is_that_of_the_models_logits_token_by_token(trained: GPT) -> None:
    """Each token after as much context as the page says, from logits and NumPy."""
    data = small_data()
    tokens, size = np.asarray(data.validation, dtype=np.int32)[:90], trained.config.block_size
    total, places = 0.0, []
    for position in range(1, len(tokens)):
        if position <= size:
            start = 0
        else:
            # The window whose second half holds this position ends with a half or with the text.
            half = size // 2
            end = min(1 + size + -(-(position - size) // half) * half, len(tokens))
            start = end - 1 - size
        context = tokens[start:position]
        places.append(len(context))
        total -= log_softmax(np.asarray(trained.logits(context[None])))[0, -1, tokens[position]]
    losses = measure(Passages(len(tokens), size), tokens, data.tokenizer, model_nats(trained))
    assert losses.nats.sum() == pytest.approx(total, rel=1e-5)
    assert losses.loss == pytest.approx(total / 89, rel=1e-5)
    assert min(places[size:]) == size // 2 + 1 and max(places) == size


def test_bits_per_byte_of_a_model_that_knows_nothing() -> None:
    """log2 V for each token, over the bytes; markers of documents cost and count no bytes."""
    text = "Ünï, dœs this work? " * 8
    tokenizer = train_tokenizer("byte", [text]).tokenizer
    model = GPT(ModelConfig(tokenizer.vocab_size, block_size=8, n_layer=1, n_head=1, n_embd=4))
    for values in model.parameters().values():
        values[...] = 0.0
    model.refresh()
    marker = tokenizer.beginning_of_document
    encoded = tokenizer.encode(text)
    tokens = np.concatenate([[marker], encoded, [marker], encoded]).astype(np.int32)
    judgement = judge(model, tokenizer, tokens, None)
    num_bytes = 2 * len(text.encode())
    expected = math.log2(257) * (len(tokens) - 1) / num_bytes
    assert judgement.model.bits_per_byte == pytest.approx(expected, rel=1e-6)
    assert judgement.uniform == pytest.approx(expected, rel=1e-12)
    assert judgement.num_bytes == num_bytes and judgement.num_tokens == num_bytes + 1
    assert judgement.model.loss == pytest.approx(math.log(257), rel=1e-6)
    assert judgement.model.perplexity == pytest.approx(257, rel=1e-5)
    assert judgement.model.interval is not None
    assert "chance" in verdict(dataclasses.replace(judgement, uniform=expected - 1e-3))


# ---- all together


def test_a_judgement_is_made_of_its_parts(trained: GPT) -> None:
    data = small_data()
    text, training = np.asarray(data.validation), np.asarray(data.train)
    told: list[tuple[str, int, int]] = []
    found = judge(trained, data.tokenizer, text, training, progress=lambda *what: told.append(what))
    # All ASCII and one character a token: bytes are tokens.
    assert found.num_tokens == found.num_bytes == len(text) - 1
    ngram, unigram = found.other("5-gram"), found.other("unigram")
    assert ngram is not None and unigram is not None
    five = KneserNey(training, data.tokenizer.vocab_size).nats(text, 1).mean() / math.log(2)
    assert ngram.bits_per_byte == pytest.approx(five, rel=1e-9)
    counts = unigram_counts(training, data.tokenizer.vocab_size)
    shares = (counts + 1) / (counts + 1).sum()
    assert unigram.bits_per_byte == pytest.approx(-np.log2(shares[text[1:]]).mean(), rel=1e-9)
    assert unigram.loss == pytest.approx(unigram.bits_per_byte * math.log(2))
    for name, score in (("5-gram", ngram), ("unigram", unigram)):
        ahead = found.ahead_of[name]
        assert ahead.bits_per_byte == pytest.approx(score.bits_per_byte - found.model.bits_per_byte)
        assert ahead.interval is not None
        assert ahead.interval.low < ahead.bits_per_byte < ahead.interval.high
    xz, gz = found.other("xz -9"), found.other("gzip -9")
    raw = data.tokenizer.decode_bytes(text)
    assert found.compressed == len(raw) and xz is not None and gz is not None
    assert xz.bits_per_byte == 8 * len(lzma.compress(raw, preset=9)) / len(raw)
    assert gz.bits_per_byte == 8 * len(gzip.compress(raw, 9)) / len(raw)
    assert xz.loss is None and xz.perplexity is None
    assert found.counted_tokens == found.training_tokens == len(training)
    assert ("model", found.passages, found.passages) in told
    # The same passages judged by the n-gram model, whatever windows the GPT has.
    some = judge(trained, data.tokenizer, text, training, max_passages=5)
    assert some.passages == 5 and some.all_passages == found.passages > 5


def test_without_a_training_text_the_counting_models_are_left_out(trained: GPT) -> None:
    data = small_data()
    found = judge(trained, data.tokenizer, data.validation, None)
    assert [score.name for score in found.others] == ["xz -9", "gzip -9"] and not found.ahead_of
    assert "xz -9" in verdict(found)


# ---- compressors


def test_xz_is_xz(shakespeare: Path) -> None:
    text = shakespeare.read_bytes()[:300_000]
    whole = 8 * len(lzma.compress(text, preset=9)) / len(text)
    assert baselines.xz_bits_per_byte(text) == pytest.approx(whole, abs=8 * 16 / len(text))
    assert baselines.gzip_bits_per_byte(text) == 8 * len(gzip.compress(text, 9)) / len(text)
    program = shutil.which("xz")
    if program is not None:
        done = subprocess.run([program, "-9", "-c"], input=text, capture_output=True, check=True)
        assert 8 * len(done.stdout) / len(text) == pytest.approx(whole, abs=1e-3)


def test_no_text_is_no_ratio() -> None:
    with pytest.raises(ArgumentError):
        baselines.gzip_bits_per_byte(b"")


def test_a_long_text_is_compressed_from_its_beginning() -> None:
    data = small_data()
    text = baselines.beginning_of_text(data.train, data.tokenizer, 100)
    assert text == TEXT.encode()[:100]
    assert baselines.beginning_of_text(data.train[:50], data.tokenizer, 100) == TEXT.encode()[:50]


# ---- intervals


def test_the_interval_holds_the_truth_in_about_19_of_20_cases() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for case in range(200):
        sizes = rng.integers(50, 100, 60)
        nats = sizes * (2.0 + rng.exponential(0.5, 60))
        interval = ratio_interval(nats, sizes, seed=case)
        assert interval is not None
        held += interval.low <= 2.5 <= interval.high
    assert 0.88 <= held / 200 <= 0.985


def test_neighbours_are_summed_in_blocks(trained: GPT) -> None:
    """However many passages there are: 200 sums, of 9 or 10 neighbours each."""
    data = small_data()
    tokens = np.tile(np.asarray(data.train), 5)
    passages = Passages(len(tokens), 14)
    calls: list[int] = []

    def one_each(text: np.ndarray[Any, Any], passage: Passage) -> float:
        calls.append(passage.first)
        return 1.0

    losses = measure(passages, tokens, data.tokenizer, one_each)
    assert len(losses.nats) == 200 < len(passages) == len(calls)
    assert calls == sorted(calls)
    usual = len(passages) // 200
    assert set(losses.nats.tolist()) <= {usual, usual + 1} and losses.nats.sum() == len(passages)
    assert losses.tokens.sum() == losses.num_bytes.sum() == len(tokens) - 1
    few = measure(Passages(20, 14), tokens[:20], data.tokenizer, one_each)
    assert few.nats.tolist() == [1.0, 1.0] and few.tokens.tolist() == [14, 5]


def test_equal_passages_leave_no_doubt_and_one_passage_gives_no_interval() -> None:
    assert ratio_interval(np.full(9, 6.0), np.full(9, 2.0)) == Interval(3.0, 3.0)
    assert ratio_interval(np.array([6.0]), np.array([2])) is None


# ---- verdicts


def made_up(own: float, ngram: float, unigram: float, spread: float | None = 0.01) -> Judgement:
    def difference(other: float) -> Difference:
        by = other - own
        return Difference(by, None if spread is None else Interval(by - spread, by + spread))

    return Judgement(
        model=Score("model", own),
        others=(Score("5-gram", ngram), Score("unigram", unigram), Score("xz -9", 3.0)),
        ahead_of={"5-gram": difference(ngram), "unigram": difference(unigram)},
        vocab_size=65,
        passages=10,
        all_passages=10,
        num_tokens=100,
        num_bytes=100,
        context=9,
        block_size=16,
        blocks=10,
        compressed=100,
        uniform=6.0,
    )


@pytest.mark.parametrize(
    ("own", "ngram", "unigram", "spread", "sentence"),
    [
        (2.0, 2.25, 4.5, 0.01, "better than a 5-gram model of its training text by 0.250 bits per "
         "byte (95% interval 0.240 to 0.260): it uses more than the last 4 tokens"),
        (2.0, 2.005, 4.5, 0.01, "about as good as a 5-gram model of its training text: the "
         "difference, 0.005 bits per byte (95% interval -0.005 to 0.015), may be chance"),
        (2.5, 2.25, 4.5, 0.01, "better than token frequencies by 2.000 bits per byte (95% interval "
         "1.990 to 2.010), but behind a 5-gram model of its training text by 0.250 bits per byte "
         "(95% interval 0.240 to 0.260): it needs more training, or is too small"),
        (4.6, 2.25, 4.5, 0.01, "behind the token frequencies of its training text by 0.100 bits "
         "per byte (95% interval 0.090 to 0.110): it has not learned this kind of text"),
        (4.5, 2.25, 4.5, 0.01, "about as good as the token frequencies of its training text: it "
         "has hardly learned"),
        (6.0, 2.25, 4.5, 0.01, "no better than chance: 6.000 bits per byte, and equally likely "
         "tokens give 6.000"),
        (2.0, 2.25, 4.5, None, "better than a 5-gram model of its training text by 0.250 bits per "
         "byte (of one passage, without an interval): it uses more than the last 4 tokens"),
    ],
)  # fmt: skip
def test_verdicts(
    own: float, ngram: float, unigram: float, spread: float | None, sentence: str
) -> None:
    assert verdict(made_up(own, ngram, unigram, spread)) == sentence


def test_a_verdict_without_a_5_gram_stands_beside_xz() -> None:
    alone = dataclasses.replace(made_up(2.4, 0, 0), ahead_of={})
    assert verdict(alone) == "needs 20% fewer bits than xz -9 (2.400 and 3.000)"
    worse = dataclasses.replace(made_up(3.3, 0, 0), ahead_of={})
    assert verdict(worse) == "needs 10% more bits than xz -9 (3.300 and 3.000)"


def test_losses_add_up() -> None:
    losses = Losses(np.array([1.0, 3.0]), np.array([2, 2]), np.array([4, 1]))
    assert losses.loss == 1.0
    assert losses.bits_per_byte == pytest.approx(4 / (math.log(2) * 5))
    assert Passage(0, 1, 3).end == 3
