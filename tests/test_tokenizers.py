"""Tokenizers: exact round trips, streaming, storage, and every refusal."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.errors import TokenizerError
from andrea.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    tokenizer_from_dict,
    train_tokenizer,
)

STORY = (
    "The café's naïve 猫 sat — on the mat.\n\n\tIt said: “漢字 are fine”, 😀👩‍👩‍👧 and left.\r\n"
    * 20
)
BPE = train_tokenizer("bpe", [STORY], vocab_size=300).tokenizer
CHAR = CharTokenizer(STORY)
ALL = pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CHAR, BPE], ids=lambda t: t.name)
ANY_TEXT = pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=lambda t: t.name)
# Every code point, lone surrogates and NUL included.
characters = st.characters(codec=None, exclude_categories=())
texts = st.text(characters, max_size=60)


def test_vocabulary_sizes() -> None:
    assert ByteTokenizer().vocab_size == 257
    assert CHAR.vocab_size == len(set(STORY)) + 1
    assert BPE.vocab_size == 300
    for tokenizer in (ByteTokenizer(), CHAR, BPE):
        assert tokenizer.beginning_of_document == tokenizer.vocab_size - 1


@ALL
def test_round_trip_of_its_own_text(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode(STORY)
    assert tokens.dtype == np.int32 and tokens.ndim == 1
    assert tokenizer.decode(tokens) == STORY
    assert tokenizer.decode_bytes(tokens) == STORY.encode()
    assert tokenizer.num_bytes(tokens) == len(STORY.encode())
    assert tokens.max() < tokenizer.beginning_of_document


@ANY_TEXT
@given(text=texts)
@settings(deadline=None)
def test_any_unicode_round_trips(tokenizer: Tokenizer, text: str) -> None:
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert tokenizer.decode(tokenizer.encode(text)) == expected


@ANY_TEXT
def test_surrogates_are_joined_or_replaced(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud83d\ude00b")) == "a😀b"
    assert tokenizer.decode(tokenizer.encode("a\ud83d")) == "a\ufffd"
    assert tokenizer.decode(tokenizer.encode("\udcffx\x00")) == "\ufffdx\x00"


@ALL
def test_empty_text(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("")
    assert tokens.shape == (0,) and tokens.dtype == np.int32
    assert tokenizer.decode([]) == ""
    assert tokenizer.num_bytes([]) == 0


@ALL
def test_beginning_of_document_is_silent(tokenizer: Tokenizer) -> None:
    tokens = [tokenizer.beginning_of_document, *tokenizer.encode("mat").tolist()]
    assert tokenizer.decode(tokens) == "mat"
    assert tokenizer.num_bytes(tokens) == 3


@ALL
@pytest.mark.parametrize("count", [63, 64, 65, 70_000])
def test_many_tokens_are_decoded_as_each_alone(tokenizer: Tokenizer, count: int) -> None:
    """In any order, with markers between them, whatever number is gathered at a time."""
    rng = np.random.default_rng(count)
    tokens = rng.integers(0, tokenizer.vocab_size, count)
    alone = [tokenizer.decode_bytes(token) for token in range(tokenizer.vocab_size)]
    assert tokenizer.decode_bytes(tokens) == b"".join(alone[token] for token in tokens)
    assert tokenizer.decode_bytes([tokenizer.beginning_of_document] * count) == b""


@ALL
def test_batch_equals_single(tokenizer: Tokenizer) -> None:
    some = [STORY, "", "mat", STORY[:7]]
    for tokens, text in zip(tokenizer.encode_batch(some), some, strict=True):
        np.testing.assert_array_equal(tokens, tokenizer.encode(text))
    assert tokenizer.encode_batch([]) == []


@ALL
@given(data=st.data())
@settings(deadline=None)
def test_streamed_text_equals_unstreamed(tokenizer: Tokenizer, data: st.DataObject) -> None:
    # Random tokens make broken UTF-8 of every kind, unless the tokens are characters.
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    decoder = tokenizer.streaming_decoder()
    for _ in range(2):
        streamed = [decoder.push(token) for token in tokens]
        assert "".join(streamed) + decoder.finish() == tokenizer.decode(tokens)


def test_stream_gives_each_character_when_its_last_byte_arrives() -> None:
    decoder = ByteTokenizer().streaming_decoder()
    given_out = [decoder.push(byte) for byte in "a猫😀".encode()]
    assert given_out == ["a", "", "", "猫", "", "", "", "😀"]
    assert decoder.push(list("né".encode())) == "né"
    assert decoder.push("猫".encode()[:2]) == ""
    assert decoder.finish() == "\ufffd"
    assert decoder.finish() == ""
    assert decoder.push(np.int32(65)) == "A"


@ALL
def test_storage_round_trip(tokenizer: Tokenizer) -> None:
    again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    assert again == tokenizer and hash(again) == hash(tokenizer)
    np.testing.assert_array_equal(again.encode(STORY), tokenizer.encode(STORY))
    assert again.decode(again.encode(STORY)) == STORY


def test_different_tokenizers_are_not_equal() -> None:
    assert CharTokenizer("ab") != CharTokenizer("ac")
    assert ByteTokenizer() != CHAR and ByteTokenizer() != BPE and BPE != "bpe"


@ALL
@pytest.mark.parametrize("tokens", [[-1], [0, 10**6], np.array([2**40]), [1.0], ["a"], [None]])
def test_wrong_tokens_are_refused(tokenizer: Tokenizer, tokens: object) -> None:
    for method in (tokenizer.decode, tokenizer.decode_bytes, tokenizer.num_bytes):
        with pytest.raises(TokenizerError):
            method(tokens)  # type: ignore[arg-type]


def test_the_id_outside_is_named() -> None:
    with pytest.raises(TokenizerError, match=r"token id 257 is outside the byte tokenizer's 257"):
        ByteTokenizer().decode([3, 257])


def test_char_names_what_it_does_not_know() -> None:
    with pytest.raises(TokenizerError) as caught:
        CharTokenizer("abc").encode("aßbc😀\n")
    message = str(caught.value)
    assert "'ß' (U+00DF)" in message and "'😀' (U+1F600)" in message and r"'\n' (U+000A)" in message
    assert "3 characters" in message and "\n" not in message
    with pytest.raises(TokenizerError, match=r"and 16 more"):
        CharTokenizer("a").encode("bcdefghijklmnopqrstuvwxyzA")


def test_char_order_and_unencodable_characters() -> None:
    tokenizer = CharTokenizer("cabbac😀")
    assert tokenizer.characters == "abc😀"
    assert tokenizer.encode("a😀c").tolist() == [0, 3, 2]
    with pytest.raises(TokenizerError, match="U\\+FFFD"):
        tokenizer.encode("a\ud800")
    for bad, why in (("", "empty"), ("a\ud800", "surrogates")):
        with pytest.raises(TokenizerError, match=why):
            CharTokenizer(bad)


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"name": "words"},
        {"name": "char"},
        {"name": "char", "characters": ["a"]},
        {"name": "char", "characters": ""},
        {"name": "char", "characters": "\ud800"},
        {"name": "bpe", "merges": []},
        {"name": "bpe", "pattern": "gpt2"},
        {"name": "bpe", "pattern": "other", "merges": []},
        {"name": "bpe", "pattern": "gpt2", "merges": [[0]]},
        {"name": "bpe", "pattern": "gpt2", "merges": [[0, "1"]]},
        {"name": "bpe", "pattern": "gpt2", "merges": [[0, True]]},
        {"name": "bpe", "pattern": "gpt2", "merges": [[0, 256]]},
        {"name": "bpe", "pattern": "gpt2", "merges": [[-1, 2]]},
    ],
)
def test_damaged_storage_is_refused(state: dict[str, object] | None) -> None:
    with pytest.raises(TokenizerError) as caught:
        tokenizer_from_dict(state)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_describe() -> None:
    assert ByteTokenizer().describe() == "byte, 257 tokens"
    assert repr(BPE) == "<BPETokenizer bpe, 300 tokens>"


def test_bpe_class_takes_plain_merges() -> None:
    # "ab" then "abc" reached in two ways: the second adds no token.
    a, b, c = (ord(letter) - 33 for letter in "abc")
    tokenizer = BPETokenizer([(a, b), (256, c), (b, c), (a, 258)])
    assert tokenizer.vocab_size == 256 + 3 + 1
    assert tokenizer.decode_bytes([256, 257, 258]) == b"ababcbc"
    assert tokenizer.encode("abc").tolist() == [257]
