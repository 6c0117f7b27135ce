"""The longest overlaps, beside a search that tries every stretch of the text."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.judging import memorisation
from andrea.judging.memorisation import Overlap, longest_overlaps
from andrea.tokenizers import Tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("byte", ["a"]).tokenizer


def tokens_of(documents: list[str], tokenizer: Tokenizer) -> np.ndarray:
    marker = np.array([tokenizer.beginning_of_document])
    parts = [part for text in documents for part in (marker, tokenizer.encode(text))]
    return np.concatenate(parts).astype(np.uint16)


def longest_by_trying(text: str, documents: list[str]) -> int:
    data, training = text.encode(), [document.encode() for document in documents]
    for length in range(len(data), 0, -1):
        for start in range(len(data) - length + 1):
            if any(data[start : start + length] in document for document in training):
                return length
    return 0


def check(found: Overlap, text: str, documents: list[str]) -> None:
    data = text.encode()
    assert found.num_bytes == longest_by_trying(text, documents)
    stretch = data[found.start : found.start + found.num_bytes]
    assert found.passage == stretch.decode("utf-8", "ignore")
    assert "".join(documents).encode()[found.place : found.place + len(stretch)] == stretch


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.text(alphabet="abé", max_size=30), min_size=1, max_size=4),
    st.lists(st.text(alphabet="abé", max_size=12), min_size=1, max_size=3),
)
def test_it_finds_what_trying_finds(documents: list[str], texts: list[str]) -> None:
    tokenizer = train_tokenizer("byte", ["a"]).tokenizer
    with pytest.MonkeyPatch.context() as patch:
        # Many pieces, each shorter than some of the texts.
        patch.setattr(memorisation, "_FIRST_TOKENS", 3)
        patch.setattr(memorisation, "_CHUNK_TOKENS", 7)
        found = longest_overlaps(texts, tokens_of(documents, tokenizer), tokenizer)
    for overlap, text in zip(found, texts, strict=True):
        check(overlap, text, documents)


def test_a_planted_passage_is_found_wherever_it_lies(shakespeare: Path) -> None:
    text = shakespeare.read_text("utf-8")
    bpe = train_tokenizer("bpe", [text[:100_000]], vocab_size=400).tokenizer
    training = np.asarray(bpe.encode(text), dtype=np.uint16)
    size = len(text)
    for place in (0, 4_000, 262_100, size // 2, size - 300):
        passage = text[place : place + 300]
        wrapped = f"ZqXjÄ {passage} ÄjXqZ"
        [found] = longest_overlaps([wrapped], training, bpe)
        assert passage in found.passage and found.num_bytes <= 302
        assert abs(found.place - place) <= 1
        assert text[found.place : found.place + found.num_bytes] == found.passage


def test_each_text_has_its_own(shakespeare: Path, tokenizer: Tokenizer) -> None:
    text = shakespeare.read_text("utf-8")
    training = np.frombuffer(text[:600_000].encode(), dtype=np.uint8)
    unseen = text[700_000:700_400]
    texts = ["", "#" * 50, unseen, text[1000:1200], text[500_000:500_064] + "#" + unseen]
    found = longest_overlaps(texts, training, tokenizer)
    assert [one.num_bytes for one in found[:2]] == [0, 0]
    assert 10 < found[2].num_bytes < 60
    longer = found[2].num_bytes + 1
    assert not any(unseen[i : i + longer] in text[:600_000] for i in range(400 - longer))
    assert found[3] == Overlap(200, 0, 1000, text[1000:1200])
    assert found[4].num_bytes >= 64


def test_documents_are_kept_apart(tokenizer: Tokenizer) -> None:
    documents = ["one two three", "four five six"]
    training = tokens_of(documents, tokenizer)
    [found] = longest_overlaps(["two threefour five"], training, tokenizer)
    assert found == Overlap(9, 0, 4, "two three")
    [found] = longest_overlaps(["ee four five six!"], training, tokenizer)
    assert found == Overlap(13, 3, 13, "four five six")


def test_runs_of_one_character_take_no_longer(tokenizer: Tokenizer) -> None:
    training = tokens_of(["-" * 3000 + "\n" + "=" * 70] * 200, tokenizer)
    found = longest_overlaps(["-" * 4000, "=" * 500, "-=" * 300], training, tokenizer)
    assert [one.num_bytes for one in found] == [3000, 70, 1]


def test_equal_hashes_of_other_bytes_are_no_overlap(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer
) -> None:
    """With a base of 1 a hash is the sum of its bytes: "ad" and "bc" have the same."""
    monkeypatch.setattr(memorisation, "_BASE", 1)
    monkeypatch.setattr(memorisation, "_INVERSE", 1)
    documents = ["adda", "cbbc abcd", "bcdbcd"]
    training = tokens_of(documents, tokenizer)
    for text in ("bcad", "dcba", "dbca bcdb", "aabbccdd"):
        [found] = longest_overlaps([text], training, tokenizer)
        check(found, text, documents)


def test_memory_does_not_grow_with_the_training_text(tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    training = rng.integers(97, 123, 2_000_000).astype(np.uint8)
    text = training[1_500_000:1_500_500].tobytes().decode()
    told: list[tuple[int, int]] = []
    tracemalloc.start()
    try:
        [found] = longest_overlaps([text], training, tokenizer, lambda *done: told.append(done))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.num_bytes == 500 and found.place == 1_500_000
    assert peak < 40 * 1024 * 1024
    assert told[-1] == (2_000_000, 2_000_000) and len(told) > 3
