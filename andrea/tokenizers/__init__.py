"""Tokenizers: byte, char and byte-level BPE behind one small interface.

To add one: subclass Tokenizer, and name it in `choose.py` (training) and here (loading).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from andrea.errors import TokenizerError
from andrea.tokenizers.base import StreamingDecoder, Tokenizer
from andrea.tokenizers.bpe import BPETokenizer
from andrea.tokenizers.byte import ByteTokenizer
from andrea.tokenizers.carried import CarriedTokenizer
from andrea.tokenizers.char import CharTokenizer
from andrea.tokenizers.choose import (
    TOKENIZER_NAMES,
    TokenizerTrainer,
    TrainedTokenizer,
    train_tokenizer,
)

__all__ = [
    "TOKENIZER_NAMES",
    "BPETokenizer",
    "ByteTokenizer",
    "CarriedTokenizer",
    "CharTokenizer",
    "StreamingDecoder",
    "Tokenizer",
    "TokenizerTrainer",
    "TrainedTokenizer",
    "tokenizer_from_dict",
    "train_tokenizer",
]


def tokenizer_from_dict(state: Mapping[str, Any]) -> Tokenizer:
    """Rebuild a tokenizer from `Tokenizer.to_dict`; TokenizerError if the state is not one."""
    name = state.get("name") if isinstance(state, Mapping) else None
    if name == "byte":
        return ByteTokenizer()
    if name == "char":
        characters = state.get("characters")
        if not isinstance(characters, str):
            raise TokenizerError("the stored char tokenizer has no characters: it is damaged")
        tokenizer = CharTokenizer(characters)
        if tokenizer.characters != characters:
            raise TokenizerError(
                "the stored char tokenizer's characters are not in order, once each"
            )
        return tokenizer
    if name == "bpe":
        return _bpe_from_dict(state)
    if name == "json":
        return CarriedTokenizer.from_dict(state)
    raise TokenizerError(f"no tokenizer is called {name!r}: known are byte, char, bpe, json")


def _bpe_from_dict(state: Mapping[str, Any]) -> BPETokenizer:
    if state.get("pattern") != "gpt2":
        raise TokenizerError(
            f"the stored bpe tokenizer splits text by pattern {state.get('pattern')!r}; "
            "this version knows 'gpt2' alone"
        )
    merges = state.get("merges")
    if not isinstance(merges, list) or not all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(type(token) is int for token in pair)
        for pair in merges
    ):
        raise TokenizerError("the stored bpe tokenizer has no list of merges: it is damaged")
    return BPETokenizer((left, right) for left, right in merges)
