"""Trains the tokenizer that was asked for, or picks one by the amount of text and says why.

The text is seen once, piece by piece, so that gigabytes need no more memory than a book.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from andrea.errors import TokenizerError
from andrea.tokenizers.base import Tokenizer, well_formed
from andrea.tokenizers.bpe import BPETokenizer
from andrea.tokenizers.byte import ByteTokenizer
from andrea.tokenizers.char import CharTokenizer, code_points
from andrea.words import size as amount

TOKENIZER_NAMES = ("auto", "byte", "char", "bpe")

# "auto": below this many bytes a pair vocabulary cannot be learned well.
_SMALL_TEXT = 4 << 20
# "auto": with more distinct characters than this, bytes make the smaller vocabulary.
_FEW_CHARACTERS = 256
# Merges by amount of text; the powers of two of the model family's presets.
_MERGES_BY_BYTES = {
    512 << 10: 512,
    _SMALL_TEXT: 1024,
    32 << 20: 2048,
    256 << 20: 4096,
    2 << 30: 8192,
}
_MOST_MERGES = 16384


@dataclass(frozen=True)
class TrainedTokenizer:
    """A tokenizer and one sentence for the user: why this one, what it was trained on."""

    tokenizer: Tokenizer
    note: str


class TokenizerTrainer:
    """Looks at a text piece by piece and then trains a tokenizer for it."""

    def __init__(self, name: str = "auto", vocab_size: int | None = None) -> None:
        """Take one of TOKENIZER_NAMES; `vocab_size` (257 + merges) is for bpe and makes auto bpe.

        Raises TokenizerError if the two do not fit.
        """
        if name not in TOKENIZER_NAMES:
            raise TokenizerError(
                f"no tokenizer is called {name!r}: choose {', '.join(TOKENIZER_NAMES)}"
            )
        if name == "byte" and vocab_size not in (None, 257):
            raise TokenizerError(
                f"the byte tokenizer has 257 tokens, not {vocab_size}: leave the size out, or "
                "use bpe"
            )
        if name in ("auto", "bpe") and vocab_size is not None and vocab_size < 257:
            raise TokenizerError(
                f"a bpe vocabulary has 256 bytes, one marker and the merges: {vocab_size} is too "
                "small, 257 is the least"
            )
        self.name = "bpe" if name == "auto" and vocab_size is not None else name
        self.num_bytes = 0
        self._vocab_size = vocab_size
        self._seen_codes = np.zeros(0x110000, dtype=np.bool_)
        self._sample = SpreadSample()

    def add(self, text: str) -> None:
        """Take the next piece of the text."""
        text = well_formed(text)
        self.num_bytes += len(text.encode("utf-8"))
        if self.name == "char" or (self.name == "auto" and self.num_bytes < _SMALL_TEXT):
            self._seen_codes[code_points(text)] = True
        if self.name in ("auto", "bpe"):
            self._sample.add(text)

    def finish(self) -> TrainedTokenizer:
        """Train on what was seen; TokenizerError if it yields no tokenizer of the asked kind."""
        size = amount(self.num_bytes)
        if self.name == "byte":
            return TrainedTokenizer(ByteTokenizer(), "tokenizer: byte, 257 tokens, as asked for")
        if self.name == "char":
            return self._char("as asked for")
        if self.name == "bpe":
            return self._bpe("as asked for")
        if self.num_bytes >= _SMALL_TEXT:
            return self._bpe(f"chosen because {size} of text is enough to learn merges from")
        distinct = np.count_nonzero(self._seen_codes)
        if 0 < distinct <= _FEW_CHARACTERS:
            return self._char(
                f"chosen because the text is small ({size}) and its characters are few"
            )
        return TrainedTokenizer(
            ByteTokenizer(),
            f"tokenizer: byte, 257 tokens, chosen because the text is small ({size}) and has "
            f"{distinct:,} different characters",
        )

    def _char(self, reason: str) -> TrainedTokenizer:
        characters = "".join(chr(code) for code in np.flatnonzero(self._seen_codes))
        tokenizer = CharTokenizer(characters)
        if self._vocab_size not in (None, tokenizer.vocab_size):
            raise TokenizerError(
                f"the char tokenizer of this text has {tokenizer.vocab_size} tokens, not "
                f"{self._vocab_size}: leave the size out, or use bpe"
            )
        return TrainedTokenizer(tokenizer, f"tokenizer: {tokenizer.describe()}, {reason}")

    def _bpe(self, reason: str) -> TrainedTokenizer:
        wanted = _merges_for(self.num_bytes) if self._vocab_size is None else self._vocab_size - 257
        texts = self._sample.texts()
        # The library makes room for all that it may learn: no text gives more than it has letters.
        most = sum(len(text.encode("utf-8")) for text in texts)
        tokenizer = BPETokenizer.train(texts, min(wanted, most))
        note = f"tokenizer: {tokenizer.describe()}, {reason}"
        share = sum(map(len, texts)) / max(self._sample.num_chars_seen, 1)
        if share < 1:
            note += f"; trained on {share:.1%} of the text, spread evenly over it"
        if tokenizer.vocab_size < wanted + 257:
            reached = tokenizer.vocab_size - 257
            note += f"; no more pairs repeat: {reached:,} merges instead of {wanted:,}"
        return TrainedTokenizer(tokenizer, note)


class SpreadSample:
    """Keeps at most 8 million characters of a text of any length, evenly spread over it."""

    block = 1 << 16
    max_blocks = 128
    # Learning time grows with the total length of different words: 2 million characters of them
    # are some ten seconds. English in 8 million characters has about as much; Chinese has more.
    max_distinct = 2 << 20

    def __init__(self) -> None:
        """Start with no text."""
        self.num_chars_seen = 0
        self._kept: list[list[str]] = []
        self._stride = 1
        self._filling: list[str] = []
        self._filling_chars = 0
        self._blocks_seen = 0

    def add(self, text: str) -> None:
        """Take the next piece of the text, of any length."""
        self.num_chars_seen += len(text)
        start = 0
        while start < len(text):
            part = text[start : start + self.block - self._filling_chars]
            self._filling.append(part)
            self._filling_chars += len(part)
            start += len(part)
            if self._filling_chars == self.block:
                self._close_block()

    def texts(self) -> list[str]:
        """Return the kept pieces in order, fewer if their different words are very many."""
        blocks = [*self._kept, self._filling]
        words = {word for block in blocks for text in block for word in text.split()}
        step = -(-sum(map(len, words)) // self.max_distinct)
        return [text for block in blocks[:: max(step, 1)] for text in block]

    def _close_block(self) -> None:
        if self._blocks_seen % self._stride == 0:
            self._kept.append(self._filling)
        self._blocks_seen += 1
        self._filling, self._filling_chars = [], 0
        if len(self._kept) == self.max_blocks:
            self._kept = self._kept[::2]
            self._stride *= 2


def train_tokenizer(
    name: str, texts: Iterable[str], *, vocab_size: int | None = None
) -> TrainedTokenizer:
    """Train the named tokenizer ("auto" chooses) on the texts; see TokenizerTrainer."""
    trainer = TokenizerTrainer(name, vocab_size)
    for text in texts:
        trainer.add(text)
    return trainer.finish()


def _merges_for(num_bytes: int) -> int:
    fitting = (merges for limit, merges in _MERGES_BY_BYTES.items() if num_bytes < limit)
    return next(fitting, _MOST_MERGES)
