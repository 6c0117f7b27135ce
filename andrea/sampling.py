"""From logits to the next token: temperature, top-k, top-p, min-p, repetition penalty.

`Sampler` picks one token; `generate` and `generate_batch` run a model's decoder with it. Text in
and text out are in writing.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .config import MOST_SEQUENCES
from .errors import ArgumentError, StateError
from .stopping import StopFinder

if TYPE_CHECKING:
    from .model import GPT

_NOTHING = np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class SamplingConfig:
    """How a token is picked; 0 or 1 switches a part off.

    Applied in this order: repetition penalty, temperature, top_k, top_p, min_p.

    Raises:
        ArgumentError: a value is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, (is_fine, expected) in _RANGES.items():
            value = getattr(self, name)
            is_number = isinstance(value, (int, float, np.number)) and math.isfinite(value)
            _require(is_number and is_fine(value), name, value, expected)


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda value: value >= 0, "0 or more"),
    "top_k": (lambda value: _is_integer(value) and value >= 0, "a whole number, 0 or more"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda value: value > 0, "above 0 (1 is no penalty)"),
}


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer))


def _require(is_fine: bool, name: str, value: object, expected: str) -> None:
    if not is_fine:
        raise ArgumentError(f"{name} must be {expected}, got {value!r}")


class Sampler:
    """Picks tokens from logits; equal seed, stream and calls give equal tokens on every machine.

    `stream` tells apart the samples of one batch: stream i is the same for any number of samples.

    Raises:
        ArgumentError: seed or stream is negative or wider than 64 bits.
    """

    def __init__(
        self, config: SamplingConfig, vocab_size: int, *, seed: int = 0, stream: int = 0
    ) -> None:
        for name, value in (("seed", seed), ("stream", stream)):
            is_fine = _is_integer(value) and 0 <= value < 2**64
            _require(is_fine, name, value, "a whole number between 0 and 2**64 - 1")
        self.config = config
        key = int(seed) + (int(stream) << 64)
        self._random = np.random.Generator(np.random.Philox(key=key))
        self._seen = np.zeros(vocab_size, dtype=bool)

    def observe(self, tokens: Sequence[int] | NDArray[np.integer]) -> None:
        """Add tokens to the history that the repetition penalty looks at."""
        self._seen[np.asarray(tokens)] = True

    def sample(self, logits: NDArray[np.floating]) -> int:
        """Pick a token from logits (V,) and add it to the history.

        Raises:
            StateError: a logit is not a number, which means that the weights are damaged.
        """
        config = self.config
        scores = np.asarray(logits, dtype=np.float64)
        if not np.isfinite(scores.max()):
            raise StateError("the model's logits are not finite: its weights are damaged")
        if config.repetition_penalty != 1.0:
            scores = _penalise(scores, self._seen, config.repetition_penalty)
        if config.temperature == 0:
            token = int(scores.argmax())
        else:
            # The largest becomes 0 first: with a tiny temperature, weights underflow, not overflow.
            with np.errstate(over="ignore"):
                scores = (scores - scores.max()) / config.temperature
            candidates, weights = _candidates(scores, config)
            cumulative = weights.cumsum()
            drawn = self._random.random() * cumulative[-1]
            position = int(cumulative.searchsorted(drawn, side="right"))
            token = int(candidates[min(position, len(candidates) - 1)])
        self._seen[token] = True
        return token


def _penalise(
    scores: NDArray[np.float64], seen: NDArray[np.bool_], penalty: float
) -> NDArray[np.float64]:
    """Make seen tokens less likely (Keskar et al. 2019, CTRL)."""
    # However far a penalty drives them apart, scores stay numbers that can be compared.
    with np.errstate(over="ignore"):
        penalised = np.where(scores > 0, scores / penalty, scores * penalty)
    return np.where(seen, np.nan_to_num(penalised), scores)


def _candidates(
    scores: NDArray[np.float64], config: SamplingConfig
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Tokens that may be drawn, and their weights, from scores whose largest is 0."""
    tokens = np.arange(len(scores))
    # Sorted stably, so that of equally likely tokens the lower ids stay.
    if config.top_p < 1 or 0 < config.top_k < len(scores):
        tokens = np.argsort(-scores, kind="stable")
    if config.top_k:
        tokens = tokens[: config.top_k]
    weights = np.exp(scores[tokens])
    if config.top_p < 1:
        # The smallest set of most likely tokens that holds top_p (Holtzman et al. 2020).
        cumulative = weights.cumsum()
        kept = int(cumulative.searchsorted(config.top_p * cumulative[-1])) + 1
        tokens, weights = tokens[:kept], weights[:kept]
    if config.min_p > 0:
        kept_mask = weights >= config.min_p * weights.max()
        tokens, weights = tokens[kept_mask], weights[kept_mask]
    return tokens, weights


class Generation:
    """Sequences that grow together from one prompt, each with its own stream of random numbers.

    Raises:
        ArgumentError: the prompt is empty or holds an id outside the vocabulary, or num_samples is
            out of its range.
    """

    def __init__(
        self,
        model: GPT,
        prompt_tokens: Sequence[int] | NDArray[np.integer],
        *,
        num_samples: int,
        sampling: SamplingConfig,
        seed: int,
    ) -> None:
        is_fine = _is_integer(num_samples) and 1 <= num_samples <= MOST_SEQUENCES
        _require(is_fine, "num_samples", num_samples, f"between 1 and {MOST_SEQUENCES}")
        vocab_size = model.config.vocab_size
        prompt = _checked_prompt(prompt_tokens, vocab_size)
        # First: where memory is too small, it is the decoder that tells.
        self._decoder = model.decoder(num_samples)
        self._samplers = [
            Sampler(sampling, vocab_size, seed=seed, stream=index) for index in range(num_samples)
        ]
        for sampler in self._samplers:
            sampler.observe(prompt)
        self._pending = [prompt] * num_samples
        self._active = set(range(num_samples))

    @property
    def is_active(self) -> bool:
        """Whether any sequence still grows."""
        return bool(self._active)

    def advance(self) -> list[tuple[int, int]]:
        """Pick the next token of every sequence that grows: (sequence, token) pairs."""
        logits = self._decoder.feed(self._pending)
        picked = [
            (index, self._samplers[index].sample(logits[index])) for index in sorted(self._active)
        ]
        for index, token in picked:
            self._pending[index] = np.array([token], dtype=np.int32)
        return picked

    def end(self, index: int) -> None:
        """Let a sequence grow no further."""
        self._active.discard(index)
        self._pending[index] = _NOTHING


def _checked_prompt(
    tokens: Sequence[int] | NDArray[np.integer], vocab_size: int
) -> NDArray[np.int32]:
    prompt = np.asarray(tokens)
    if prompt.size == 0:
        raise ArgumentError(
            "prompt_tokens is empty; start from the tokenizer's beginning_of_document"
        )
    if prompt.ndim != 1 or not np.issubdtype(prompt.dtype, np.integer):
        raise ArgumentError(
            f"prompt_tokens must be one row of token ids, got {prompt.dtype} {prompt.shape}"
        )
    if prompt.min() < 0 or prompt.max() >= vocab_size:
        worst = prompt.min() if prompt.min() < 0 else prompt.max()
        raise ArgumentError(f"prompt token {worst} is outside the vocabulary of {vocab_size}")
    return prompt.astype(np.int32)


def _stop_sequences(stop: Iterable[int | Sequence[int]]) -> list[tuple[int, ...]]:
    return [(int(s),) if isinstance(s, (int, np.integer)) else tuple(s) for s in stop]


def generate_batch(
    model: GPT,
    prompt_tokens: Sequence[int] | NDArray[np.integer],
    *,
    num_samples: int,
    max_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: Iterable[int | Sequence[int]] = (),
) -> Iterator[tuple[int, int]]:
    """Continue a prompt num_samples times in one batch: (sample, token) pairs, interleaved.

    Sample i is the same for any num_samples. `stop` holds token ids or sequences of them; a sample
    ends before one, and none is ever part of the output.

    Raises:
        ArgumentError: the prompt is empty, an id is outside the vocabulary, or a setting is out of
            its range.
    """
    sampling = SamplingConfig(temperature, top_k, top_p, min_p, repetition_penalty)
    _require(_is_integer(max_tokens) and max_tokens >= 0, "max_tokens", max_tokens, "0 or more")
    stops = _stop_sequences(stop)
    generation = Generation(
        model, prompt_tokens, num_samples=num_samples, sampling=sampling, seed=seed
    )

    def run() -> Iterator[tuple[int, int]]:
        finders = [StopFinder(stops, ()) for _ in range(num_samples)]
        for round_number in range(max_tokens):
            if not generation.is_active:
                return
            for index, token in generation.advance():
                shown, is_stopped = finders[index].push((token,))
                if is_stopped:
                    generation.end(index)
                elif round_number == max_tokens - 1:
                    shown += finders[index].finish()
                for item in shown:
                    yield index, item

    return run()


def generate(
    model: GPT,
    prompt_tokens: Sequence[int] | NDArray[np.integer],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    stop: Iterable[int | Sequence[int]] = (),
) -> Iterator[int]:
    """Continue a prompt, token by token; the settings and errors are those of generate_batch."""
    pairs = generate_batch(
        model,
        prompt_tokens,
        num_samples=1,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
    )
    return (token for _, token in pairs)
