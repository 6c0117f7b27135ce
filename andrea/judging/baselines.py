"""What others make of the same text: two compressors, and two models that count.

The compressors know nothing before they begin; the models have read the training text.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from andrea.errors import ArgumentError

from .chunks import Tokens, token_chunks
from .ngram import KneserNey
from .passages import Passage
from .unigram import Counts

if TYPE_CHECKING:
    from andrea.tokenizers import Tokenizer

# xz -9 takes a second for each megabyte or two.
MAX_COMPRESSED_BYTES = 1 << 23
_SMALLEST_DICTIONARY = 4096
_LARGEST_DICTIONARY = 1 << 26  # of xz -9


def beginning_of_text(
    tokens: Tokens, tokenizer: Tokenizer, max_bytes: int = MAX_COMPRESSED_BYTES
) -> bytes:
    """The bytes that the tokens stand for, the first max_bytes of them."""
    text = bytearray()
    for chunk in token_chunks(tokens, size=1 << 16):
        text += tokenizer.decode_bytes(chunk)
        if len(text) >= max_bytes:
            break
    return bytes(text[:max_bytes])


def gzip_bits_per_byte(text: bytes) -> float:
    """Bits that `gzip -9` needs for each byte, its header included; ArgumentError of no text."""
    return _bits_per_byte(text, lambda: gzip.compress(text, 9, mtime=0))


def xz_bits_per_byte(text: bytes) -> float:
    """Bits that `xz -9` needs for each byte, its header included; ArgumentError of no text.

    Its dictionary is as large as the text and no larger: that changes no match, but memory.
    """
    dictionary = min(max(len(text), _SMALLEST_DICTIONARY), _LARGEST_DICTIONARY)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": dictionary}]
    return _bits_per_byte(text, lambda: lzma.compress(text, filters=filters))


def _bits_per_byte(text: bytes, compress: Callable[[], bytes]) -> float:
    if not text:
        raise ArgumentError("bits per byte need a text")
    return 8 * len(compress()) / len(text)


def unigram_nats(counts: Counts) -> Callable[[Tokens, Passage], float]:
    """How often each token stands in the training text, and once more (Laplace): -ln p."""
    nats = np.log(counts.sum() + len(counts)) - np.log(counts + 1.0)

    def judge(tokens: Tokens, passage: Passage) -> float:
        return float(nats[tokens[passage.first : passage.end]].sum())

    return judge


def ngram_nats(model: KneserNey) -> Callable[[Tokens, Passage], float]:
    """The n-gram model with the tokens before a passage as context, however windows lie: -ln p."""

    def judge(tokens: Tokens, passage: Passage) -> float:
        start = max(passage.first - model.order + 1, 0)
        return float(model.nats(tokens[start : passage.end], passage.first - start).sum())

    return judge
