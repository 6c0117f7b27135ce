"""The model shapes that speed is told for, and what a shape implies: parameters, work, bytes.

Standard library only: processes that measure PyTorch import it too.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

ELEMENT_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Shape:
    """A model and its batch: B sequences of block_size tokens."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_embd: int
    n_head: int
    batch_size: int

    def __str__(self) -> str:
        return (
            f"V{self.vocab_size},T{self.block_size},L{self.n_layer},d{self.n_embd},"
            f"h{self.n_head},B{self.batch_size}"
        )

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    def with_tokens(self, tokens: int) -> Shape:
        """The same model with as many sequences as make that many tokens a step.

        Raises:
            ValueError: block_size does not divide it.
        """
        if tokens < 1 or tokens % self.block_size:
            raise ValueError(f"{tokens} is no multiple of {self.block_size}, a sequence's tokens")
        return replace(self, batch_size=tokens // self.block_size)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch_size * self.block_size

    @property
    def matrix_parameters(self) -> int:
        """Parameters that a token is multiplied with: four matrices a block, and the tied head.

        The positions' table is only added from, biases and norms are vectors: neither counts.
        """
        return 12 * self.n_layer * self.n_embd**2 + self.vocab_size * self.n_embd

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        vectors = self.n_layer * 13 * self.n_embd + 2 * self.n_embd
        return self.matrix_parameters + self.block_size * self.n_embd + vectors

    @property
    def training_flops_per_token(self) -> int:
        """Operations of forward and backward: 6 a matrix parameter, and causal attention.

        Attention: 2 products of 2 T d operations a token and layer, halved because it is causal,
        and twice that backward. What an engine computes again in backward doesn't count.
        """
        return 6 * self.matrix_parameters + 6 * self.n_layer * self.block_size * self.n_embd

    def decoding_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of weights that one new token of one sequence reads."""
        return self.matrix_parameters * element_bytes

    @property
    def early_positions(self) -> int:
        """Positions at the start of a sequence that decoding is timed at: 256 of 1024."""
        return self.block_size // 4

    @property
    def late_positions(self) -> int:
        """Positions at its end: 192 of 1024."""
        return 3 * self.block_size // 16


SHAPES = {
    "tiny": Shape(256, 128, 4, 128, 4, 16),
    "small": Shape(2305, 256, 6, 384, 12, 8),
    "andrea-12m": Shape(2305, 1024, 6, 384, 12, 2),
    "andrea-120m": Shape(8449, 1024, 12, 768, 12, 1),
}


def shape_of(text: str) -> Shape:
    """A shape by its name, or in the form V256,T128,L4,d128,h4,B16.

    Raises:
        ValueError: it is neither, or no model has that shape.
    """
    if text in SHAPES:
        return SHAPES[text]
    found = re.fullmatch(r"V(\d+),T(\d+),L(\d+),d(\d+),h(\d+),B(\d+)", text)
    if not found:
        raise ValueError(
            f"{text!r} is none of {', '.join(SHAPES)}, nor like V256,T128,L4,d128,h4,B16"
        )
    shape = Shape(*(int(group) for group in found.groups()))
    if min(shape.to_dict().values()) < 1 or shape.n_embd % shape.n_head or shape.block_size < 16:
        raise ValueError(f"{text!r}: sizes from 1, T from 16, and h must divide d")
    return shape
