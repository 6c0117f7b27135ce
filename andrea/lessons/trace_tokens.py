"""Tokens as a person can read them one by one: where a space is, where a line ends, what is half a
character."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from andrea.tokenizers import Tokenizer

_SIGNS = {" ": "\u00b7", "\n": "\u21b5", "\t": "\u2192"}
_ASCII_SIGNS = {" ": "_", "\n": r"\n", "\t": r"\t"}
START, EMPTY = "<start>", "<empty>"


def token_labels(
    tokenizer: Tokenizer, tokens: Iterable[int], *, ascii_only: bool = False
) -> list[str]:
    r"""The text of each token, never empty and without control characters.

    A space is shown as \u00b7, a line's end as \u21b5, a tab as \u2192; other characters that can't
    be seen, and bytes that are no whole character, as \x1b or \xe2; the token of a document's start
    as <start>. With ascii_only all of it is ASCII, and a space is _.
    """
    return [_label(tokenizer, int(token), ascii_only) for token in tokens]


def signs(labels: Iterable[str], *, ascii_only: bool = False) -> str:
    """What the signs in labels stand for, such as "\u00b7 is a space"; empty where there are
    none."""
    table = _ASCII_SIGNS if ascii_only else _SIGNS
    names = {" ": "a space", "\n": "a line's end", "\t": "a tab"}
    text = "".join(labels)
    return ", ".join(f"{table[key]} is {name}" for key, name in names.items() if table[key] in text)


def _label(tokenizer: Tokenizer, token: int, ascii_only: bool) -> str:
    data = tokenizer.decode_bytes([token])
    if not data:
        return START if token == tokenizer.beginning_of_document else EMPTY
    table = _ASCII_SIGNS if ascii_only else _SIGNS
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)
    return "".join(table.get(sign) or _visible(sign, ascii_only) for sign in text)


def _visible(sign: str, ascii_only: bool) -> str:
    if sign.isprintable() and (sign.isascii() or not ascii_only):
        return sign
    return sign.encode("unicode_escape").decode("ascii")
