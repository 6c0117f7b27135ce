"""The tokenizer interface: text to token ids and back, for training, sampling and checkpoints.

A tokenizer is a table of byte strings, one per token, plus a way to encode; the rest follows
from the table.
"""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from andrea.errors import TokenizerError

# So few are decoded one by one; of more, so many at a time.
_FEW_TOKENS = 64
_GATHERED_TOKENS = 1 << 16


def well_formed(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class Tokenizer(ABC):
    """Maps text to token ids below `vocab_size` and back; one marks a document's start, in most
    kinds the last."""

    name: ClassVar[str]

    def __init__(
        self, token_bytes: Sequence[bytes], beginning_of_document: int | None = None
    ) -> None:
        """Take the UTF-8 bytes of each token, and which of them marks a document's start; None: one
        that is added after them."""
        self._token_bytes = [*token_bytes, *([b""] if beginning_of_document is None else [])]
        self._token_lengths = np.array([len(data) for data in self._token_bytes], dtype=np.int64)
        self._all_bytes = np.frombuffer(b"".join(self._token_bytes), dtype=np.uint8)
        self._token_starts = np.cumsum(self._token_lengths) - self._token_lengths
        self.vocab_size = len(self._token_bytes)
        last = self.vocab_size - 1
        self.beginning_of_document = (
            last if beginning_of_document is None else beginning_of_document
        )

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of the text, int32 (n,), without the beginning-of-document token.

        Lone surrogates are read as U+FFFD. Raises TokenizerError if a character has no token.
        """

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the tokens of each text, as `encode` would."""
        return [self.encode(text) for text in texts]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything `tokenizer_from_dict` needs, as JSON values; "name" among them."""

    def safe_cut(self, text: str) -> int:
        """Return the last position where cutting the text changes no token, whatever follows it."""
        return len(text)

    def decode_bytes(self, tokens: ArrayLike) -> bytes:
        """Return the bytes the tokens stand for; the beginning-of-document token stands for none.

        Raises TokenizerError if an id is not an integer in [0, vocab_size).
        """
        ids = self._checked(tokens)
        if len(ids) <= _FEW_TOKENS:
            return b"".join([self._token_bytes[token] for token in ids.tolist()])
        parts = range(0, len(ids), _GATHERED_TOKENS)
        return b"".join([self._gather(ids[at : at + _GATHERED_TOKENS]) for at in parts])

    def token_table(self) -> list[bytes]:
        """Return the bytes of every token, by id."""
        return list(self._token_bytes)

    def _gather(self, ids: NDArray[np.int64]) -> bytes:
        """Decode with NumPy: the table's bytes at starts of tokens and what follows them."""
        lengths = self._token_lengths[ids]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1])
        places += np.repeat(self._token_starts[ids] - (ends - lengths), lengths)
        return self._all_bytes[places].tobytes()

    def decode(self, tokens: ArrayLike) -> str:
        """Return the text of the tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def num_bytes(self, tokens: ArrayLike) -> int:
        """Return how many bytes the tokens stand for."""
        return int(self._token_lengths[self._checked(tokens)].sum())

    def streaming_decoder(self) -> StreamingDecoder:
        """Return a decoder that gives out text while tokens still arrive."""
        return StreamingDecoder(self)

    def describe(self) -> str:
        """Return name and size for people: "char, 66 tokens"."""
        return f"{self.name}, {self.vocab_size:,} tokens"

    def _checked(self, tokens: ArrayLike) -> NDArray[np.int64]:
        ids = np.asarray(tokens).reshape(-1)
        if ids.size == 0:
            return np.zeros(0, dtype=np.int64)
        if not np.issubdtype(ids.dtype, np.integer):
            raise TokenizerError(f"token ids must be integers, not {ids.dtype}")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.vocab_size:
            raise TokenizerError(
                f"token id {low if low < 0 else high} is outside the {self.name} tokenizer's "
                f"{self.vocab_size} tokens: do model and tokenizer belong together?"
            )
        return ids.astype(np.int64)

    def __eq__(self, other: object) -> bool:
        """Tell whether both encode every text alike."""
        return isinstance(other, Tokenizer) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        """Hash by kind and size, which equal tokenizers share."""
        return hash((self.name, self.vocab_size))

    def __repr__(self) -> str:
        """Show kind and size."""
        return f"<{type(self).__name__} {self.describe()}>"


class StreamingDecoder:
    """Turns arriving tokens into text as soon as whole characters are there.

    All texts of `push` and `finish` joined equal `Tokenizer.decode` of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Start an empty text."""
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: int | Iterable[int]) -> str:
        """Take one token or several and return the text they complete, often one character."""
        ids = tokens if isinstance(tokens, int | np.integer) else list(tokens)
        return self._utf8.decode(self._tokenizer.decode_bytes(ids))

    def finish(self) -> str:
        """Return what is left, U+FFFD for an unfinished character, and start a new text."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest
