"""A text cut into passages that are predicted one by one: windows that overlap by half.

A window of block_size tokens predicts the second half of itself; so each token is predicted from
half a window at least. The first window of the text predicts all of itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from andrea.data.token_file import Tokens, release_pages
from andrea.errors import DataError

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

Reals = NDArray[np.float64]
Told = Callable[[int, int], None]

# More neighbours than that are summed: for intervals 200 are as good as all.
MAX_BLOCKS = 200

_IGNORED = -1
_ENOUGH_PASSAGES = 256
_ENOUGH_TOKENS = 1 << 16


class Passage(NamedTuple):
    """Tokens `first` to `end` - 1 of a text, predicted by a window that begins at `window`."""

    window: int
    first: int
    end: int


class Passages:
    """The passages of a text of num_tokens tokens, side by side: all but its first token.

    Of more than max_passages (0: no limit) those that are spread evenly; num_all counts all.
    """

    def __init__(self, num_tokens: int, block_size: int, max_passages: int = 0) -> None:
        """Plan the passages; DataError where the text has no token to predict."""
        if num_tokens < 2:
            raise DataError(
                f"the text has {num_tokens} tokens, and 2 are needed to predict one: "
                "give a longer text"
            )
        self.block_size = block_size
        self.stride = max(block_size // 2, 1)
        self._num_tokens = num_tokens
        beyond_first = max(num_tokens - 1 - block_size, 0)
        self.num_all = 1 + -(-beyond_first // self.stride)
        self._num_chosen = min(self.num_all, max_passages or self.num_all)

    def __len__(self) -> int:
        return self._num_chosen

    def __iter__(self) -> Iterator[Passage]:
        for index in range(self._num_chosen):
            number = index * self.num_all // self._num_chosen
            end = min(1 + self.block_size + number * self.stride, self._num_tokens)
            first = 1 if number == 0 else 1 + self.block_size + (number - 1) * self.stride
            yield Passage(max(end - 1 - self.block_size, 0), first, end)


def enough_passages(block_size: int) -> int:
    """How many tell enough of a long text: 256, or those that hold 65,536 tokens if more."""
    return max(_ENOUGH_PASSAGES, _ENOUGH_TOKENS // max(block_size // 2, 1))


@dataclass(frozen=True)
class Losses:
    """What a model pays for a text: nats, and for how many tokens and bytes that is.

    All (S,), one for each block of neighbouring passages. Tokens that stand for no bytes, those
    that begin documents, cost nats all the same.
    """

    nats: Reals
    tokens: NDArray[np.int64]
    num_bytes: NDArray[np.int64]

    @property
    def loss(self) -> float:
        """Mean loss in nats per token."""
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the text (UTF-8), whatever the tokens are."""
        return float(self.nats.sum() / (np.log(2) * self.num_bytes.sum()))


def measure(
    passages: Passages,
    tokens: Tokens,
    tokenizer: Tokenizer,
    nats_of: Callable[[Tokens, Passage], float],
    progress: Told | None = None,
) -> Losses:
    """Let nats_of(tokens, passage) judge each passage; `progress` hears done and all.

    However many passages there are, they are summed in at most 200 blocks.
    """
    count = len(passages)
    blocks = min(count, MAX_BLOCKS)
    nats = np.zeros(blocks)
    sizes = np.zeros((2, blocks), dtype=np.int64)
    for index, passage in enumerate(passages):
        block = ((index + 1) * blocks - 1) // count
        stretch = tokens[passage.first : passage.end]
        nats[block] += nats_of(tokens, passage)
        sizes[:, block] += len(stretch), tokenizer.num_bytes(stretch)
        release_pages(tokens)
        if progress is not None:
            progress(index + 1, count)
    return Losses(nats, sizes[0], sizes[1])


def model_nats(model: GPT) -> Callable[[Tokens, Passage], float]:
    """How a GPT judges a passage: the engine's own loss, as in training."""

    def judge(tokens: Tokens, passage: Passage) -> float:
        window = np.array(tokens[passage.window : passage.end], dtype=np.int32)
        targets = window[1:].copy()
        targets[: passage.first - 1 - passage.window] = _IGNORED
        loss = model.forward(window[None, :-1], targets[None])
        return loss * (passage.end - passage.first)

    return judge
