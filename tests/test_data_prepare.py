"""Preparation: tokens and their width, the split, what is too short, tokenizers, progress."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea.data import PreparedData, prepare
from andrea.data.prepared import entropy
from andrea.data.split import plan_split
from andrea.data.token_file import TokenWriter, open_tokens, token_dtype
from andrea.errors import DataError, TokenizerError
from andrea.tokenizers import ByteTokenizer, CharTokenizer, Tokenizer, train_tokenizer

Prepare = Callable[..., PreparedData]
TEXT = "It was the best of times, it was the worst of times, naïve 猫 and all. "


@pytest.fixture
def prepare_text(tmp_path: Path) -> Prepare:
    """Prepare one text, as a file, with a cache of its own."""

    def prepare_one(text: str | bytes, **settings: Any) -> PreparedData:
        file = tmp_path / "book.txt"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return prepare([file], cache_dir=tmp_path / "cache", **({"tokenizer": "byte"} | settings))

    return prepare_one


# ---- tokens


@pytest.mark.parametrize("name", ["byte", "char", "bpe"])
def test_tokens_are_those_of_the_text(prepare_text: Prepare, name: str) -> None:
    text = TEXT * 60
    prepared = prepare_text(text, tokenizer=name)
    tokenizer = prepared.tokenizer
    assert prepared.train[0] == tokenizer.beginning_of_document
    assert np.count_nonzero(prepared.train == tokenizer.beginning_of_document) == 1
    assert tokenizer.decode(prepared.train) + tokenizer.decode(prepared.validation) == text
    assert tokenizer.num_bytes(prepared.train) == prepared.train_bytes
    assert tokenizer.num_bytes(prepared.validation) == prepared.validation_bytes
    assert prepared.num_bytes == len(text.encode())


def test_bpe_tokens_do_not_depend_on_the_pieces(
    prepare_text: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT * 60
    tokenizer = train_tokenizer("bpe", [text], vocab_size=400).tokenizer
    monkeypatch.setattr("andrea.data.sources.CHUNK", 100)
    monkeypatch.setattr("andrea.data.encoding._BATCH_BYTES", 250)
    prepared = prepare_text(text, tokenizer=tokenizer, validation_fraction=0)
    np.testing.assert_array_equal(prepared.train[1:], tokenizer.encode(text))


def test_entropy_of_the_training_tokens(prepare_text: Prepare) -> None:
    prepared = prepare_text(TEXT * 60)
    counts = np.bincount(prepared.train)
    shares = counts[counts > 0] / len(prepared.train)
    assert prepared.unigram_entropy == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-12)
    assert entropy(np.zeros(5, dtype=np.int64)) == entropy(np.array([0, 7])) == 0.0


def test_mapped_files_are_read_only(prepare_text: Prepare) -> None:
    prepared = prepare_text(TEXT * 10)
    for tokens in (prepared.train, prepared.validation):
        assert isinstance(tokens, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            tokens[0] = 1


@pytest.mark.parametrize(
    ("vocab_size", "name"),
    [(2, "u1"), (256, "u1"), (257, "<u2"), (65536, "<u2"), (65537, "<u4"), (2**31, "<u4")],
)
def test_width_follows_the_vocabulary(tmp_path: Path, vocab_size: int, name: str) -> None:
    assert token_dtype(vocab_size) == np.dtype(name)
    tokens = np.array([0, 1, vocab_size - 1], dtype=np.int32)
    with TokenWriter(tmp_path / "t.npy", vocab_size) as writer:
        writer.append(tokens)
        writer.append(tokens[:0])
        writer.append(tokens[::-1])
    assert np.load(tmp_path / "t.npy").tolist() == [*tokens.tolist(), *tokens.tolist()[::-1]]
    opened = open_tokens(tmp_path / "t.npy", writer.facts)
    assert opened is not None and opened.dtype == np.dtype(name)
    header = (tmp_path / "t.npy").read_bytes()[:128]
    assert header.startswith(b"\x93NUMPY\x01\x00") and header.endswith(b"\n")


class WideTokenizer(Tokenizer):
    """One token for each of 70,000 code points: more than 16 bits can hold."""

    name = "wide"

    def __init__(self) -> None:
        super().__init__([b"x"] * 70_000)

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(character) for character in text], dtype=np.int32)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name}


def test_ids_above_65535_do_not_wrap(prepare_text: Prepare) -> None:
    prepared = prepare_text("a\U00011000" * 50, tokenizer=WideTokenizer(), validation_fraction=0)
    assert prepared.train.dtype == np.uint32
    assert prepared.train.tolist() == [70_000, *[97, 0x11000] * 50]


def test_narrow_vocabulary_takes_one_byte(prepare_text: Prepare) -> None:
    assert prepare_text(TEXT * 10, tokenizer="char").train.dtype == np.uint8
    assert prepare_text(TEXT * 10, tokenizer="byte").train.dtype == np.uint16


# ---- the split


def test_one_document_loses_its_tail(shakespeare: Path, tmp_path: Path) -> None:
    text = shakespeare.read_text("utf-8")
    prepared = prepare([shakespeare], cache_dir=tmp_path, tokenizer="char")
    cut = int(0.9 * len(text))
    assert prepared.tokenizer.decode(prepared.train) == text[:cut]
    assert prepared.tokenizer.decode(prepared.validation) == text[cut:]
    assert len(prepared.train) == cut + 1 and len(prepared.validation) == len(text) - cut
    assert prepared.tokenizer.vocab_size == 66
    assert prepared.documents == 1 and prepared.validation_documents == 0
    assert "validation: the last 10.0% of the text" in prepared.notes


def test_the_tail_never_splits_a_character(prepare_text: Prepare) -> None:
    for length in range(10, 30):
        prepared = prepare_text("猫" * length)
        decode = prepared.tokenizer.decode
        assert decode(prepared.train) + decode(prepared.validation) == "猫" * length
        assert prepared.train_bytes % 3 == prepared.validation_bytes % 3 == 0


def write_records(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def split_texts(prepared: PreparedData) -> tuple[list[str], list[str]]:
    marker = prepared.tokenizer.beginning_of_document
    sides = []
    for tokens in (np.asarray(prepared.train), np.asarray(prepared.validation)):
        starts = np.flatnonzero(tokens == marker)
        parts = np.split(tokens, starts[starts > 0])
        sides.append([prepared.tokenizer.decode(part) for part in parts])
    return sides[0], sides[1]


def test_many_documents_are_split_as_wholes(tmp_path: Path) -> None:
    texts = [f"document {number} " + "x" * (number % 37) for number in range(300)]
    file = write_records(tmp_path / "r.jsonl", texts)
    prepared = prepare([file], cache_dir=tmp_path / "cache", tokenizer="byte")
    train, validation = split_texts(prepared)
    assert sorted(train + validation) == sorted(texts)
    assert train == [text for text in texts if text in set(train)]
    assert len(validation) == prepared.validation_documents and prepared.documents == 300
    assert 0.09 < prepared.validation_bytes / prepared.num_bytes < 0.12
    assert any(f"validation: {len(validation)} of 300 documents" in n for n in prepared.notes)


def test_split_hardly_moves_when_documents_are_added_or_reordered(tmp_path: Path) -> None:
    texts = [f"document {number} of many" for number in range(400)]

    def chosen(kept: list[str], name: str) -> set[str]:
        file = write_records(tmp_path / name, kept)
        return set(split_texts(prepare([file], cache_dir=tmp_path, tokenizer="byte"))[1])

    whole = chosen(texts, "a.jsonl")
    assert chosen(texts[::-1], "b.jsonl") == whole
    fewer = chosen(texts[:360], "c.jsonl")
    assert len(whole & fewer) >= 0.8 * len(fewer)


def test_equal_documents_stay_on_one_side(tmp_path: Path) -> None:
    texts = [f"document {number % 60} of many" for number in range(120)]
    file = write_records(tmp_path / "r.jsonl", texts)
    train, validation = split_texts(prepare([file], cache_dir=tmp_path, tokenizer="byte"))
    # The one at the border of the fraction may be on both.
    assert validation and len(set(train) & set(validation)) <= 1


def test_documents_are_not_split_if_no_choice_comes_near() -> None:
    sizes, digests = [1000] * 4 + [1] * 8, list(range(12))
    assert plan_split(sizes, digests, 0.1).validation_documents == 0
    assert plan_split([100] * 9, list(range(9)), 0.1).validation_documents == 0
    assert plan_split([100] * 10, list(range(10)), 0.1).validation_documents == 1
    assert plan_split([5000] + [100] * 50, list(range(51)), 0.1).validation_documents == 10
    assert plan_split([100] * 10, list(range(10)), 0).validation_documents == 0


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.3, 0.7])
def test_documents_are_chosen_in_the_order_of_their_digests(fraction: float) -> None:
    generator = np.random.default_rng(1)
    for number in range(50):
        sizes = (generator.pareto(1, size=10 + 3 * number) * 100 + 1).astype(int).tolist()
        digests = generator.integers(0, 2**64, len(sizes), dtype=np.uint64)
        digests[::3] = digests[: len(digests[::3])]  # some are equal
        digests >>= np.uint64(number % 3)  # and some far from evenly spread
        wanted = fraction * sum(sizes)
        expected, chosen = set(), 0
        for index in sorted(range(len(sizes)), key=lambda index: (int(digests[index]), index)):
            if chosen < wanted and chosen + sizes[index] <= 1.5 * wanted:
                expected.add(index)
                chosen += sizes[index]
        split = plan_split(sizes, digests.tolist(), fraction)
        if chosen < 0.5 * wanted:
            assert split.validation_documents == 0
            continue
        assert split.validation_documents == len(expected) > 0
        assert {index for index in range(len(sizes)) if next(split.parts(iter("x")))[0]} == expected


def test_tail_of_few_documents(tmp_path: Path) -> None:
    texts = ["a" * 50, "b" * 45, "c" * 5]
    prepared = prepare(
        [write_records(tmp_path / "r.jsonl", texts)], cache_dir=tmp_path, tokenizer="byte"
    )
    train, validation = split_texts(prepared)
    assert train == ["a" * 50, "b" * 40]
    assert validation == ["bbbbb", "ccccc"]
    marker = prepared.tokenizer.beginning_of_document
    assert prepared.validation[0] != marker, "a tail is no start of a document"


def test_no_validation_on_purpose(prepare_text: Prepare) -> None:
    prepared = prepare_text(TEXT, validation_fraction=0)
    assert len(prepared.validation) == 0 and prepared.validation_bytes == 0
    assert not any("validation" in note for note in prepared.notes)
    prepared.require(10)


# ---- too short


def test_one_byte(prepare_text: Prepare) -> None:
    with pytest.raises(DataError) as caught:
        prepare_text("a")
    message = str(caught.value)
    assert "too short" in message and "0 training tokens" in message and "needs 2" in message


def test_validation_is_never_silently_empty(prepare_text: Prepare) -> None:
    with pytest.raises(DataError, match="has 1 validation tokens and needs 2"):
        prepare_text("abcdefghij")
    prepared = prepare_text("abcdefghijklmnopqrst")
    assert len(prepared.validation) == 2


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_around_the_context_length(prepare_text: Prepare, extra: int) -> None:
    """Texts whose training part has block_size - 1, block_size and block_size + 1 tokens."""
    block_size = 90
    num_bytes = math.ceil((block_size + extra - 1) / 0.9)  # the marker is one token
    text = "x" * num_bytes
    if extra < 1:
        have = block_size + extra
        with pytest.raises(DataError, match=f"has {have} training tokens, .* needs 91"):
            prepare_text(text, block_size=block_size)
        with pytest.raises(DataError, match=f"--block-size {have - 1}$"):
            prepare_text(text, block_size=block_size)
    else:
        prepared = prepare_text(text, block_size=block_size)
        assert len(prepared.train) == block_size + 1


def test_require_after_the_context_was_chosen(prepare_text: Prepare) -> None:
    prepared = prepare_text(TEXT * 10)
    prepared.require(len(prepared.train) - 1)
    with pytest.raises(DataError, match="a context of 5,000 needs 5,001"):
        prepared.require(5000)


# ---- tokenizers


def test_auto_says_what_it_chose(prepare_text: Prepare) -> None:
    prepared = prepare_text(TEXT * 10, tokenizer="auto")
    assert prepared.tokenizer.name == "char"
    assert prepared.notes[0].startswith("tokenizer: char, ")


def test_trained_tokenizer_is_used_as_it_is(prepare_text: Prepare) -> None:
    tokenizer = CharTokenizer(TEXT + "#")
    prepared = prepare_text(TEXT * 10, tokenizer=tokenizer)
    assert prepared.tokenizer is tokenizer
    assert not any("tokenizer" in note for note in prepared.notes)
    with pytest.raises(TokenizerError, match="does not know '!'"):
        prepare_text(TEXT * 10 + "!", tokenizer=tokenizer)


def test_vocabulary_size_is_passed_on(prepare_text: Prepare) -> None:
    assert prepare_text(TEXT * 90, tokenizer="bpe", vocab_size=290).tokenizer.vocab_size == 290
    with pytest.raises(TokenizerError, match="257 is the least"):
        prepare_text(TEXT, tokenizer="bpe", vocab_size=5)
    with pytest.raises(TokenizerError, match="no tokenizer is called"):
        prepare_text(TEXT, tokenizer="words")
    with pytest.raises(TokenizerError, match="has 257 tokens, not 300"):
        prepare_text(TEXT, tokenizer=ByteTokenizer(), vocab_size=300)


def test_bits_per_byte_uses_the_validation_text(prepare_text: Prepare) -> None:
    prepared = prepare_text(TEXT * 100, tokenizer="bpe")
    tokens, num_bytes = len(prepared.validation), prepared.validation_bytes
    expected = 2.0 * tokens / num_bytes / math.log(2)
    assert prepared.bits_per_byte(2.0) == pytest.approx(expected)


# ---- progress, and input that changes


def test_progress_reaches_the_end_of_each_stage(
    prepare_text: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andrea.data.sources.CHUNK", 500)
    text = TEXT * 40
    heard: list[tuple[str, int, int]] = []
    prepared = prepare_text(text, tokenizer="char", progress=lambda *report: heard.append(report))
    train = len(prepared.train)
    stages = list(dict.fromkeys(stage for stage, _, _ in heard))
    assert stages == ["read", "scan", "tokenizer", "check", "encode"]
    total = len(text.encode())
    assert {size for stage, _, size in heard if stage != "check"} == {total}
    # What was written is read back: one byte for each of the characters and the marker.
    assert heard[-2:] == [("check", tokens, len(text) + 1) for tokens in (train, len(text) + 1)]
    for stage in ("read", "scan", "encode"):
        done = [now for name, now, _ in heard if name == stage]
        assert done == sorted(done) and done[0] == 0 and done[-1] == total and len(done) > 3


@pytest.mark.parametrize("when", ["scan", "encode"])
def test_input_that_changes_while_it_is_read_is_refused(tmp_path: Path, when: str) -> None:
    file = tmp_path / "log.txt"
    file.write_text(TEXT * 10)

    def grow(stage: str, done: int, total: int) -> None:
        if stage == when and done == 0:
            with file.open("a") as opened:
                opened.write("more")

    with pytest.raises(DataError, match=r"log.txt: changed while it was read"):
        prepare([file], cache_dir=tmp_path / "cache", tokenizer="byte", progress=grow)
    prepared = prepare([file], cache_dir=tmp_path / "cache", tokenizer=ByteTokenizer())
    assert not prepared.cached and prepared.num_bytes == len((TEXT * 10 + "more").encode())
