"""The model shapes that speed is told for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A model and its batch: B sequences of block_size tokens."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_embd: int
    n_head: int
    batch_size: int

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch_size * self.block_size


SHAPES = {
    "tiny": Shape(256, 128, 4, 128, 4, 16),
    "small": Shape(2305, 256, 6, 384, 12, 8),
    "andrea-12m": Shape(2305, 1024, 6, 384, 12, 2),
    "andrea-120m": Shape(8449, 1024, 12, 768, 12, 1),
}
