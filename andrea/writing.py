"""Text in, text out: a model and its tokenizer continue a prompt, streamed.

For the CLI, and for programs that don't want to see tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .errors import ArgumentError
from .sampling import Generation, SamplingConfig
from .stopping import StopFinder

if TYPE_CHECKING:
    from .model import GPT
    from .tokenizers import Tokenizer

_DEFAULTS = SamplingConfig()


def generate_texts(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    num_samples: int,
    max_tokens: int,
    sampling: SamplingConfig = _DEFAULTS,
    seed: int = 0,
    stop: Sequence[str] = (),
) -> Iterator[tuple[int, str]]:
    """Continue a prompt num_samples times in one batch: (sample, piece of text), interleaved.

    The prompt is not repeated; an empty one starts a document. A sample ends at max_tokens, before
    a stop string (no part of which is ever shown), or where the model begins a new document; its
    last piece is the only empty one. Sample i is the same for any num_samples.

    Raises:
        ArgumentError: num_samples, max_tokens or seed is out of its range.
        TokenizerError: the tokenizer does not know a character of the prompt.
    """
    if max_tokens < 0:
        raise ArgumentError(f"max_tokens must be 0 or more, got {max_tokens}")
    new_document = tokenizer.beginning_of_document
    prompt_tokens = tokenizer.encode(prompt)
    generation = Generation(
        model,
        prompt_tokens if len(prompt_tokens) else [new_document],
        num_samples=num_samples,
        sampling=sampling,
        seed=seed,
    )

    def run() -> Iterator[tuple[int, str]]:
        decoders = [tokenizer.streaming_decoder() for _ in range(num_samples)]
        finders = [StopFinder(stop, "") for _ in range(num_samples)]
        for round_number in range(max_tokens):
            if not generation.is_active:
                return
            for index, token in generation.advance():
                decoder, finder = decoders[index], finders[index]
                is_last = token == new_document or round_number == max_tokens - 1
                text = "" if token == new_document else decoder.push(token)
                if is_last:
                    text += decoder.finish()
                shown, is_stopped = finder.push(text)
                if is_last and not is_stopped:
                    shown += finder.finish()
                if shown:
                    yield index, shown
                if is_last or is_stopped:
                    generation.end(index)
                    yield index, ""

    return run()


def generate_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str = "",
    *,
    max_tokens: int,
    sampling: SamplingConfig = _DEFAULTS,
    seed: int = 0,
    stop: Sequence[str] = (),
) -> Iterator[str]:
    """Continue a prompt, streamed in pieces of text; the rest is as in generate_texts."""
    pieces = generate_texts(
        model,
        tokenizer,
        prompt,
        num_samples=1,
        max_tokens=max_tokens,
        sampling=sampling,
        seed=seed,
        stop=stop,
    )
    return (piece for _, piece in pieces if piece)
