"""The result of preparing a text, for the training loop and for the plan shown to the user."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from andrea.data.leakage import Repetition
from andrea.data.token_file import TokenArray
from andrea.errors import ArgumentError, DataError
from andrea.tokenizers import Tokenizer


def bits_per_byte(nats_per_token: float, num_tokens: int, num_bytes: int) -> float:
    """Convert a loss: nats per token x tokens / (ln 2 x bytes).

    It compares models of different tokenizers. Marker tokens cost nats and stand for no bytes.
    Raises ArgumentError if there are no bytes.
    """
    if num_bytes < 1:
        raise ArgumentError(f"num_bytes is {num_bytes}: bits per byte need a text")
    return nats_per_token * num_tokens / (math.log(2) * num_bytes)


def entropy(counts: NDArray[np.int64]) -> float:
    """Return the entropy, in nats, of a distribution given by counts, (n,); 0 of no counts."""
    seen = counts[counts > 0].astype(np.float64)
    total = seen.sum()
    if not total:
        return 0.0
    # ln N - (1/N) sum n ln n: no tiny shares are formed.
    return max(float(np.log(total) - (seen * np.log(seen)).sum() / total), 0.0)


@dataclass(frozen=True)
class PreparedData:
    """A tokenized text; `train` and `validation` are read-only memory maps, (n,), uint8/16/32.

    `train_bytes` and `validation_bytes` are UTF-8 bytes of the text behind them. `documents` counts
    all, `validation_documents` those for validation: 0 if the tail of the text is. `skipped` says
    what was passed over and how often, `notes` are sentences for the user. `fingerprint` is the
    same for the same raw bytes, settings and tokenizer. `cached` tells whether the tokens came
    from the cache, `validation_wanted` whether an empty validation text is an error.
    `unigram_entropy` is that of the training tokens, nats per token; it and `repetition` are None
    in cache entries of earlier versions.
    """

    train: TokenArray
    validation: TokenArray
    tokenizer: Tokenizer
    train_bytes: int
    validation_bytes: int
    documents: int
    validation_documents: int
    skipped: Mapping[str, int]
    notes: tuple[str, ...]
    fingerprint: str
    cached: bool
    validation_wanted: bool = True
    unigram_entropy: float | None = None
    repetition: Repetition | None = None

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the whole text."""
        return self.train_bytes + self.validation_bytes

    def require(self, block_size: int) -> None:
        """Raise DataError unless a window of `block_size` tokens and a validation token fit in."""
        have, need = len(self.train), block_size + 1
        split = f"{self.train_bytes:,} bytes to train on, {self.validation_bytes:,} for validation"
        if have < need:
            smaller = f" or --block-size {have - 1}" if have > 1 else ""
            raise DataError(
                f"the text is too short ({split}): it has {have:,} training tokens, a context of "
                f"{block_size:,} needs {need:,}; use a longer text{smaller}"
            )
        if self.validation_wanted and len(self.validation) < 2:
            raise DataError(
                f"the text is too short ({split}): it has {len(self.validation)} validation tokens "
                "and needs 2; use a longer text"
            )

    def bits_per_byte(self, nats_per_token: float) -> float:
        """Convert a validation loss in nats per token to bits per byte of the validation text."""
        return bits_per_byte(nats_per_token, len(self.validation), self.validation_bytes)
