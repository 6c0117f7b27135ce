"""Where a model's parameters, memory and operations are: counted, with their arithmetic.

By kind: the embeddings, attention, the MLP, the norms, and a head that is not the table of token
embeddings. Counts and operations follow from the configuration; memory is the engine's own plan.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from andrea.config import DIALECT_SETTINGS, ModelConfig
from andrea.errors import ConfigError
from andrea.planning.dialects import count_norms, describe_dialect, dialect_name, dialect_settings
from andrea.planning.sizes import ParameterRow, flops_formula, memory_plan, parameter_table

KINDS = ("embeddings", "attention", "mlp", "norms", "head")
"""What the parameters of a model are for, in the order in which a token meets most of them."""

_LARGEST_INT32 = 2**31 - 1


def kind_of(name: str) -> str:
    """Which of KINDS a tensor belongs to, by its name ("h.3.attn.c_attn.weight").

    Raises:
        KeyError: no model has a tensor of that name.
    """
    place = name.split(".")
    part = place[2] if place[0] == "h" else place[0]
    return {
        "wte": "embeddings",
        "wpe": "embeddings",
        "lm_head": "head",
        "attn": "attention",
        "mlp": "mlp",
        "ln_1": "norms",
        "ln_2": "norms",
        "ln_f": "norms",
        "ln_emb": "norms",
    }[part]


@dataclass(frozen=True)
class Kind:
    """The parameters of one kind.

    name: of KINDS. tensors: theirs, those of blocks once (name "h.*..."). parameters: of all
    blocks; block: of one. formula: how parameters come about, in the configuration's words.
    """

    name: str
    tensors: tuple[ParameterRow, ...]
    parameters: int
    block: int
    formula: str


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one token forward, by kind, in a sequence of `length` tokens.

    A multiply-add counts two. Embeddings are looked up; norms and activations are left out, as is
    usual. The three together are `andrea.planning.sizes.flops_per_token`; training, with its
    backward pass, takes three times as much. formulas: by kind, in the configuration's words.
    """

    attention: int
    mlp: int
    head: int
    length: int
    formulas: Mapping[str, str]

    @property
    def forward(self) -> int:
        """Of all kinds."""
        return self.attention + self.mlp + self.head

    @property
    def training(self) -> int:
        """Forward and backward."""
        return 3 * self.forward

    @property
    def kinds(self) -> dict[str, int]:
        """Forward, by kind."""
        return {"attention": self.attention, "mlp": self.mlp, "head": self.head}


@dataclass(frozen=True)
class Count:
    """What a model is made of and takes; `count_parameters` makes it.

    config: the model's. kinds: those of KINDS in their order, all five. operations: of one token.
    batch_size: sequences of block_size tokens that memory is planned for, on this device and in
    this precision. training, sampling: bytes by kind, as `andrea.engine_memory` tells them:
    parameters, gradients, moments, activations, workspace, total; sampling is one sequence's.
    """

    config: ModelConfig
    kinds: tuple[Kind, ...]
    operations: Operations
    batch_size: int
    device: str
    precision: str
    training: Mapping[str, int]
    sampling: Mapping[str, int]

    @property
    def parameters(self) -> int:
        """Trained numbers of the model; a head that is tied to wte is counted once."""
        return sum(kind.parameters for kind in self.kinds)

    @property
    def block(self) -> int:
        """Those of one block."""
        return sum(kind.block for kind in self.kinds)

    @property
    def tensors(self) -> tuple[ParameterRow, ...]:
        """Every tensor, in the engine's order; those of blocks once (name "h.*...")."""
        return parameter_table(self.config)

    @property
    def norms(self) -> int:
        """Norms, with parameters or without: 2 n_layer + 1 in GPT-2's dialect."""
        return self.config.num_norms

    @property
    def head(self) -> int:
        """Numbers of the head's matrix, whether it is wte or one of its own."""
        return self.config.vocab_size * self.config.n_embd

    def share(self, parameters: int) -> float:
        """So many parameters as a share of the model's."""
        return parameters / self.parameters

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data for JSON; what `andrea info --json` tells has the same name."""
        config = self.config
        return {
            "config": config.to_dict(),
            "dialect": {
                "name": dialect_name(config.dialect()),
                "description": describe_dialect(config),
                **{name: getattr(config, name) for name in DIALECT_SETTINGS},
            },
            "norms": {"number": self.norms, "places": count_norms(config)},
            "head": {"tied": config.tie_embeddings, "parameters": self.head},
            "parameters": self.parameters,
            "block": self.block,
            "kinds": {
                kind.name: {
                    "parameters": kind.parameters,
                    "share": self.share(kind.parameters),
                    "block": kind.block,
                    "formula": kind.formula,
                }
                for kind in self.kinds
            },
            "table": [
                {
                    **dataclasses.asdict(row),
                    "shape": list(row.shape),
                    "kind": kind_of(row.name),
                    "share": self.share(row.total),
                }
                for row in self.tensors
            ],
            "batch_size": self.batch_size,
            "device": self.device,
            "precision": self.precision,
            "memory": {"training": dict(self.training), "sampling": dict(self.sampling)},
            "flops_per_token": {
                "forward": self.operations.forward,
                "training": self.operations.training,
                "length": self.operations.length,
                "kinds": self.operations.kinds,
                "formulas": dict(self.operations.formulas),
                "formula": flops_formula(config),
            },
        }


@dataclass(frozen=True)
class Comparison:
    """Two models beside each other: what a change does."""

    before: Count
    after: Count

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ by name: before, after."""
        old, new = (count.config.to_full_dict() for count in (self.before, self.after))
        return {name: (old[name], new[name]) for name in old if old[name] != new[name]}

    def to_dict(self) -> dict[str, Any]:
        """What is more (or, below 0, less) in the changed model, as plain data for JSON."""
        before, after = self.before.to_dict(), self.after.to_dict()
        numbers = ("parameters", "block", "norms", "kinds", "memory", "flops_per_token")
        return {
            "settings": {name: list(both) for name, both in self.settings.items()},
            **{name: _difference(before[name], after[name]) for name in numbers},
        }


def _difference(before: Any, after: Any) -> Any:
    """after - before, number by number; what is no number is left out."""
    if isinstance(before, Mapping):
        return {
            key: _difference(value, after[key])
            for key, value in before.items()
            if isinstance(value, (int, float, Mapping)) and key != "formulas"
        }
    return after - before


def count_parameters(
    config: ModelConfig,
    batch_size: int = 1,
    *,
    device: str = "auto",
    precision: str = "auto",
) -> Count:
    """Count a model before it exists.

    Args:
        config: the model, such as `ModelConfig(**PRESETS["andrea-120m"])`.
        batch_size: sequences of block_size tokens in a batch of training.
        device: for the memory: "auto", "cpu", "cuda" or "cuda:N".
        precision: for the memory: "auto", "fp32" or "bf16".

    Raises:
        ArgumentError: batch_size is out of range.
        DeviceError: the device or precision is not available.
    """
    training = memory_plan(config, batch_size, device=device, precision=precision)
    sampling = memory_plan(config, 1, use="decoding", device=device, precision=precision)
    return Count(
        config=config,
        kinds=tuple(_kind(name, config) for name in KINDS),
        operations=count_operations(config),
        batch_size=batch_size,
        device=device,
        precision=precision,
        training=training,
        sampling=sampling,
    )


def _kind(name: str, config: ModelConfig) -> Kind:
    rows = tuple(row for row in parameter_table(config) if kind_of(row.name) == name)
    of_blocks = [row for row in rows if row.name.startswith("h.*")]
    of_model = [row for row in rows if row not in of_blocks]
    parts = []
    if of_blocks:
        parts.append(f"n_layer x ({' + '.join(row.formula for row in of_blocks)})")
    parts += [row.formula for row in of_model]
    return Kind(
        name,
        rows,
        parameters=sum(row.total for row in rows),
        block=sum(row.count for row in of_blocks),
        formula=" + ".join(parts),
    )


def count_operations(config: ModelConfig, length: int | None = None) -> Operations:
    """Operations of one token in a sequence of `length` tokens (default: block_size)."""
    length = config.block_size if length is None else length
    C, L, M = config.n_embd, config.n_layer, config.mlp_dim
    # Two matrices, and of a gated activation three; a multiply-add each, so twice their numbers.
    of_mlp = 6 if config.is_gated else 4
    return Operations(
        attention=L * (8 * C * C + 2 * length * C),
        mlp=of_mlp * L * C * M,
        head=2 * config.vocab_size * C,
        length=length,
        formulas={
            # Of the keys, a token sees half of the sequence on average.
            "attention": "n_layer (8 n_embd^2 + 2 length n_embd)",
            "mlp": f"{of_mlp} n_layer n_embd mlp_dim",
            "head": "2 vocab_size n_embd",
        },
    )


def changed_config(
    config: ModelConfig,
    changes: Mapping[str, Any],
    *,
    dialect: str | None = None,
    mlp_ratio: float | None = None,
) -> ModelConfig:
    """A model like another one but for what is named.

    The usual width of the MLP follows n_embd and the activation; another one is kept.

    Args:
        config: the other one.
        changes: settings by ModelConfig's names.
        dialect: begin with this dialect, "gpt2" or "microgpt", instead of the other model's.
        mlp_ratio: the MLP is so many times as wide as the model.

    Raises:
        ConfigError: there is no such model, or the width of the MLP is said twice.
    """
    own = config.to_dict()
    if dialect is not None:
        sizes = {name: value for name, value in own.items() if name not in DIALECT_SETTINGS}
        own = {**sizes, **dialect_settings(dialect)}
    own.update(changes)
    if mlp_ratio is not None:
        if "mlp_dim" in changes:
            raise ConfigError("mlp_dim and mlp_ratio both say how wide the MLP is: give one")
        # First a model without it, which refuses an n_embd that is no number.
        width = mlp_ratio * ModelConfig.from_dict({**own, "mlp_dim": 1}).n_embd
        if not (math.isfinite(width) and 1 <= round(width) <= _LARGEST_INT32):
            raise ConfigError(
                f"mlp_ratio {mlp_ratio:g} makes an MLP {width:g} wide; it must be between 1 and "
                "2**31 - 1"
            )
        own["mlp_dim"] = round(width)
    return ModelConfig.from_dict(own)
