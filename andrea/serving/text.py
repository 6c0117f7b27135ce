"""One text that is being written: from logits to pieces of text, with the odds of each token.

Holds everything that belongs to one answer and not to the batch that it grows in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from andrea.sampling import Sampler, SamplingConfig
from andrea.stopping import StopFinder

if TYPE_CHECKING:
    from andrea.tokenizers import Tokenizer

Reason = Literal["stop", "length"]
_DEFAULTS = SamplingConfig()


@dataclass(frozen=True)
class Wish:
    """What a text is to be; `prompt` holds token ids, one at least.

    `stream` tells apart texts of one seed. alternatives: how many likeliest tokens to name beside
    each token, None: no odds at all. bias is added to logits; the penalties are taken from those of
    tokens that were written, once (presence) or as often as they were (frequency).
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingConfig = _DEFAULTS
    seed: int = 0
    stream: int = 0
    stop: tuple[str, ...] = ()
    alternatives: int | None = None
    bias: Mapping[int, float] = field(default_factory=dict)
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True)
class Odds:
    """A token that was written: where its text begins, in characters, and its log-probability.

    alternatives: the likeliest tokens at this place, as (token, log-probability), likeliest first.
    """

    token: int
    offset: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Piece:
    """The next part of a text; `reason` is why it ends here, if it does.

    num_tokens: all that were written for this text so far, shown or not.
    """

    text: str
    odds: tuple[Odds, ...]
    num_tokens: int
    reason: Reason | None = None


class GrowingText:
    """Picks the tokens of a text and turns them into pieces; it ends before a stop text, at
    max_tokens, or where the model begins a new document."""

    def __init__(self, wish: Wish, tokenizer: Tokenizer) -> None:
        self.wish = wish
        self._tokenizer = tokenizer
        self._sampler = Sampler(
            wish.sampling, tokenizer.vocab_size, seed=wish.seed, stream=wish.stream
        )
        self._sampler.observe(wish.prompt)
        self._decoder = tokenizer.streaming_decoder()
        self._finder = StopFinder(wish.stop, "")
        self._offset = 0  # characters decoded
        self._shown = 0  # characters given out
        self._num_tokens = 0
        self._waiting: deque[Odds] = deque()
        self._added: dict[int, float] = dict(wish.bias)
        self._written: set[int] = set()

    def grow(self, logits: NDArray[np.float32]) -> tuple[int, Piece]:
        """Pick a token by logits (V,); returns it with the text that may be shown now.

        Raises:
            StateError: a logit is not a number: the weights are damaged.
        """
        wish, new_document = self.wish, self._tokenizer.beginning_of_document
        token = self._sampler.sample(self._adjusted(logits))
        self._penalise(token)
        self._num_tokens += 1
        is_new_document = token == new_document
        if wish.alternatives is not None and not is_new_document:
            self._waiting.append(self._odds(token, logits, wish.alternatives))
        text = "" if is_new_document else self._decoder.push(token)
        reason: Reason | None = None
        if is_new_document:
            reason = "stop"
        elif self._num_tokens == wish.max_tokens:
            reason = "length"
        if reason is not None:
            text += self._decoder.finish()
        self._offset += len(text)
        shown, is_stopped = self._finder.push(text)
        if is_stopped:
            reason = "stop"
        elif reason is not None:
            shown += self._finder.finish()
        self._shown += len(shown)
        return token, Piece(shown, self._odds_shown(is_stopped, reason), self._num_tokens, reason)

    def _adjusted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self._added:
            return logits
        adjusted = logits.copy()
        adjusted[list(self._added)] += np.array(list(self._added.values()), dtype=np.float32)
        return adjusted

    def _penalise(self, token: int) -> None:
        penalty = self.wish.frequency_penalty
        if token not in self._written:
            penalty += self.wish.presence_penalty
            self._written.add(token)
        if penalty:
            self._added[token] = self._added.get(token, 0.0) - penalty

    def _odds(self, token: int, logits: NDArray[np.float32], alternatives: int) -> Odds:
        """By the model alone: before bias, penalties and temperature."""
        scores = logits.astype(np.float64)
        scores -= scores.max()
        scores -= np.log(np.exp(scores).sum())
        best = np.argsort(-scores, kind="stable")[:alternatives]
        likeliest = tuple((int(one), float(scores[one])) for one in best)
        return Odds(token, self._offset, float(scores[token]), likeliest)

    def _odds_shown(self, is_stopped: bool, reason: Reason | None) -> tuple[Odds, ...]:
        """Of tokens whose text has begun to be shown; what follows a stop text is never told."""
        told = []
        is_whole = reason is not None and not is_stopped
        while self._waiting and (is_whole or self._waiting[0].offset < self._shown):
            told.append(self._waiting.popleft())
        return tuple(told)
