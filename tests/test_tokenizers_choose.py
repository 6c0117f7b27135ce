"""The automatic choice of a tokenizer, and requests that contradict themselves."""

from __future__ import annotations

import pytest

from andrea.errors import TokenizerError
from andrea.tokenizers import choose, train_tokenizer

ENGLISH = "It is a truth universally acknowledged, that a single man is in want of a wife.\n"


def test_small_text_of_few_characters_is_read_by_character() -> None:
    trained = train_tokenizer("auto", [ENGLISH] * 10)
    assert trained.tokenizer.name == "char"
    assert "small" in trained.note and f"{len(set(ENGLISH)) + 1} tokens" in trained.note


def test_small_text_of_many_characters_is_read_by_byte() -> None:
    trained = train_tokenizer("auto", ["".join(chr(0x4E00 + number) for number in range(600))])
    assert trained.tokenizer.name == "byte"
    assert "600 different characters" in trained.note


def test_more_text_gets_more_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_SMALL_TEXT", 1000)
    trained = train_tokenizer("auto", [ENGLISH] * 100)
    assert trained.tokenizer.name == "bpe" and "enough to learn merges" in trained.note
    sizes = [10**5, 10**6, 10**7, 10**8, 10**9, 10**10]
    merges = [choose._merges_for(size) for size in sizes]
    assert merges == [512, 1024, 2048, 4096, 8192, 16384]


def test_a_vocabulary_size_makes_auto_bpe() -> None:
    trained = train_tokenizer("auto", [ENGLISH] * 50, vocab_size=280)
    assert trained.tokenizer.name == "bpe" and trained.tokenizer.vocab_size == 280


def test_more_tokens_than_a_text_can_give_are_no_reason_to_fail() -> None:
    trained = train_tokenizer("bpe", [ENGLISH] * 50, vocab_size=2**62)
    assert 257 < trained.tokenizer.vocab_size < 257 + len(ENGLISH)
    assert "no more pairs repeat" in trained.note


@pytest.mark.parametrize("name", ["byte", "char", "bpe"])
def test_a_named_tokenizer_is_taken(name: str) -> None:
    trained = train_tokenizer(name, [ENGLISH] * 50)
    assert trained.tokenizer.name == name and "as asked for" in trained.note


def test_sizes_that_agree_are_accepted() -> None:
    assert train_tokenizer("byte", [ENGLISH], vocab_size=257).tokenizer.vocab_size == 257
    size = len(set(ENGLISH)) + 1
    assert train_tokenizer("char", [ENGLISH], vocab_size=size).tokenizer.vocab_size == size


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("word", None, "no tokenizer is called 'word': choose auto, byte, char, bpe"),
        ("byte", 256, "byte tokenizer has 257 tokens, not 256"),
        ("char", 9, "tokenizer of this text has 26 tokens, not 9"),
        ("bpe", 100, "100 is too small, 257 is the least"),
        ("auto", 100, "100 is too small, 257 is the least"),
    ],
)
def test_contradictions_are_refused(name: str, size: int | None, message: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        train_tokenizer(name, [ENGLISH], vocab_size=size)
    assert message in str(caught.value)


def test_char_of_no_text_is_refused() -> None:
    with pytest.raises(TokenizerError, match="the text is empty"):
        train_tokenizer("char", [])


def test_surrogates_in_training_text() -> None:
    tokenizer = train_tokenizer("char", ["ab\ud800"]).tokenizer
    assert tokenizer.decode(tokenizer.encode("b\udfffa")) == "b\ufffda"
