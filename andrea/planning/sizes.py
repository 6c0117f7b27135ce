"""What a model's shape implies: its parameters with their arithmetic, memory and work per token.

For the plan before a run and for `andrea info`; needs no model in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from andrea.config import ModelConfig


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
    C, M = config.n_embd, config.mlp_dim
    usual = not config.is_gated and M == 4 * C
    mlp = "4 n_embd" if usual else "mlp_dim"
    hidden = "2 mlp_dim" if config.is_gated else mlp
    sizes = {
        "vocab_size": config.vocab_size,
        "block_size": config.block_size,
        "n_embd": C,
        "3 n_embd": 3 * C,
        mlp: M,
        hidden: config.hidden_dim,
    }
    rows: list[ParameterRow] = []

    def add(name: str, *words: str) -> None:
        shape = tuple(sizes[word] for word in words)
        count = math.prod(shape)
        copies = config.n_layer if name.startswith("h.*") else 1
        rows.append(ParameterRow(name, shape, " x ".join(words), count, copies, copies * count))

    def norm(name: str) -> None:
        if config.norm_affine:
            add(f"{name}.weight", "n_embd")
        if config.norm_affine and config.norm == "layernorm":
            add(f"{name}.bias", "n_embd")

    def linear(name: str, outputs: str, inputs: str, has_bias: bool) -> None:
        add(f"{name}.weight", outputs, inputs)
        if has_bias:
            add(f"{name}.bias", outputs)

    add("wte.weight", "vocab_size", "n_embd")
    add("wpe.weight", "block_size", "n_embd")
    if not config.tie_embeddings:
        add("lm_head.weight", "vocab_size", "n_embd")
    if config.embedding_norm:
        norm("ln_emb")
    if config.norm_position != "none":
        norm("h.*.ln_1")
    linear("h.*.attn.c_attn", "3 n_embd", "n_embd", config.attn_bias)
    linear("h.*.attn.c_proj", "n_embd", "n_embd", config.attn_bias)
    if config.norm_position != "none":
        norm("h.*.ln_2")
    linear("h.*.mlp.c_fc", hidden, "n_embd", config.mlp_bias)
    linear("h.*.mlp.c_proj", "n_embd", mlp, config.mlp_bias)
    if config.final_norm:
        norm("ln_f")
    return tuple(rows)


def each_tensor(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every parameter, one by one, in the order of the engine's table."""
    for is_block, rows in groupby(parameter_table(config), lambda row: row.name.startswith("h.*.")):
        table = list(rows)
        for layer in range(config.n_layer if is_block else 1):
            for row in table:
                yield row.name.replace("*", str(layer), 1), row.shape


def num_parameters(config: ModelConfig) -> int:
    """Trained numbers of a model; a head that is tied to wte is counted once."""
    return sum(row.total for row in parameter_table(config))


def flops_per_token(config: ModelConfig, *, training: bool, length: int | None = None) -> int:
    """Floating-point operations of one token in a sequence of `length` (default: block_size).

    A multiply-add counts two. Matrices take 2 per parameter (the head is one); causal attention
    sees half the sequence on average, 2 x 2 x (length / 2) x n_embd per layer. Backward takes twice
    as much as forward (Kaplan et al. 2020, section 2.1).
    """
    length = config.block_size if length is None else length
    C = config.n_embd
    block = 4 * C * C + C * config.hidden_dim + C * config.mlp_dim
    matrices = config.n_layer * block + config.vocab_size * C
    forward = 2 * matrices + 2 * config.n_layer * length * C
    return 3 * forward if training else forward


def flops_formula(config: ModelConfig) -> str:
    """What `flops_per_token` counts, in the configuration's words."""
    block = "12 n_layer n_embd^2"
    if config.is_gated or config.mlp_dim != 4 * config.n_embd:
        block = f"n_layer n_embd (4 n_embd + {3 if config.is_gated else 2} mlp_dim)"
    return (
        f"forward: 2 x ({block} + vocab_size n_embd) + 2 n_layer length n_embd; "
        "training: three times that"
    )


def memory_plan(
    config: ModelConfig,
    batch_size: int,
    *,
    use: str = "training",
    device: str = "auto",
    precision: str = "auto",
) -> dict[str, int]:
    """Bytes that the engine takes, by kind, for batches of batch_size x block_size; see
    `andrea.engine_memory`."""
    from andrea.memory import engine_memory

    return engine_memory(config, batch_size, use=use, device=device, precision=precision)
