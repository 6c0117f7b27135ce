"""Texts that a model writes on its own, and how much of them it has by heart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from andrea.sampling import SamplingConfig
from andrea.writing import generate_texts

from .chunks import Tokens
from .memorisation import Overlap, Told, longest_overlaps

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

_BYTES = 600
_FEWEST_TOKENS = 16
_SAMPLING = SamplingConfig(temperature=0.8, top_p=0.95)
# What real texts share by chance is as long as that of unseen text; twice of it is more.
_SUSPICIOUS = 2.0


@dataclass(frozen=True)
class Memorised:
    """Overlaps of samples with the training text, and of as much unseen text: the yardstick.

    samples, unseen: one overlap for each text, of texts of equal sizes.
    """

    samples: tuple[Overlap, ...]
    unseen: tuple[Overlap, ...]

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
    max_tokens = max(round(_BYTES * tokens_per_byte), _FEWEST_TOKENS)
    texts = [""] * num_samples
    pieces = generate_texts(
        model,
        tokenizer,
        prompt,
        num_samples=num_samples,
        max_tokens=max_tokens,
        sampling=_SAMPLING,
        seed=seed,
    )
    for done, (number, piece) in enumerate(pieces):
        texts[number] += piece
        if progress is not None:
            progress(done, num_samples * max_tokens)
    return texts


def unseen_texts(texts: Sequence[str], unseen: Tokens, tokenizer: Tokenizer) -> list[str]:
    """Stretches of a text, (n,) tokens, spread evenly over it: one as long as each of `texts`."""
    starts = np.linspace(0, len(unseen), len(texts), endpoint=False, dtype=np.int64)
    stretches = []
    for start, text in zip(starts.tolist(), texts, strict=True):
        # A token is a byte at least, but for those that begin documents.
        wanted = text.encode("utf-8", "replace")
        stretch = tokenizer.decode_bytes(unseen[start : start + 2 * len(wanted)])
        stretches.append(stretch[: len(wanted)].decode("utf-8", "ignore"))
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
    return Memorised(tuple(found[: len(texts)]), tuple(found[len(texts) :]))
