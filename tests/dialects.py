"""Dialects to test: few of them, in which any two values of any two switches meet.

Most faults of switches show with one of them or with two together (Kuhn, Wallace & Gallo 2004), so
what is covered pair by pair needs some 20 models in place of 7,000.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import andrea
from andrea import ConfigError

Dialect = dict[str, Any]

# Every setting that the forward and backward lists depend on. mlp_dim 0: the usual one.
SWITCHES: dict[str, tuple[Any, ...]] = {
    **andrea.config.CHOICES,
    "norm_affine": (True, False),
    "residual": (True, False),
    "attn_bias": (True, False),
    "mlp_bias": (True, False),
    "tie_embeddings": (True, False),
    "final_norm": (True, False),
    "embedding_norm": (False, True),
    "mlp_dim": (0, 21),
}
# V, block_size, n_layer, n_head, n_embd: as small as shows all, and no whole vectors.
SIZES = (13, 8, 2, 2, 12)

Setting = tuple[str, Any]
Pair = tuple[Setting, Setting]


def config_of(dialect: Dialect, sizes: tuple[int, ...] = SIZES) -> andrea.ModelConfig:
    return andrea.ModelConfig(*sizes, **dialect)


def is_valid(dialect: Dialect) -> bool:
    """Whether a dialect, or its settings so far, is one: the rest counts as GPT-2's."""
    try:
        config_of(dialect)
    except ConfigError:
        return False
    return True


def pairs_of(dialect: Dialect) -> list[Pair]:
    """What meets in a dialect; its settings stand in the order of SWITCHES."""
    return list(combinations([(name, dialect[name]) for name in SWITCHES if name in dialect], 2))


def all_pairs() -> list[Pair]:
    """Every two values of every two switches."""
    return [
        ((a, value_a), (b, value_b))
        for a, b in combinations(SWITCHES, 2)
        for value_a in SWITCHES[a]
        for value_b in SWITCHES[b]
    ]


def pairwise() -> list[Dialect]:
    """Dialects that cover all pairs: each starts with the first pair that is left, and takes for
    one switch after another the value with which it covers most of what is left."""
    left = dict.fromkeys(all_pairs())
    found = []
    while left:
        dialect: Dialect = dict(next(iter(left)))
        for name, values in SWITCHES.items():
            if name in dialect:
                continue
            choices = [{**dialect, name: value} for value in values]
            dialect = max(
                (choice for choice in choices if is_valid(choice)),
                key=lambda choice: sum(pair in left for pair in pairs_of(choice)),
            )
        for pair in pairs_of(dialect):
            left.pop(pair, None)
        found.append({name: dialect[name] for name in SWITCHES})
    return found


def _named(dialects: list[Dialect]) -> dict[str, Dialect]:
    """By what of them a test's id has room for."""
    chosen = tuple(andrea.config.CHOICES)
    return {
        f"{number} {' '.join(dialect[name] for name in chosen)}": dialect
        for number, dialect in enumerate(dialects)
    }


DIALECTS = _named(pairwise())
