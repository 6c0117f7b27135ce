"""Words of GPT-2's pattern: split as the library splits, and remembered without a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from andrea.tokenizers import BPETokenizer, train_tokenizer
from andrea.tokenizers.words import SETTLED, WHITE_SPACE, WordMemory, split_words

LIBRARY = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
WORDS = (
    "the cat's mat, don't  sit\n\nhere 1234 now...\r\n  if x == 'y':\n\t\treturn naïve 猫 done! "
)
BPE = train_tokenizer("bpe", [WORDS * 30], vocab_size=330).tokenizer

# Each class of GPT-2's pattern, in the settled ranges and outside of them.
tricky = st.text(
    st.sampled_from(
        "ab'stdmrevl \n\t\r1²½.,;-_\x00\x1c\x1fàßжΩ\u0301—“”\u00a0\u2028\u3000\u0378猫、١🙂"
    )
)


def library_words(text: str) -> list[str]:
    return [text[slice(*span)] for _, span in LIBRARY.pre_tokenize_str(text)]


def borders(words: Iterable[str]) -> set[int]:
    return set(np.cumsum([len(word) for word in words]).tolist())


def check_split(text: str) -> None:
    words, expected = split_words(text), library_words(text)
    assert "".join(words) == text
    assert borders(words) <= borders(expected), (text, words, expected)
    inside = [part for word in words for part in library_words(word)]
    assert inside == expected, text


@given(text=tricky)
@settings(deadline=None, max_examples=400)
def test_words_are_split_inside_as_in_the_text(text: str) -> None:
    check_split(text)


def test_settled_text_is_split_into_the_very_words() -> None:
    text = "Don't he'll you're we've I'd ('tis) naïve  «été» 12½3 “Да—нет…”\n\n\tΑβγ; x_1+='y'\r\n"
    text += "  \u00a0 end 's ''s I'mé "
    assert split_words(text) == library_words(text)
    ascii_text = "".join(map(chr, range(128))) * 2
    assert split_words(ascii_text) == library_words(ascii_text)


def test_every_settled_character_is_of_the_class_that_the_library_has() -> None:
    for character in SETTLED:
        for around in ("a{}a", "1{}1", ".{}.", " {} ", " {}a", "{}", "{0}{0} {0}"):
            check_split(around.format(character))


@pytest.mark.parametrize("first", range(0, 0x10000, 0x4000))
def test_white_space_is_what_the_library_takes_for_it(first: int) -> None:
    characters = [chr(code) for code in range(first, first + 0x4000) if code >> 11 != 0x1B]
    # Two of any other kind are one word, or part of one.
    found = [one for one in characters if 2 in borders(library_words(f"a{one}{one}b"))]
    assert found == [one for one in characters if one in WHITE_SPACE]


@given(texts=st.lists(tricky, max_size=5))
@settings(deadline=None, max_examples=300)
def test_tokens_are_those_of_the_library(texts: list[str]) -> None:
    for text, tokens in zip(texts, BPE.encode_batch(texts), strict=True):
        assert tokens.tolist() == BPE._library.encode(text, add_special_tokens=False).ids


def test_tokens_of_a_book_are_those_of_the_library(shakespeare: Path) -> None:
    text = shakespeare.read_text("utf-8")[:200_000]
    tokenizer = train_tokenizer("bpe", [text], vocab_size=600).tokenizer
    assert isinstance(tokenizer, BPETokenizer)
    expected = tokenizer._library.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text).tolist() == expected
    assert tokenizer.encode(text).tolist() == expected


class Spelling:
    """Encodes words as their code points and counts what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, words: Sequence[str]) -> Iterable[Sequence[int]]:
        self.asked += words
        return ([ord(character) for character in word] for word in words)


def test_a_word_is_encoded_once() -> None:
    spelling = Spelling()
    memory = WordMemory(spelling)
    first, second, empty = memory.encode_batch(["the cat the cat", " cat sat", ""])
    assert sorted(spelling.asked) == [" cat", " sat", " the", "the"]
    assert first.tolist() == list(map(ord, "the cat the cat"))
    assert second.tolist() == list(map(ord, " cat sat")) and empty.tolist() == []
    memory.encode_batch([" the sat the", "the"])
    assert len(spelling.asked) == 4


def test_the_memory_is_bounded_and_keeps_what_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("andrea.tokenizers.words._MOST_WORDS", 8)
    monkeypatch.setattr("andrea.tokenizers.words._LONGEST_WORD", 10)
    spelling = Spelling()
    memory = WordMemory(spelling)
    for number in range(100):
        (tokens,) = memory.encode_batch([f"the cat{chr(200 + number)} {'long' * 5}"])
        assert tokens.tolist() == list(map(ord, f"the cat{chr(200 + number)} {'long' * 5}"))
        assert len(memory._known) <= 8
        assert not any("long" in word for word in memory._known)
    assert spelling.asked.count("the") == 1
    # More new words at once than there is room for.
    text = " ".join(f"{number}x" for number in range(50))
    assert memory.encode_batch([text])[0].tolist() == list(map(ord, text))
    assert len(memory._known) <= 8
