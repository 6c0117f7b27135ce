"""Text in the words of GPT-2's pattern, and a memory of how frequent words are encoded.

The pattern's words are encoded each by itself, so one that was met before needs no encoding again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

# Unicode's White_Space: Python's \s has U+001C to U+001F besides.
WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
# Latin, Greek, Cyrillic and general punctuation: what is a letter there is settled in all versions
# of Unicode that Python and the library may know. Words with other characters are the library's.
SETTLED = "".join(map(chr, [*range(0x530), *range(0x2010, 0x2028), *range(0x2030, 0x205F)]))

# Some 200 bytes each.
_MOST_WORDS = 1 << 18
_LONGEST_WORD = 48

EncodeWords = Callable[[Sequence[str]], Iterable[Sequence[int]]]


class WordMemory:
    """Encodes texts word by word; `encode` is asked for words that the memory does not hold."""

    def __init__(self, encode: EncodeWords) -> None:
        """Take what returns the token ids of each word."""
        self._encode = encode
        self._known: dict[str, bytes] = {}

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the tokens of each text, int32 (n,)."""
        words = [split_words(text) for text in texts]
        tokens = [list(map(self._known.get, of_text)) for of_text in words]
        gaps = [
            (of_text, found, place)
            for of_text, found in zip(words, tokens, strict=True)
            for place in _places_of_none(found)
        ]
        if gaps:
            new = self._learn({of_text[place] for of_text, _, place in gaps})
            for of_text, found, place in gaps:
                found[place] = new[of_text[place]]
        return [
            np.frombuffer(b"".join(found), dtype=np.int32)  # type: ignore[arg-type]
            for found in tokens
        ]

    def _learn(self, words: Iterable[str]) -> dict[str, bytes]:
        """Return the tokens of new words and keep those that are likely to come again."""
        listed = list(words)
        encoded = self._encode(listed)
        new = {
            word: np.array(ids, dtype=np.int32).tobytes()
            for word, ids in zip(listed, encoded, strict=True)
        }
        if len(self._known) + len(new) > _MOST_WORDS:
            # Frequent words come early: of those met first most are worth keeping.
            self._known = dict(islice(self._known.items(), _MOST_WORDS // 2))
        room = _MOST_WORDS - len(self._known)
        short = ((word, ids) for word, ids in new.items() if len(word) <= _LONGEST_WORD)
        self._known.update(islice(short, room))
        return new


def _places_of_none(values: list[bytes | None]) -> Iterator[int]:
    """Yield the places without Python's looking at each: nearly all words are known."""
    place = -1
    with suppress(ValueError):
        while True:
            place = values.index(None, place + 1)
            yield place


def split_words(text: str) -> list[str]:
    """Return stretches of the text, in order, that are encoded by themselves as in the text."""
    return _word_pattern().findall(text)


def cut_between_words(text: str) -> int:
    """Return the last position between a non-space character and a space or line end, else the end
    of the text."""
    cut = max(text.rfind(" "), text.rfind("\n"))
    while cut > 0 and text[cut - 1].isspace():
        cut = max(text.rfind(" ", 0, cut), text.rfind("\n", 0, cut))
    return cut if cut > 0 else len(text)


def pieces_between_words(text: str, longest: int) -> list[str]:
    """Return the text in pieces of at most so many characters, cut between words."""
    pieces = []
    start = 0
    while len(text) - start > longest:
        cut = start + cut_between_words(text[start : start + longest])
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


@cache
def _word_pattern() -> re.Pattern[str]:
    r"""Return GPT-2's pattern for settled characters; what touches others is one long match.

    GPT-2's is `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. It never
    looks back, and ahead only within white space: what starts with one of its matches and ends at
    white space is split as if it stood alone.
    """
    classes: dict[str, list[str]] = {"L": [], "N": [], "other": []}
    for character in SETTLED:
        category = unicodedata.category(character)
        if category != "Cn" and character not in WHITE_SPACE:
            classes[category[0] if category[0] in "LN" else "other"].append(character)
    settled = _ranges([*WHITE_SPACE, *(one for members in classes.values() for one in members)])
    space = _ranges(WHITE_SPACE)
    return re.compile(
        "|".join(
            [
                "'(?:[sdmt]|ll|ve|re)",
                # Not a word if it goes on, be it with a character that is not settled.
                *(
                    f" ?[{members}]+(?![{members}]|[^{settled}])"
                    for members in map(_ranges, classes.values())
                ),
                f" ?[^{space}]+",
                # A single space belongs to the word behind it, other white space to none.
                f"[{space}]+(?![^{space}])",
                f"[{space}]",
            ]
        )
    )


def _ranges(characters: Iterable[str]) -> str:
    """Return what stands between the brackets of a regular expression's character set."""
    ranges: list[tuple[int, int]] = []
    for code in sorted(map(ord, characters)):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in ranges)
