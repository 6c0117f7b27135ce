"""A ladder of model shapes, from which a plan takes the one that fits the work and the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from andrea.config import ModelConfig

from .choices import Choices
from .dialects import preset_sizes

# (n_layer, n_embd) from small to large; widths are multiples of 64.
_LADDER = (
    (2, 64),
    (2, 128),
    (4, 128),
    (4, 192),
    (6, 256),
    (6, 384),
    (8, 512),
    (10, 640),
    (12, 768),
    (16, 1024),
    (16, 1536),
)
# Least width -> context: wider models look further back.
_CONTEXTS = {768: 1024, 512: 512, 256: 256, 128: 128, 0: 64}
_SMALLEST_CONTEXT = 8
# The text holds at least so many contexts, for batches to differ.
_CONTEXTS_IN_TEXT = 32


def shapes(choices: Choices, vocab_size: int, train_tokens: int) -> Iterator[ModelConfig]:
    """The ladder's shapes, from small to large, changed to what the user fixed; each once.

    Raises:
        ConfigError: a choice is out of its range or contradicts another.
    """
    preset, dialect = preset_sizes(choices.preset), choices.model_dialect()
    previous = None
    for n_layer, n_embd in _LADDER:
        n_layer = _first(choices.n_layer, preset.get("n_layer"), n_layer)
        n_head = _first(choices.n_head, None if choices.n_embd else preset.get("n_head"))
        width = _first(choices.n_embd, preset.get("n_embd"))
        if width is None:
            # Rounded up to what the asked number of heads divides.
            width = n_embd if not n_head else -(-n_embd // n_head) * n_head
        block_size = _first(
            choices.block_size, preset.get("block_size"), _context(width, train_tokens)
        )
        config = ModelConfig(
            vocab_size=vocab_size,
            block_size=block_size,
            n_layer=n_layer,
            n_head=_heads(width) if n_head is None else n_head,
            n_embd=width,
            **dialect,
        )
        if config != previous:
            yield config
        previous = config


def check_choices(choices: Choices) -> None:
    """Refuse a shape or dialect that no model can have, before there is a text.

    Raises:
        ConfigError: a choice is out of its range or contradicts another.
    """
    next(shapes(choices, 1, _CONTEXTS_IN_TEXT))


def _context(n_embd: int, train_tokens: int) -> int:
    context = next(context for width, context in _CONTEXTS.items() if n_embd >= width)
    while context > _SMALLEST_CONTEXT and context * _CONTEXTS_IN_TEXT > train_tokens:
        context //= 2
    return max(min(context, train_tokens - 1), 1)


def _heads(n_embd: int) -> int:
    """Heads of 64, in narrow models of 32; where that does not divide the width, of about that."""
    wanted = 64 if n_embd >= 512 else 32
    divisors = [size for size in range(16, 129) if n_embd % size == 0]
    head_dim = min(divisors, key=lambda size: abs(size - wanted), default=n_embd)
    return n_embd // head_dim if n_embd > 0 else 1


def _first(*values: int | None) -> Any:
    """The first value that is there; None where none is."""
    return next((value for value in values if value is not None), None)
