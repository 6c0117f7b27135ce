"""A token file read from one end to the other, in bounded memory, for all who count in it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from andrea.data.token_file import Tokens, release_pages

__all__ = ["Tokens", "token_chunks"]

_CHUNK = 1 << 20


def token_chunks(tokens: Tokens, overlap: int = 0, size: int = _CHUNK) -> Iterator[Tokens]:
    """Yield the tokens, (n,), in arrays of at most size + overlap: each begins with the last
    `overlap` tokens of the one before it, so that every stretch of overlap + 1 lies in one.

    The arrays are copies. Pages of a mapped file are given back once they were read.
    """
    for start in range(0, len(tokens), size):
        yield np.array(tokens[max(start - overlap, 0) : start + size])
        release_pages(tokens)
