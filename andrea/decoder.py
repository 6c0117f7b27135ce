"""Decoder: sequences of one model that grow token by token, with cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._library import check, ffi, lib
from .arguments import integer
from .arrays import float32_pointer, int32_pointer, token_array
from .config import MOST_SEQUENCES
from .errors import ArgumentError, DTypeError


class Decoder:
    """Sequences of one model that grow token by token; made by `GPT.decoder`.

    A sequence that would pass block_size keeps its last block_size // 2 tokens, reads them again
    from position 0, and goes on.
    """

    def __init__(self, model: Any, vocab_size: int, batch_size: int) -> None:
        self._batch_size = integer("batch_size", batch_size, 1, MOST_SEQUENCES)
        handle = ffi.new("mg_decoder **")
        check(lib.mg_decoder_create(model, self._batch_size, handle))
        self._handle = ffi.gc(handle[0], lib.mg_decoder_free)
        self._logits = np.zeros((self._batch_size, vocab_size), dtype=np.float32)

    @property
    def batch_size(self) -> int:
        """The number of sequences, B."""
        return self._batch_size

    @property
    def lengths(self) -> list[int]:
        """Tokens that each sequence attends to now."""
        return [int(lib.mg_decoder_length(self._handle, s)) for s in range(self._batch_size)]

    def feed(self, tokens: Sequence[Any]) -> NDArray[np.float32]:
        """Append tokens to the sequences; returns the logits after each one's last token.

        Args:
            tokens: B lists or arrays of token ids, which may be empty.

        Returns:
            (B, V) float32, a copy; the row of a sequence that got nothing is as before.

        Raises:
            ArgumentError: there are not B lists, or an id is outside the vocabulary.
            DTypeError: `tokens` is no sequence, or holds something else than integers.
        """
        if not isinstance(tokens, Sequence | np.ndarray):
            raise DTypeError(f"tokens must be a sequence of sequences, got {type(tokens).__name__}")
        if len(tokens) != self._batch_size:
            raise ArgumentError(f"tokens must hold {self._batch_size} sequences, got {len(tokens)}")
        arrays = [token_array(f"tokens[{s}]", new, ndim=1) for s, new in enumerate(tokens)]
        counts = np.array([array.size for array in arrays], dtype=np.int32)
        joined = np.concatenate(arrays)
        check(
            lib.mg_decoder_feed(
                self._handle,
                int32_pointer(joined),
                int32_pointer(counts),
                float32_pointer(self._logits),
            )
        )
        return self._logits.copy()

    def forget(self, sequence: int) -> None:
        """Empty one sequence: its place is for another one, and the others go on.

        Args:
            sequence: which of the B sequences, from 0 on.

        Raises:
            ArgumentError: there is no such sequence.
            DTypeError: `sequence` is no integer.
        """
        sequence = integer("sequence", sequence, 0, self._batch_size - 1)
        check(lib.mg_decoder_forget(self._handle, sequence))
        self._logits[sequence] = 0

    def reset(self) -> None:
        """Forget all tokens."""
        check(lib.mg_decoder_reset(self._handle))
        self._logits[:] = 0
