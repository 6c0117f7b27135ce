"""Tokenizers as tokenizer.json, the file of Hugging Face's libraries: written, and recognised.

What is read back from a file of ours, and GPT-2's own, is an Andrea tokenizer again; any other
byte-level one is carried as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from andrea.errors import TokenizerError
from andrea.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CarriedTokenizer,
    CharTokenizer,
    Tokenizer,
)
from andrea.tokenizers.bpe import byte_symbols

_MARKER = "<|endoftext|>"
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_ONE_BY_ONE = {
    "type": "Split",
    "pattern": {"Regex": r"[\s\S]"},
    "behavior": "Isolated",
    "invert": False,
}


def marker_of(tokenizer: Tokenizer) -> str:
    """How the token between documents is written: <|endoftext|>, unless that is another's text."""
    if isinstance(tokenizer, CarriedTokenizer):
        for content, token in special_tokens(tokenizer.description):
            if token == tokenizer.beginning_of_document:
                return content
        raise TokenizerError("the tokenizer.json does not name the token between documents")
    symbols = set(token_symbols(tokenizer)) if isinstance(tokenizer, BPETokenizer) else set()
    marker = _MARKER
    while marker in symbols:
        marker = f"<|{marker[2:-2]}.|>"
    return marker


def token_symbols(tokenizer: Tokenizer) -> list[str]:
    """Each token in GPT-2's characters for bytes, but the marker, which stands for none."""
    symbols = byte_symbols()
    return ["".join([symbols[byte] for byte in data]) for data in tokenizer.token_table()[:-1]]


def symbol_merges(tokenizer: BPETokenizer) -> list[tuple[str, str]]:
    """The merges, in order of rank, in GPT-2's characters."""
    symbols = token_symbols(tokenizer)
    return [(symbols[left], symbols[right]) for left, right in tokenizer.merges]


def to_tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer.json that makes the same tokens of every text that does not hold the marker.

    Raises:
        TokenizerError: the tokenizer is of a kind that the file can't describe.
    """
    if isinstance(tokenizer, CarriedTokenizer):
        return dict(tokenizer.description)
    if isinstance(tokenizer, BPETokenizer):
        merges = [" ".join(pair) for pair in symbol_merges(tokenizer)]
        return _described(tokenizer, _bpe(token_symbols(tokenizer), merges), _BYTE_LEVEL)
    if isinstance(tokenizer, ByteTokenizer):
        return _described(tokenizer, _bpe(token_symbols(tokenizer), []), _BYTE_LEVEL)
    if isinstance(tokenizer, CharTokenizer):
        words = {"type": "WordLevel", "vocab": _numbered(tokenizer.characters), "unk_token": ""}
        return _described(tokenizer, words, _ONE_BY_ONE)
    raise TokenizerError(f"a {tokenizer.name} tokenizer can't be written as tokenizer.json")


def _numbered(tokens: Any) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _bpe(symbols: list[str], merges: list[str]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": _numbered(symbols),
        "merges": merges,
    }


def _described(
    tokenizer: Tokenizer, model: dict[str, Any], splitter: dict[str, Any]
) -> dict[str, Any]:
    marker, number = marker_of(tokenizer), tokenizer.beginning_of_document
    model["vocab"][marker] = number
    added = {
        "id": number,
        "content": marker,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added],
        "normalizer": None,
        "pre_tokenizer": splitter,
        "post_processor": None,
        "decoder": {"type": "Fuse"} if splitter is _ONE_BY_ONE else _BYTE_LEVEL,
        "model": model,
    }


def special_tokens(description: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Text and id of each special token of a tokenizer.json."""
    added = description.get("added_tokens")
    found = []
    for token in added if isinstance(added, list) else ():
        if isinstance(token, Mapping) and token.get("special") is True:
            content, number = token.get("content"), token.get("id")
            if isinstance(content, str) and type(number) is int:
                found.append((content, number))
    return found


def from_tokenizer_json(
    description: Mapping[str, Any], vocab_size: int, end_of_document: int | None = None
) -> Tokenizer:
    """The tokenizer of a tokenizer.json, for a model of that vocabulary.

    end_of_document is the token that stands between documents; None: the file's <|endoftext|>, or
    its only special token.

    Raises:
        TokenizerError: the file is damaged, of a kind that Andrea can't use, or has more tokens
            than the model; or which token separates documents isn't known.
    """
    if end_of_document is None:
        special = special_tokens(description)
        named = [number for content, number in special if content == _MARKER or len(special) == 1]
        if not named:
            raise TokenizerError(
                "which token stands between documents isn't said: the model's config.json has no "
                f"eos_token_id, and the tokenizer.json no {_MARKER}"
            )
        end_of_document = named[0]
    if end_of_document == vocab_size - 1:
        for candidate in (_as_bpe, _as_byte, _as_char):
            tokenizer = candidate(description)
            if tokenizer is not None and _is_same(tokenizer, description, vocab_size):
                return tokenizer
    return CarriedTokenizer(description, vocab_size, end_of_document)


def _is_same(tokenizer: Tokenizer, description: Mapping[str, Any], vocab_size: int) -> bool:
    """Whether a tokenizer is what a file describes, in all that tokens depend on."""
    if tokenizer.vocab_size != vocab_size:
        return False
    ours, theirs = _essence(to_tokenizer_json(tokenizer)), _essence(description)
    # The marker's own text is no matter.
    return ours is not None and ours == theirs


def _essence(description: Mapping[str, Any]) -> Any:
    """What decides the tokens of a text and the text of tokens, or None where it is not clear."""
    model, splitter = description.get("model"), description.get("pre_tokenizer")
    special = special_tokens(description)
    added = description.get("added_tokens")
    if not isinstance(model, Mapping) or not isinstance(splitter, Mapping) or len(special) != 1:
        return None
    vocabulary, decoder = model.get("vocab"), description.get("decoder")
    if not isinstance(vocabulary, Mapping) or not isinstance(decoder, Mapping):
        return None
    if not isinstance(added, list) or len(added) != 1:
        return None
    plain = _plain(splitter)
    # The same where they are not there.
    switches = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
    return (
        # Older files do not name BPE, as the only kind.
        model.get("type") or "BPE",
        {token: number for token, number in vocabulary.items() if token != special[0][0]},
        stored_merges(model),
        [model.get(switch) or None for switch in switches],
        bool(model.get("byte_fallback")),
        plain,
        decoder.get("type"),
        description.get("normalizer"),
        special[0][1],
    )


def _plain(splitter: Mapping[str, Any]) -> dict[str, Any]:
    """A way of splitting text without what changes no token, or is meant where it isn't said."""
    return {
        key: value
        for key, value in splitter.items()
        if key != "trim_offsets" and (key, value) != ("use_regex", True)
    }


def is_gpt2_split(description: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json describes BPE on words as GPT-2 splits them."""
    splitter, model = description.get("pre_tokenizer"), description.get("model")
    return (
        isinstance(splitter, Mapping)
        and isinstance(model, Mapping)
        and model.get("type", "BPE") == "BPE"
        and description.get("normalizer") is None
        and _plain(splitter) == _plain(_BYTE_LEVEL)
    )


def stored_merges(model: Mapping[str, Any]) -> list[list[str]] | None:
    """Merges as pairs, whichever of the two ways they are written in."""
    merges = model.get("merges")
    if merges is None:
        return None
    pairs = []
    for merge in merges if isinstance(merges, list) else ():
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2:
            return []
        if not all(isinstance(part, str) for part in pair):
            return []
        pairs.append(list(pair))
    return pairs


def _as_bpe(description: Mapping[str, Any]) -> Tokenizer | None:
    model = description.get("model")
    merges = stored_merges(model) if isinstance(model, Mapping) else None
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not merges or not isinstance(vocabulary, Mapping):
        return None
    try:
        return BPETokenizer((vocabulary[left], vocabulary[right]) for left, right in merges)
    except (KeyError, TypeError, TokenizerError):
        return None


def _as_byte(_description: Mapping[str, Any]) -> Tokenizer | None:
    return ByteTokenizer()


def _as_char(description: Mapping[str, Any]) -> Tokenizer | None:
    model = description.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping):
        return None
    try:
        return CharTokenizer("".join(token for token in vocabulary if len(token) == 1))
    except TokenizerError:
        return None
