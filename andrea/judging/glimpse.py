"""A glance at what a model in training writes: one short text of a fixed prompt, with its score."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from andrea.errors import TokenizerError
from andrea.sampling import SamplingConfig
from andrea.writing import generate_text

from .coherence import Coherence, coherence, known_words

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

SAMPLING = SamplingConfig(temperature=0.8, top_p=0.95)
"""How a model is asked to write where nobody says how."""

# A glance: so many bytes of text, and of any text at least so many tokens.
_BYTES = 320
_FEWEST_TOKENS = 16


def tokens_of(num_bytes: int, tokens_per_byte: float) -> int:
    """How many tokens make a text of some num_bytes bytes; 16 at least."""
    return max(round(num_bytes * tokens_per_byte), _FEWEST_TOKENS)


def opening(tokenizer: Tokenizer, documents: int | None) -> str:
    """The prompt that asks for a fresh start.

    Empty, the start of a document, where the model saw many of them; a new line where the text was
    one document, whose start the model saw once.
    """
    if documents is None or documents > 1:
        return ""
    try:
        tokenizer.encode("\n")
    except TokenizerError:
        return ""
    return "\n"


@dataclass(frozen=True)
class Sample:
    """A text that a model wrote; `text` begins with the prompt, if one was named.

    coherence: of what the model wrote. is_whole: neither time nor a stop cut it short, so that it
    is the same on every machine.
    """

    text: str
    coherence: Coherence
    is_whole: bool


class Glimpse:
    """Writes the sample of a run: each time the same prompt and seed, so that one sees it change.

    prompt None: a fresh start. max_tokens None: as many as make some 320 bytes. max_seconds None:
    however long it takes, as a gate needs it, whose verdict must not depend on the machine's speed.
    is_stopped is asked after each piece of text.
    """

    def __init__(
        self,
        model: GPT,
        data: PreparedData,
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        seed: int = 0,
        max_seconds: float | None = 3.0,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._model = model
        self._data = data
        self._prompt = prompt
        self._seed = seed
        self._max_seconds = max_seconds
        self._is_stopped = is_stopped
        tokens_per_byte = len(data.train) / max(data.train_bytes, 1)
        usual = tokens_of(_BYTES, tokens_per_byte)
        self._max_tokens = usual if max_tokens is None else max_tokens

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the training text, as far as they are read; found at the first use."""
        return known_words(self._data)

    def write(self) -> Sample:
        """Let the model write, at temperature 0.8 and top_p 0.95.

        Raises:
            TokenizerError: the tokenizer does not know a character of the prompt.
        """
        tokenizer, prompt = self._data.tokenizer, self._prompt
        if prompt is None:
            prompt = opening(tokenizer, self._data.documents)
        pieces = generate_text(
            self._model,
            tokenizer,
            prompt,
            max_tokens=self._max_tokens,
            sampling=SAMPLING,
            seed=self._seed,
        )
        written, is_whole, start = "", True, time.monotonic()
        for piece in pieces:
            written += piece
            if self._is_stopped() or self._is_late(start):
                is_whole = False
                break
        return Sample((self._prompt or "") + written, coherence(written, self.words), is_whole)

    def _is_late(self, start: float) -> bool:
        return self._max_seconds is not None and time.monotonic() - start > self._max_seconds
