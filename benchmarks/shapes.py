"""The models that speed is told for, and what they imply: parameters, work, bytes.

Standard library only: processes that measure PyTorch import it too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

ELEMENT_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Dialect:
    """What a model's blocks are made of, in the words of andrea.ModelConfig."""

    norm: str = "layernorm"
    norm_affine: bool = True
    activation: str = "gelu"
    attn_bias: bool = True
    mlp_bias: bool = True
    tie_embeddings: bool = True
    final_norm: bool = True
    embedding_norm: bool = False
    scaled_init: bool = True
    init_std: float = 0.02


DIALECTS = {
    "gpt2": Dialect(),
    "microgpt": Dialect(
        norm="rmsnorm",
        norm_affine=False,
        activation="relu",
        attn_bias=False,
        mlp_bias=False,
        tie_embeddings=False,
        final_norm=False,
        embedding_norm=True,
        scaled_init=False,
        init_std=0.08,
    ),
    "swiglu": Dialect(norm="rmsnorm", activation="swiglu", attn_bias=False, mlp_bias=False),
}


@dataclass(frozen=True)
class Shape:
    """A model and its batch: B sequences of block_size tokens; dialect: one of DIALECTS."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_embd: int
    n_head: int
    batch_size: int
    dialect: str = "gpt2"

    def __str__(self) -> str:
        return (
            f"V{self.vocab_size},T{self.block_size},L{self.n_layer},d{self.n_embd},"
            f"h{self.n_head},B{self.batch_size}"
        )

    def to_dict(self) -> dict[str, int | str]:
        return asdict(self)

    @property
    def parts(self) -> Dialect:
        """What the model's blocks are made of."""
        return DIALECTS[self.dialect]

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
    def mlp_dim(self) -> int:
        """Width of the MLP after its activation."""
        return -(-8 * self.n_embd // 192) * 64 if self.is_gated else 4 * self.n_embd

    @property
    def hidden_dim(self) -> int:
        """Width of the MLP before it: a gate comes on top."""
        return 2 * self.mlp_dim if self.is_gated else self.mlp_dim

    @property
    def is_gated(self) -> bool:
        return self.parts.activation == "swiglu"

    @property
    def matrix_parameters(self) -> int:
        """Parameters that a token is multiplied with: four matrices a block, and the head.

        The tables of embeddings are only added from, unless the head is one of them; biases and
        norms are vectors: none of these counts.
        """
        block = self.n_embd * (4 * self.n_embd + self.hidden_dim + self.mlp_dim)
        return self.n_layer * block + self.vocab_size * self.n_embd

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        parts, width = self.parts, self.n_embd
        tables = self.block_size + (0 if parts.tie_embeddings else self.vocab_size)
        norms = 2 * self.n_layer + parts.final_norm + parts.embedding_norm
        vectors = parts.norm_affine * norms * (2 if parts.norm == "layernorm" else 1) * width
        vectors += parts.attn_bias * self.n_layer * 4 * width
        vectors += parts.mlp_bias * self.n_layer * (self.hidden_dim + width)
        return self.matrix_parameters + tables * width + vectors

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

    @property
    def middle_tokens(self) -> list[int]:
        """What is fed at once between them."""
        count = self.block_size - self.early_positions - self.late_positions
        return [position % self.vocab_size for position in range(count)]


SHAPES = {
    "tiny": Shape(256, 128, 4, 128, 4, 16),
    "small": Shape(2305, 256, 6, 384, 12, 8),
    "andrea-12m": Shape(2305, 1024, 6, 384, 12, 2),
    "andrea-120m": Shape(8449, 1024, 12, 768, 12, 1),
}


def shape_of(text: str) -> Shape:
    """A shape by its name, or in the form V256,T128,L4,d128,h4,B16; of GPT-2's dialect.

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
    sizes = [int(group) for group in found.groups()]
    shape = Shape(*sizes)
    if min(sizes) < 1 or shape.n_embd % shape.n_head or shape.block_size < 16:
        raise ValueError(f"{text!r}: sizes from 1, T from 16, and h must divide d")
    return shape


def in_dialects(shapes: dict[str, Shape], dialects: Sequence[str]) -> dict[str, Shape]:
    """Each shape in each dialect; names tell the dialect unless it is GPT-2's."""
    return {
        name if dialect == "gpt2" else f"{name}, {dialect}": replace(shape, dialect=dialect)
        for name, shape in shapes.items()
        for dialect in dialects
    }
