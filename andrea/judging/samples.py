"""Texts that a model writes on its own, and how much of them it has by heart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from andrea.writing import generate_texts

from .chunks import Tokens
from .glimpse import SAMPLING, tokens_of
from .memorisation import Overlap, Told, longest_overlaps

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

_BYTES = 600
# What real texts share by chance is as long as that of unseen text; twice of it is more.
_SUSPICIOUS = 2.0
# Shorter stretches may be common by chance.
_TELLING_BYTES = 50


@dataclass(frozen=True)
class Memorised:
    """Overlaps of samples with the training text, and of as much unseen text: the yardstick.

    samples, unseen: one overlap for each text, of texts of equal sizes. known: how many of the
    unseen ones, if of 50 bytes at least, stand as a whole in the training text: they are none.
    """

    samples: tuple[Overlap, ...]
    unseen: tuple[Overlap, ...]
    known: int = 0

    @property
    def longest(self) -> Overlap:
        """The longest overlap of all samples."""
        return max(self.samples, key=lambda overlap: overlap.num_bytes)

    @property
    def usual(self) -> int:
        """Bytes of the longest overlap of the unseen text; 0 without any."""
        return max((overlap.num_bytes for overlap in self.unseen), default=0)

    @property
    def is_suspicious(self) -> bool:
        """Whether the longest overlap of the samples is more than twice that of unseen text."""
        return bool(self.unseen) and self.longest.num_bytes > _SUSPICIOUS * self.usual


def write_samples(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    num_samples: int,
    tokens_per_byte: float,
    seed: int = 0,
    progress: Told | None = None,
) -> list[str]:
    """Let the model write texts of some 600 bytes, at temperature 0.8 and top_p 0.95.

    progress hears pieces of text and how many there may be.
    """
    max_tokens = tokens_of(_BYTES, tokens_per_byte)
    texts = [""] * num_samples
    pieces = generate_texts(
        model,
        tokenizer,
        prompt,
        num_samples=num_samples,
        max_tokens=max_tokens,
        sampling=SAMPLING,
        seed=seed,
    )
    done = 0
    for number, piece in pieces:
        texts[number] += piece
        done += bool(piece)
        if progress is not None:
            progress(done, num_samples * max_tokens)
    return texts


def unseen_texts(texts: Sequence[str], unseen: Tokens, tokenizer: Tokenizer) -> list[str]:
    """Stretches of a text, (n,) tokens, spread evenly over it: one as long as each of `texts`."""
    stretches = []
    for index, text in enumerate(texts):
        # A token is a byte at least, but for those that begin documents.
        wanted = len(text.encode("utf-8", "replace"))
        start = max(len(unseen) - wanted, 0) * index // max(len(texts) - 1, 1)
        stretch = tokenizer.decode_bytes(unseen[start : start + 2 * wanted])
        stretches.append(stretch[:wanted].decode("utf-8", "ignore"))
    return stretches


def memorised(
    texts: Sequence[str],
    unseen: Tokens | None,
    training: Tokens,
    tokenizer: Tokenizer,
    progress: Told | None = None,
) -> Memorised:
    """Search the training text for what it shares with the samples, and with unseen text."""
    others = [] if unseen is None else unseen_texts(texts, unseen, tokenizer)
    found = longest_overlaps([*texts, *others], training, tokenizer, progress)
    samples, unseen_ones = found[: len(texts)], found[len(texts) :]
    sizes = [len(text.encode("utf-8")) for text in others]
    known = sum(
        overlap.num_bytes == size >= _TELLING_BYTES
        for overlap, size in zip(unseen_ones, sizes, strict=True)
    )
    return Memorised(tuple(samples), tuple(unseen_ones), known)
