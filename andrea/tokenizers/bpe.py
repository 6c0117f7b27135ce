"""Byte-level byte-pair encoding, with GPT-2's way of splitting text and numbering bytes.

The `tokenizers` library merges; the vocabulary is ours: 256 bytes, the merges, one marker token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers as library
from numpy.typing import NDArray
from tokenizers import Regex, models, pre_tokenizers, trainers

from andrea.errors import TokenizerError
from andrea.tokenizers.base import Tokenizer, well_formed
from andrea.tokenizers.words import WordMemory, cut_between_words, pieces_between_words

# Texts are encoded in pieces of this many characters, together until they hold that many.
_PIECE = 1 << 14
_TOGETHER = 1 << 20
# Learning walks whole words again and again; text without spaces is cut so that words stay short.
_LONGEST_WORD = 256


def byte_symbols() -> dict[int, str]:
    """Map each byte to the printable character GPT-2 writes for it, in the order of its ids."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in set(printable)]
    symbols = {value: chr(value) for value in printable}
    return symbols | {value: chr(256 + rank) for rank, value in enumerate(others)}


_SYMBOL_OF_BYTE = byte_symbols()


class BPETokenizer(Tokenizer):
    """256 bytes, the tokens of the merges and the beginning-of-document token; knows every text."""

    name = "bpe"

    def __init__(self, merges: Iterable[tuple[int, int]]) -> None:
        """Take the merges in order of rank, as pairs of token ids; bytes come first, as in GPT-2.

        A merge whose result is already a token adds no new one.
        Raises TokenizerError if a merge uses a token that does not exist yet.
        """
        self.merges = list(merges)
        symbols = list(_SYMBOL_OF_BYTE.values())
        token_bytes = [bytes([value]) for value in _SYMBOL_OF_BYTE]
        vocabulary = {symbol: token for token, symbol in enumerate(symbols)}
        symbol_merges = []
        for rank, (left, right) in enumerate(self.merges):
            if not (0 <= left < len(symbols) and 0 <= right < len(symbols)):
                raise TokenizerError(
                    f"merge {rank} of the bpe tokenizer joins tokens {left} and {right}, but only "
                    f"{len(symbols)} exist by then: the tokenizer is damaged"
                )
            symbol_merges.append((symbols[left], symbols[right]))
            joined = symbols[left] + symbols[right]
            if joined not in vocabulary:
                vocabulary[joined] = len(symbols)
                symbols.append(joined)
                token_bytes.append(token_bytes[left] + token_bytes[right])
        super().__init__(token_bytes)
        self._library = library.Tokenizer(models.BPE(vocab=vocabulary, merges=symbol_merges))
        self._library.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=True
        )
        self._words = WordMemory(self._encode_words)

    @classmethod
    def train(cls, texts: Iterable[str], num_merges: int) -> BPETokenizer:
        """Learn up to `num_merges` tokens from the texts; fewer if no pair occurs twice."""
        learner = library.Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(rf"\S{{{_LONGEST_WORD}}}"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=256 + num_merges,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=list(_SYMBOL_OF_BYTE.values()),
        )
        learner.train_from_iterator((well_formed(text) for text in texts), trainer)
        pairs = json.loads(learner.to_str())["model"]["merges"]
        token_of = {symbol: token for token, symbol in enumerate(_SYMBOL_OF_BYTE.values())}
        merges = []
        for left, right in pairs:
            merges.append((token_of[left], token_of[right]))
            token_of.setdefault(left + right, len(token_of))
        return cls(merges)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of the text, int32 (n,)."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the tokens of each text; words that are new are encoded on all cores."""
        pieces = [self._pieces(well_formed(text)) for text in texts]
        tokens = self._encode_pieces(piece for of_text in pieces for piece in of_text)
        return [np.concatenate([next(tokens) for _ in of_text]) for of_text in pieces]

    def safe_cut(self, text: str) -> int:
        r"""Return the last position between a non-space character and a space or line end.

        GPT-2's pattern never joins the two, and looks ahead only inside white space, so that both
        sides are split as before. A text without such a place is cut at its end, which may cost a
        token.
        """
        return cut_between_words(text)

    def to_dict(self) -> dict[str, Any]:
        """Return name, the pattern that splits text, and the merges as pairs of token ids."""
        return {
            "name": self.name,
            "pattern": "gpt2",
            "merges": [list(pair) for pair in self.merges],
        }

    def __reduce__(self) -> tuple[type[BPETokenizer], tuple[list[tuple[int, int]]]]:
        """Pickle the merges alone, not the words remembered."""
        return BPETokenizer, (self.merges,)

    def _encode_pieces(self, pieces: Iterable[str]) -> Iterator[NDArray[np.int32]]:
        together: list[str] = []
        size = 0
        for piece in pieces:
            together.append(piece)
            size += len(piece)
            if size >= _TOGETHER:
                yield from self._words.encode_batch(together)
                together, size = [], 0
        yield from self._words.encode_batch(together)

    def _encode_words(self, words: Sequence[str]) -> Iterable[Sequence[int]]:
        encodings = self._library.encode_batch_fast(list(words), add_special_tokens=False)
        return (encoding.ids for encoding in encodings)

    def _pieces(self, text: str) -> list[str]:
        return pieces_between_words(text, _PIECE)
