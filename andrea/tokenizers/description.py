"""What a tokenizer.json must say before the library that reads it is given it.

The library takes what is not so for granted, and ends the process or hangs where a file differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from andrea.errors import TokenizerError

# The steps that Andrea knows, by the part of the file that holds them.
# "Precompiled" is none: its table is trusted without a look.
_STEPS = {
    "normalizer": {
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Prepend",
        "Replace",
        "Strip",
        "StripAccents",
    },
    "pre_tokenizer": {
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "FixedLength",
        "Metaspace",
        "Punctuation",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    },
}
_PARTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}
# Real ones have up to a dozen.
_MOST_STEPS = 64
# How many times longer a text may get before it is cut: the steps multiply.
_MOST_GROWTH = 64


def check_description(description: Mapping[str, Any]) -> None:
    """See that a tokenizer.json is byte-level BPE, and nothing that the library can't bear.

    Raises:
        TokenizerError: it is not; says what.
    """
    if not _is_byte_level(description.get("decoder")):
        raise TokenizerError(
            "the tokenizer.json is not byte-level, so its tokens stand for no bytes of their own; "
            "Andrea reads the byte-level ones, as GPT-2's"
        )
    _check_model(description.get("model"))
    steps = [step for part in _STEPS for step in _steps(description.get(part), part)]
    levels = sum(step.get("type") == "ByteLevel" for step in steps)
    if levels != 1:
        raise _unusable(f"it turns text into bytes {levels} times, where once is right")
    growth = 1.0
    for step in steps:
        growth *= _growth(step)
    if growth > _MOST_GROWTH:
        raise _unusable(f"its replacements could make a text {growth:.0f} times as long")


def _unusable(reason: str) -> TokenizerError:
    return TokenizerError(f"the tokenizer.json can't be used: {reason}")


def _is_byte_level(decoder: Any) -> bool:
    for _ in range(_MOST_STEPS):
        if not isinstance(decoder, Mapping):
            return False
        if decoder.get("type") != "Sequence":
            return decoder.get("type") == "ByteLevel"
        parts = decoder.get("decoders")
        decoder = parts[0] if isinstance(parts, list) and len(parts) == 1 else None
    return False


def _check_model(model: Any) -> None:
    # Older files do not name BPE, as the only kind.
    if not isinstance(model, Mapping) or model.get("type", "BPE") != "BPE":
        raise _unusable("its model is not BPE")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        # The library cuts the prefix off each token by its length, be it there or in mid-character.
        if model.get(name) not in (None, ""):
            raise _unusable(f"{name} is {model[name]!r:.40}, no part of a byte-level token")
    dropout = model.get("dropout")
    if dropout is not None and (type(dropout) not in (int, float) or dropout != 0):
        raise _unusable(f"dropout is {dropout!r:.40}, so a text would have other tokens each time")
    vocabulary = model.get("vocab")
    if not isinstance(vocabulary, Mapping):
        raise _unusable("it has no vocabulary")
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < 2**31:
            raise _unusable(f"the token {token!r:.40} has the number {number!r:.40}")


def _steps(step: Any, part: str) -> Iterator[Mapping[str, Any]]:
    """Each single step of a part of the file, in order."""
    waiting, seen = [step], 0
    while waiting:
        step = waiting.pop()
        seen += 1
        if seen > _MOST_STEPS:
            raise _unusable(f"its {part} has more than {_MOST_STEPS} steps")
        if step is None:
            continue
        kind = step.get("type") if isinstance(step, Mapping) else step
        if kind == "Sequence":
            parts = step.get(_PARTS[part])
            if not isinstance(parts, list):
                raise _unusable(f"its {part} is a sequence of nothing")
            waiting += reversed(parts)
        elif isinstance(step, Mapping) and isinstance(kind, str) and kind in _STEPS[part]:
            if kind == "FixedLength" and not _is_positive(step.get("length", 1)):
                raise _unusable(f"it cuts a text into pieces of length {step['length']!r:.40}")
            yield step
        else:
            raise _unusable(f"its {part} has a step {kind!r:.40}, which Andrea does not know")


def _is_positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _growth(step: Mapping[str, Any]) -> float:
    """By which factor a step makes a text longer, at worst, where steps like it add up."""
    if step.get("type") != "Replace":
        return 1.0
    pattern, content = step.get("pattern"), step.get("content")
    if not isinstance(pattern, Mapping) or not isinstance(content, str):
        raise _unusable("one of its replacements lacks what it replaces, or by what")
    found = pattern.get("String")
    if found == "":
        raise _unusable("one of its replacements replaces nothing")
    # What an expression matches may be as short as a byte.
    shortest = len(found.encode("utf-8", "replace")) if isinstance(found, str) else 1
    return max(1.0, len(content.encode("utf-8", "replace")) / shortest)
