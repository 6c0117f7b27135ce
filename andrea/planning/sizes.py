"""What a model's shape implies: its parameters with their arithmetic, memory and work per token.

For the plan before a run and for `andrea info`; needs no model in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from andrea.config import ModelConfig

# Every tensor by its dimensions in the configuration's words, in the engine's order; "h.*" stands
# for the tensors of every block.
_TENSORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("wte.weight", ("vocab_size", "n_embd")),
    ("wpe.weight", ("block_size", "n_embd")),
    ("h.*.ln_1.weight", ("n_embd",)),
    ("h.*.ln_1.bias", ("n_embd",)),
    ("h.*.attn.c_attn.weight", ("3 n_embd", "n_embd")),
    ("h.*.attn.c_attn.bias", ("3 n_embd",)),
    ("h.*.attn.c_proj.weight", ("n_embd", "n_embd")),
    ("h.*.attn.c_proj.bias", ("n_embd",)),
    ("h.*.ln_2.weight", ("n_embd",)),
    ("h.*.ln_2.bias", ("n_embd",)),
    ("h.*.mlp.c_fc.weight", ("4 n_embd", "n_embd")),
    ("h.*.mlp.c_fc.bias", ("4 n_embd",)),
    ("h.*.mlp.c_proj.weight", ("n_embd", "4 n_embd")),
    ("h.*.mlp.c_proj.bias", ("n_embd",)),
    ("ln_f.weight", ("n_embd",)),
    ("ln_f.bias", ("n_embd",)),
)

FLOPS_FORMULA = (
    "forward: 2 x (12 n_layer n_embd^2 + vocab_size n_embd) + 2 n_layer length n_embd; "
    "training: three times that"
)


@dataclass(frozen=True)
class ParameterRow:
    """One tensor of the model, or the same one of every block (name "h.*..."): `copies` of it.

    formula says the shape in the configuration's words; count: numbers of one, total: of all.
    """

    name: str
    shape: tuple[int, ...]
    formula: str
    count: int
    copies: int
    total: int


def parameter_table(config: ModelConfig) -> tuple[ParameterRow, ...]:
    """Every tensor of the model, in the engine's order."""
    sizes = {
        "vocab_size": config.vocab_size,
        "block_size": config.block_size,
        "n_embd": config.n_embd,
        "3 n_embd": 3 * config.n_embd,
        "4 n_embd": config.mlp_dim,
    }
    rows = []
    for name, words in _TENSORS:
        shape = tuple(sizes[word] for word in words)
        count = math.prod(shape)
        copies = config.n_layer if name.startswith("h.*") else 1
        rows.append(ParameterRow(name, shape, " x ".join(words), count, copies, copies * count))
    return tuple(rows)


def num_parameters(config: ModelConfig) -> int:
    """Trained numbers of a model; the head is tied to wte and counted once."""
    return sum(row.total for row in parameter_table(config))


def flops_per_token(config: ModelConfig, *, training: bool, length: int | None = None) -> int:
    """Floating-point operations of one token in a sequence of `length` (default: block_size).

    A multiply-add counts two. Matrices take 2 per parameter (the head is one); causal attention
    sees half the sequence on average, 2 x 2 x (length / 2) x n_embd per layer. Backward takes twice
    as much as forward (Kaplan et al. 2020, section 2.1).
    """
    length = config.block_size if length is None else length
    matrices = 12 * config.n_layer * config.n_embd**2 + config.vocab_size * config.n_embd
    forward = 2 * matrices + 2 * config.n_layer * length * config.n_embd
    return 3 * forward if training else forward


def memory_plan(
    config: ModelConfig,
    batch_size: int,
    *,
    training: bool = True,
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, int]:
    """Bytes that the engine takes, by kind, for batches of batch_size x block_size; see
    `andrea.engine_memory`."""
    from andrea.memory import engine_memory

    return engine_memory(config, batch_size, training=training, device=device, precision=precision)
