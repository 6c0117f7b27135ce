"""Tokenizers that are carried as a tokenizer.json: the library's tokens, stored and pickled."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from andrea.errors import TokenizerError
from andrea.formats.tokenizer_json import from_tokenizer_json, to_tokenizer_json
from andrea.tokenizers import ByteTokenizer, CarriedTokenizer, tokenizer_from_dict
from small_weights import TEXT, small_tokenizer

END = 299


@pytest.fixture
def description() -> dict[str, Any]:
    """A tokenizer.json of 300 tokens that Andrea has no kind of: digits stand alone."""
    described = to_tokenizer_json(small_tokenizer("bpe"))
    digits = {"type": "Digits", "individual_digits": True}
    both = [digits, described["pre_tokenizer"]]
    return described | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": both}}


def test_tokens_are_the_librarys(description: dict[str, Any]) -> None:
    tokenizer = CarriedTokenizer(description, 300, END)
    theirs = LibraryTokenizer.from_str(json.dumps(description))
    assert tokenizer != small_tokenizer("bpe")
    for text in ("", "a", TEXT, "1234 " * 9, TEXT * 40):
        tokens = tokenizer.encode(text)
        assert tokens.dtype == np.int32
        assert tokens.tolist() == theirs.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokens) == text
        assert tokenizer.num_bytes(tokens) == len(text.encode())
    batch = tokenizer.encode_batch([TEXT, "", "1"])
    assert [one.tolist() for one in batch] == [
        tokenizer.encode(t).tolist() for t in (TEXT, "", "1")
    ]
    assert tokenizer.decode(tokenizer.encode("lone \ud800")) == "lone \ufffd"


def test_special_tokens_are_tokens_and_stand_for_nothing(description: dict[str, Any]) -> None:
    tokenizer = CarriedTokenizer(description, 304, END)
    tokens = tokenizer.encode("a<|endoftext|>b")
    assert tokens.tolist().count(END) == 1 and tokenizer.decode(tokens) == "ab"
    assert tokenizer.decode([300, 303]) == ""  # ids that only the model has
    assert tokenizer.beginning_of_document == END and tokenizer.vocab_size == 304


def test_added_words_are_written_as_they_are(description: dict[str, Any]) -> None:
    added = description["added_tokens"][0] | {"id": 300, "content": "Øre", "special": False}
    described = description | {"added_tokens": [*description["added_tokens"], added]}
    tokenizer = CarriedTokenizer(described, 301, END)
    tokens = tokenizer.encode("ten Øre")
    assert tokens[-1] == 300 and tokenizer.decode(tokens) == "ten Øre"


def test_it_is_stored_and_pickled(description: dict[str, Any]) -> None:
    tokenizer = CarriedTokenizer(description, 304, END)
    stored = json.loads(json.dumps(tokenizer.to_dict()))
    for again in (tokenizer_from_dict(stored), pickle.loads(pickle.dumps(tokenizer))):
        assert again == tokenizer and again.vocab_size == 304
        assert again.beginning_of_document == END
        assert np.array_equal(again.encode(TEXT), tokenizer.encode(TEXT))


def test_cutting_where_it_says_changes_no_token(description: dict[str, Any]) -> None:
    tokenizer = CarriedTokenizer(description, 300, END)
    for length in range(20, 200, 7):
        cut = tokenizer.safe_cut(TEXT[:length])
        parts = tokenizer.encode(TEXT[:cut]), tokenizer.encode(TEXT[cut:])
        assert np.array_equal(np.concatenate(parts), tokenizer.encode(TEXT))


@pytest.mark.parametrize("kind", ["bpe", "byte", "char"])
def test_what_was_ours_is_ours_again(kind: str) -> None:
    tokenizer = small_tokenizer(kind)
    described = json.loads(json.dumps(to_tokenizer_json(tokenizer)))
    again = from_tokenizer_json(described, tokenizer.vocab_size)
    assert again == tokenizer and type(again) is type(tokenizer)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
    ],
)
def test_what_is_nearly_ours_is_carried(change: dict[str, Any]) -> None:
    described = to_tokenizer_json(small_tokenizer("bpe")) | change
    tokenizer = from_tokenizer_json(described, 300)
    assert isinstance(tokenizer, CarriedTokenizer)
    theirs = LibraryTokenizer.from_str(json.dumps(described))
    assert tokenizer.encode(TEXT).tolist() == theirs.encode(TEXT).ids


WORDS = {
    "type": "Split",
    "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+(?!\S)|\s+"},
    "behavior": "Isolated",
    "invert": False,
}
BYTES_ALONE = {**to_tokenizer_json(ByteTokenizer())["pre_tokenizer"], "use_regex": False}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "end", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"end": {"id": "end", "ids": [299], "tokens": ["<|endoftext|>"]}},
}


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [WORDS, BYTES_ALONE]}},
        {
            "post_processor": {
                "type": "Sequence",
                "processors": [{**BYTES_ALONE, "trim_offsets": False}, TEMPLATE],
            },
            "decoder": {"type": "Sequence", "decoders": [BYTES_ALONE]},
            "truncation": None,
        },
        {"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": WORDS},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Punctuation", "behavior": "Contiguous"},
                    {**BYTES_ALONE, "use_regex": True},
                    {"type": "Digits", "individual_digits": False},
                ],
            }
        },
        {"normalizer": {"type": "Sequence", "normalizers": []}},
    ],
    ids=["split, then bytes", "a template", "bytes first", "bytes in between", "no steps"],
)
def test_the_files_of_models_in_use_are_carried(change: dict[str, Any]) -> None:
    """Whatever steps a text goes through: the library's tokens, and back the same text."""
    described = to_tokenizer_json(small_tokenizer("bpe"))
    # As GPT-2's own says it: a kind that isn't named, and affixes of no length.
    affixes = {"continuing_subword_prefix": "", "end_of_word_suffix": "", "dropout": 0.0}
    model = {name: value for name, value in described["model"].items() if name != "type"} | affixes
    described |= {"model": model, **change}
    tokenizer = CarriedTokenizer(described, 300, END)
    theirs = LibraryTokenizer.from_str(json.dumps(described))
    tokens = tokenizer.encode(TEXT)
    assert tokens.tolist() == theirs.encode(TEXT, add_special_tokens=False).ids
    assert tokenizer.decode(tokens) == TEXT


def test_other_tokens_of_the_same_merges_are_no_kind_of_ours() -> None:
    """Two ids swapped: the merges are the same, the tokens are not."""
    described = to_tokenizer_json(small_tokenizer("bpe"))
    vocabulary = described["model"]["vocab"]
    vocabulary["!"], vocabulary["a"] = vocabulary["a"], vocabulary["!"]
    tokenizer = from_tokenizer_json(described, 300)
    assert isinstance(tokenizer, CarriedTokenizer)
    assert tokenizer.encode("a").tolist() == [small_tokenizer("bpe").encode("!")[0]]


@pytest.mark.parametrize(
    ("vocab_size", "end", "told"),
    [
        (299, 5, "tokens up to 299, the model's vocabulary is 299"),
        (300, 300, "the token between documents is 300"),
        (2**30, END, "but the vocabulary is 1073741824"),
    ],
)
def test_sizes_that_do_not_fit(
    vocab_size: int, end: int, told: str, description: dict[str, Any]
) -> None:
    with pytest.raises(TokenizerError, match=told):
        CarriedTokenizer(description, vocab_size, end)


def test_a_file_that_names_no_end_is_refused(description: dict[str, Any]) -> None:
    described = description | {"added_tokens": []}
    with pytest.raises(TokenizerError, match="which token stands between documents"):
        from_tokenizer_json(described, 300)
