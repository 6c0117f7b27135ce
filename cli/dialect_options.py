"""The options of a model's dialect, which `andrea train` and `andrea info` have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from .option_kinds import Number, option, stack
from .options import at_least_1

SWITCHES = (
    "norm",
    "norm_affine",
    "norm_position",
    "residual",
    "activation",
    "mlp_dim",
    "attn_bias",
    "mlp_bias",
    "tie_embeddings",
    "final_norm",
    "embedding_norm",
    "scaled_init",
    "init_std",
)
"""The names of options that are the names of ModelConfig's settings."""
ALL_BIASES = ("attn_bias", "mlp_bias")
"""What --bias stands for."""

dialect_options = stack(
    option(
        "--dialect",
        section="Dialect",
        type=click.Choice(["gpt2", "microgpt"]),
        metavar="NAME",
        help="gpt2 or microgpt: what follows, as that model has it.  [default: gpt2]",
    ),
    option(
        "--norm",
        section="Dialect",
        type=click.Choice(["layernorm", "rmsnorm"]),
        metavar="NAME",
        help="layernorm or rmsnorm.",
    ),
    option(
        "--norm-affine/--no-norm-affine",
        section="Dialect",
        default=None,
        help="Norms learn a gain, and layer norms a bias.",
    ),
    option(
        "--norm-position",
        section="Dialect",
        type=click.Choice(["pre", "post", "none"]),
        metavar="NAME",
        help="pre: before attention and MLP; post: after them; or none.",
    ),
    option(
        "--residual/--no-residual",
        section="Dialect",
        default=None,
        help="Attention and MLP add to what they read.",
    ),
    option(
        "--activation",
        section="Dialect",
        type=click.Choice(["gelu", "gelu_erf", "relu", "relu2", "swiglu"]),
        metavar="NAME",
        help="gelu, gelu_erf, relu, relu2 or swiglu.",
    ),
    option(
        "--mlp-dim",
        section="Dialect",
        type=at_least_1,
        help="Width of the MLP.  [default: 4 x n_embd; 8/3 for swiglu]",
    ),
    option(
        "--bias/--no-bias",
        section="Dialect",
        default=None,
        help="Linear layers have biases;",
    ),
    option(
        "--attn-bias/--no-attn-bias", section="Dialect", default=None, help="those of attention,"
    ),
    option("--mlp-bias/--no-mlp-bias", section="Dialect", default=None, help="those of the MLP."),
    option(
        "--tie-embeddings/--no-tie-embeddings",
        section="Dialect",
        default=None,
        help="The head is the table of token embeddings.",
    ),
    option(
        "--final-norm/--no-final-norm",
        section="Dialect",
        default=None,
        help="There is a norm before the head.",
    ),
    option(
        "--embedding-norm/--no-embedding-norm",
        section="Dialect",
        default=None,
        help="There is a norm after the embeddings.",
    ),
    option(
        "--scaled-init/--no-scaled-init",
        section="Dialect",
        default=None,
        help="Projections to the residual stream start smaller.",
    ),
    option(
        "--init-std",
        section="Dialect",
        type=Number(positive=True),
        help="Standard deviation of first weights.  [default: 0.02]",
    ),
)


def given_switches(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the options say of ModelConfig's settings; --bias says it where nothing else does."""
    given = {name: options[name] for name in SWITCHES}
    for name in ALL_BIASES:
        if given[name] is None:
            given[name] = options["bias"]
    return {name: value for name, value in given.items() if value is not None}
