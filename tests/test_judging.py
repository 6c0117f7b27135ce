"""The coherence score, the glance at a model in training, and unigram entropy."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea import GPT
from andrea.data import prepare
from andrea.errors import ArgumentError
from andrea.judging.chunks import token_chunks
from andrea.judging.coherence import coherence, known_words, words_of
from andrea.judging.glimpse import Glimpse, opening
from andrea.judging.unigram import entropy, unigram_counts, unigram_entropy
from andrea.tokenizers import train_tokenizer
from andrea.training import train
from small_runs import TEXT, small_config, small_data, small_model

# ---- coherence


def test_the_parts_are_what_they_say() -> None:
    text = "The cat saw the cat. The cat slept!"
    found = coherence(text, frozenset({"the", "cat"}))
    # 8 words: the cat saw the cat the cat slept
    assert found.bigram_diversity == pytest.approx(5 / 7)  # "the cat" three times
    assert found.trigram_diversity == 1.0
    assert found.known_words == pytest.approx(6 / 8)
    assert found.character_diversity == pytest.approx(len(set("thecatsawthecat.thecatslept!")) / 20)
    parts = 35 * 5 / 7 + 35 + 20 * 6 / 8 + 10 * found.character_diversity
    assert found.score == pytest.approx(parts)
    assert found.to_dict()["score"] == round(found.score, 2)


def test_the_weights_make_a_hundred() -> None:
    words = [a + b for a, b in itertools.product("abcdefghijklmnop", "qrstuvwxyz")]
    assert coherence(" ".join(words), frozenset(words)).score == pytest.approx(100.0)
    assert coherence("", frozenset({"a"})).score == 0.0
    assert coherence(" \n\t ", frozenset({"a"})).score == 0.0


def test_collapse_is_below_the_recipes_gate_and_text_is_far_above() -> None:
    words = frozenset(words_of(TEXT))
    assert coherence("and " * 80, words).score < 30
    assert coherence("eeeee" * 60, words).score < 30
    assert coherence("make 7. " * 40, words).score < 30
    assert coherence("!?" * 100, words).score < 30
    assert coherence(TEXT[:320], words).score > 80


def test_a_short_text_is_judged_by_its_characters() -> None:
    assert coherence("Emma", frozenset({"emma"})).bigram_diversity == 1.0
    assert coherence("ababab", frozenset()).bigram_diversity == pytest.approx(2 / 5)
    assert coherence("ababab", frozenset()).trigram_diversity == pytest.approx(2 / 4)
    assert coherence("x", frozenset({"x"})).score == 100.0


def test_words() -> None:
    assert words_of("Don't STOP, l’été: 12.5 'quoted'") == [
        "don't", "stop", "l’été", "12", "5", "quoted",
    ]  # fmt: skip
    assert words_of("猫が好き") == ["猫", "が", "好", "き"]
    assert words_of("GPT猫s") == ["gpt", "猫", "s"]


@settings(deadline=None)
@given(st.text(max_size=80), st.frozensets(st.text(max_size=4), max_size=4))
def test_any_text_has_a_score(text: str, words: frozenset[str]) -> None:
    found = coherence(text, words)
    assert 0 <= found.score <= 100
    parts = [value for name, value in found.to_dict().items() if name != "score"]
    assert all(0 <= part <= 1 for part in parts)


def test_known_words_of_a_short_text_are_all_of_it() -> None:
    data = small_data(train_share=0.9)
    text = data.tokenizer.decode(np.asarray(data.train))
    assert known_words(data) == frozenset(words_of(text))


def test_known_words_of_a_long_text_come_from_all_over_it_and_are_whole() -> None:
    words = [f"w{number:06d}" for number in range(500_000)]
    text = " ".join(words)
    data = small_data(
        train=np.frombuffer(text.encode(), dtype=np.uint8),
        tokenizer=train_tokenizer("byte", ["w"]).tokenizer,
    )
    found = known_words(data)
    assert found < frozenset(words)
    assert 0.45 < len(found) / len(words) < 0.55  # 128 stretches are 2 of 4 MB
    assert {"w000000", "w499999"} <= found
    parts = Counter(word[1:3] for word in found)
    assert len(parts) == 50 and min(parts.values()) > 0.7 * max(parts.values())


# ---- the glance


@pytest.fixture(scope="module")
def trained() -> GPT:
    """A model that knows that a document goes on."""
    model = small_model()
    for _ in train(model, small_data(), small_config(steps=60)):
        pass
    return model


def test_a_glimpse_is_the_same_each_time_and_follows_its_prompt(trained: GPT) -> None:
    data = small_data()
    glimpse = Glimpse(trained, data, prompt="12 and", seed=3)
    first, again = glimpse.write(), glimpse.write()
    assert first == again and first.is_whole
    assert first.text.startswith("12 and") and len(first.text) == 6 + 320
    assert first.coherence == coherence(first.text.removeprefix("12 and"), known_words(data))
    assert Glimpse(trained, data, prompt="12 and", seed=4).write().text != first.text


def test_a_glimpse_stops_when_it_is_told_to_and_says_so(trained: GPT) -> None:
    answers = itertools.chain([False] * 5, itertools.repeat(True))
    data = small_data()
    cut = Glimpse(trained, data, prompt="1", is_stopped=lambda: next(answers)).write()
    assert not cut.is_whole and len(cut.text) == 1 + 6
    late = Glimpse(trained, data, prompt="1", max_seconds=0.0).write()
    assert not late.is_whole and len(late.text) == 2
    assert Glimpse(trained, data, prompt="1", max_seconds=None).write().is_whole


def test_a_fresh_start_is_a_document_or_a_line() -> None:
    tokenizer = small_data().tokenizer
    assert opening(tokenizer, 5) == "" == opening(tokenizer, None)
    assert opening(tokenizer, 1) == ""  # it knows no new line
    assert opening(train_tokenizer("byte", ["a"]).tokenizer, 1) == "\n"


# ---- unigrams


def test_unigram_entropy_of_known_distributions() -> None:
    assert unigram_entropy(np.arange(64, dtype=np.uint8), 64) == pytest.approx(math.log(64))
    assert unigram_entropy(np.zeros(9, dtype=np.uint8), 64) == 0.0
    half = np.array([0] * 50 + [1] * 25 + [2] * 25, dtype=np.uint16)
    assert unigram_entropy(half, 3) == pytest.approx(1.5 * math.log(2))
    assert entropy(np.zeros(4, dtype=np.int64)) == 0.0


def test_it_is_the_loss_of_the_best_model_without_memory(shakespeare: Path) -> None:
    text = shakespeare.read_bytes()
    tokens = np.frombuffer(text, dtype=np.uint8)
    counts = Counter(text)
    loss = sum(-number * math.log(number / len(text)) for number in counts.values()) / len(text)
    assert unigram_entropy(tokens, 256) == pytest.approx(loss, rel=1e-12)


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ArgumentError, match="token id 7 is outside 7 tokens"):
        unigram_counts(np.array([0, 7], dtype=np.uint8), 7)


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 4), st.integers(1, 9))
def test_chunks_hold_every_stretch_once(length: int, overlap: int, size: int) -> None:
    tokens = np.arange(length, dtype=np.int32)
    stretches = [
        tuple(chunk[start : start + overlap + 1].tolist())
        for chunk in token_chunks(tokens, overlap, size)
        for start in range(len(chunk) - overlap)
    ]
    assert stretches == [tuple(range(n, n + overlap + 1)) for n in range(length - overlap)]


def test_chunks_of_a_file_are_those_of_memory(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT * 20, "utf-8")
    data = prepare([tmp_path / "text.txt"], cache_dir=tmp_path / "cache", tokenizer="byte")
    joined = np.concatenate(list(token_chunks(data.train, 0, 1000)))
    assert np.array_equal(joined, np.asarray(data.train))
    assert unigram_counts(data.train, 257).sum() == len(data.train)
