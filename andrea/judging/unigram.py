"""How often each token stands in a text, and the loss of a model that knows no more than that.

For the hint that a run does not learn, and as the humblest baseline of an evaluation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from andrea.data.prepared import PreparedData, entropy
from andrea.errors import ArgumentError

from .chunks import Tokens, token_chunks

__all__ = ["Counts", "entropy", "frequency_loss", "unigram_counts", "unigram_entropy"]

Counts = NDArray[np.int64]


def unigram_counts(tokens: Tokens, vocab_size: int) -> Counts:
    """Count each token id: int64 (vocab_size,), in memory bounded for any number of tokens (n,).

    Raises:
        ArgumentError: an id is not below vocab_size.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for chunk in token_chunks(tokens):
        found = np.bincount(chunk, minlength=vocab_size)
        if len(found) > vocab_size:
            raise ArgumentError(f"token id {len(found) - 1} is outside {vocab_size} tokens")
        counts += found
    return counts


def unigram_entropy(tokens: Tokens, vocab_size: int) -> float:
    """Loss, in nats per token, of the best model that ignores what stands before a token.

    It is the entropy of the text's own token frequencies; a model that learns gets below it.

    Raises:
        ArgumentError: an id is not below vocab_size.
    """
    return entropy(unigram_counts(tokens, vocab_size))


def frequency_loss(data: PreparedData) -> float:
    """`unigram_entropy` of the training text; counted only where an older version prepared it."""
    if data.unigram_entropy is not None:
        return data.unigram_entropy
    return unigram_entropy(data.train, data.tokenizer.vocab_size)
