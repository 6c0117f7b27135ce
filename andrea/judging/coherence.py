"""The coherence score of the family's recipe: does a sample look like text at all?

It finds collapse (a phrase that repeats for ever, noise), not bad style.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from andrea.data import PreparedData

_WEIGHTS = {
    "bigram_diversity": 35.0,
    "trigram_diversity": 35.0,
    "known_words": 20.0,
    "character_diversity": 10.0,
}
# A text that uses so many different characters is as diverse as is asked for.
_ENOUGH_CHARACTERS = 20
# Scripts without spaces: each character of theirs is a word (Thai, Lao, Myanmar, Khmer, kana, Han).
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_UNSPACED += "\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])\w)+(?:['’](?:(?![{_UNSPACED}])\w)+)*")

# What is read of a training text for its words: so many stretches, evenly spread.
_STRETCHES = 128
_STRETCH_TOKENS = 16_384


@dataclass(frozen=True)
class Coherence:
    """How much a text looks like one: score 0..100, and the parts it is made of, each 0..1.

    score = 35 bigram_diversity + 35 trigram_diversity + 20 known_words + 10 character_diversity.
    """

    bigram_diversity: float
    trigram_diversity: float
    known_words: float
    character_diversity: float

    @property
    def score(self) -> float:
        """The weighted sum of the parts, 0..100."""
        return sum(weight * float(getattr(self, name)) for name, weight in _WEIGHTS.items())

    def to_dict(self) -> dict[str, Any]:
        """Score and parts as plain data, rounded for a log."""
        parts = {name: round(float(getattr(self, name)), 4) for name in _WEIGHTS}
        return {"score": round(self.score, 2), **parts}


def words_of(text: str) -> list[str]:
    """The words of a text, case-folded: runs of letters and digits, with apostrophes inside.

    Of scripts that are written without spaces each character is a word.
    """
    return _WORD.findall(text.casefold())


def coherence(text: str, known_words: Set[str]) -> Coherence:
    """Judge a text beside the words that its training text uses (the function `known_words`).

    bigram_diversity: different pairs of neighbouring words / all such pairs. trigram_diversity:
    the same of three words in a row. A text of fewer than three words is judged by its characters
    instead. known_words: share of the words that stand in the training text. character_diversity:
    different characters, case-folded and without white space, over 20 or their number where that
    is less; at most 1. Of an empty text all parts are 0.

    The weights are the recipe's; it names its parts, their exact forms are ours.
    """
    words = words_of(text)
    characters = [character for character in text.casefold() if not character.isspace()]
    enough = min(len(characters), _ENOUGH_CHARACTERS)
    units: Sequence[str] = words if len(words) >= 3 else characters
    return Coherence(
        bigram_diversity=_diversity(units, 2),
        trigram_diversity=_diversity(units, 3),
        known_words=sum(word in known_words for word in words) / max(len(words), 1),
        character_diversity=min(len(set(characters)) / max(enough, 1), 1.0),
    )


def _diversity(units: Sequence[str], length: int) -> float:
    """Different runs of `length` units over all; a text too short for two cannot repeat itself."""
    runs = list(zip(*(units[offset:] for offset in range(length)), strict=False))
    if not runs:
        return 1.0 if units else 0.0
    return len(set(runs)) / len(runs)


def known_words(data: PreparedData) -> frozenset[str]:
    """The words of the training text, or of 128 stretches of 16,384 tokens evenly spread over it.

    Memory and time are bounded for any text (some 10 MB to read, less than a second or two).
    """
    tokens, words = data.train, set()
    stretches = min(-(-len(tokens) // _STRETCH_TOKENS), _STRETCHES)
    last_start = max(len(tokens) - _STRETCH_TOKENS, 0)
    for start in np.linspace(0, last_start, stretches, dtype=np.int64).tolist():
        end = min(start + _STRETCH_TOKENS, len(tokens))
        text = data.tokenizer.decode(np.array(tokens[start:end]))
        found = words_of(text)
        # A stretch may begin and end within a word.
        words.update(found[start > 0 : len(found) - (end < len(tokens))])
    return frozenset(words)
