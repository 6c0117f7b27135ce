"""The model's configuration: its sizes, and the dialect that its blocks speak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from .errors import ConfigError

# That grow together in one decoder.
MOST_SEQUENCES = 2**20

_LARGEST_INT32 = 2**31 - 1
# What the engine, which keeps it in float32, tells from 0.
_SMALLEST_STD, _LARGEST_STD = 1e-30, 100.0

# The names of choices; the first is GPT-2's, and the order is the engine's.
CHOICES: dict[str, tuple[str, ...]] = {
    "norm": ("layernorm", "rmsnorm"),
    "norm_position": ("pre", "post", "none"),
    "activation": ("gelu", "gelu_erf", "relu", "relu2", "swiglu"),
}


@dataclass(frozen=True)
class ModelConfig:
    """A GPT's sizes, and what its blocks are made of; all but the sizes is GPT-2's by default.

    Args:
        vocab_size: tokens that there are.
        block_size: positions; the longest context.
        n_layer: blocks.
        n_head: attention heads of a block; divides n_embd.
        n_embd: width of the residual stream.
        mlp_dim: width of the MLP after its activation; 0: 4 x n_embd, and of swiglu, which has two
            matrices for one, 8/3 x n_embd rounded up to a multiple of 64. The attribute is never
            0, so that `dataclasses.replace` keeps the width.
        norm: "layernorm", or "rmsnorm", which does not centre.
        norm_affine: norms have a learned gain, layer norms a learned bias too.
        norm_position: "pre", x + f(norm(x)); "post", norm(x + f(x)); or "none", x + f(x).
        residual: a sublayer's input is added to its output.
        activation: "gelu" (tanh form), "gelu_erf", "relu", "relu2" (its square) or "swiglu".
        attn_bias: attn.c_attn and attn.c_proj have biases.
        mlp_bias: mlp.c_fc and mlp.c_proj have biases.
        tie_embeddings: the head is wte; else lm_head, a matrix of its own.
        final_norm: there is a norm before the head.
        embedding_norm: there is a norm after the sum of the embeddings.
        scaled_init: projections to the residual stream start smaller by sqrt(2 n_layer).
        init_std: standard deviation of initial weights.

    Raises:
        ConfigError: a value has a wrong type or is out of range, n_head does not divide n_embd, or
            a norm is described that the model doesn't have.
    """

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    mlp_dim: int = 0
    norm: str = "layernorm"
    norm_affine: bool = True
    norm_position: str = "pre"
    residual: bool = True
    activation: str = "gelu"
    attn_bias: bool = True
    mlp_bias: bool = True
    tie_embeddings: bool = True
    final_norm: bool = True
    embedding_norm: bool = False
    scaled_init: bool = True
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, field.type, getattr(self, field.name))
        # Equal models are equal data, in whatever file the number stood.
        object.__setattr__(self, "init_std", float(self.init_std))
        if self.n_embd % self.n_head:
            raise ConfigError(
                f"n_head must divide n_embd: n_embd is {self.n_embd}, n_head is {self.n_head}"
            )
        if not self.mlp_dim:
            mlp_dim = _usual_mlp_dim(self.n_embd, self.is_gated)
            if mlp_dim > _LARGEST_INT32:
                raise ConfigError(
                    f"n_embd is {self.n_embd}, too large for the usual mlp_dim, {mlp_dim}, to be "
                    "at most 2**31 - 1"
                )
            object.__setattr__(self, "mlp_dim", mlp_dim)
        if self.num_norms == 0:
            for name, value in (("norm", self.norm), ("norm_affine", self.norm_affine)):
                if value != _DEFAULTS[name]:
                    raise ConfigError(
                        f"{name} is {value!r}, but the model has no norm: norm_position is "
                        "'none', and there is no final and no embedding norm"
                    )

    def __repr__(self) -> str:
        """The sizes, and what is not GPT-2's, as Python would read it."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.to_dict().items())
        return f"ModelConfig({given})"

    @property
    def head_dim(self) -> int:
        """Width of one attention head: n_embd / n_head."""
        return self.n_embd // self.n_head

    @property
    def is_gated(self) -> bool:
        """Whether the activation takes two numbers of the MLP's first layer for one."""
        return self.activation == "swiglu"

    @property
    def hidden_dim(self) -> int:
        """Outputs of the MLP's first layer: mlp_dim, or twice that of a gated activation."""
        return 2 * self.mlp_dim if self.is_gated else self.mlp_dim

    @property
    def num_norms(self) -> int:
        """Norms of the model: two a block unless norm_position is "none", and those at its ends."""
        of_blocks = 0 if self.norm_position == "none" else 2 * self.n_layer
        return of_blocks + self.final_norm + self.embedding_norm

    def to_dict(self) -> dict[str, Any]:
        """The sizes, and whatever of the dialect is not GPT-2's, as plain data in field order."""
        return {
            name: value
            for name, value in self.to_full_dict().items()
            if name not in _DEFAULTS or value != self._default(name)
        }

    def to_full_dict(self) -> dict[str, Any]:
        """Every setting as plain data, in field order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def dialect(self) -> dict[str, Any]:
        """What of the model is not GPT-2's, as plain data; empty where all is."""
        return {name: value for name, value in self.to_dict().items() if name in _DEFAULTS}

    def _default(self, name: str) -> Any:
        if name == "mlp_dim":
            return _usual_mlp_dim(self.n_embd, self.is_gated)
        return _DEFAULTS[name]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build a configuration from plain data; what is missing of the dialect is GPT-2's.

        Raises:
            ConfigError: a size is missing, a key is unknown, or a value is refused.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping):
            raise ConfigError(f"model settings must be named values, got {values!r:.60}")
        unknown = sorted(set(values) - set(names))
        missing = [name for name in names if name not in values and name not in _DEFAULTS]
        if unknown:
            raise ConfigError(f"unknown model setting {unknown[0]!r}; known: {', '.join(names)}")
        if missing:
            raise ConfigError(f"model setting {missing[0]!r} is missing")
        return cls(**{name: values[name] for name in names if name in values})


_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in fields(ModelConfig) if field.default is not MISSING
}
DIALECT_SETTINGS = tuple(_DEFAULTS)


def _usual_mlp_dim(n_embd: int, is_gated: bool) -> int:
    return -(-8 * n_embd // (3 * 64)) * 64 if is_gated else 4 * n_embd


def _check(name: str, kind: object, value: Any) -> None:
    if kind == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, got {value!r:.60}")
    elif kind == "str":
        if value not in CHOICES[name]:
            raise ConfigError(
                f"{name} must be one of {', '.join(CHOICES[name])}, got {value!r:.60}"
            )
    elif kind == "float":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{name} must be a number, got {value!r:.60}")
        if not _SMALLEST_STD <= value <= _LARGEST_STD:
            raise ConfigError(
                f"{name} must be between {_SMALLEST_STD:g} and {_LARGEST_STD:g}, got {value!r:.60}"
            )
    else:
        least = 0 if name == "mlp_dim" else 1
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} must be an integer, got {value!r:.60}")
        if not least <= value <= _LARGEST_INT32:
            raise ConfigError(f"{name} must be between {least} and 2**31 - 1, got {value}")


# Dialects by name: what each has that GPT-2's doesn't.
DIALECTS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    # The ancestor of the family: a norm right after the embeddings and none before the head.
    "microgpt": dict(
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
}

# vocab_size 0 means: chosen from the text. Figures: the family's published table, GPT-2's and
# microgpt's own.
PRESETS: dict[str, dict[str, Any]] = {
    "andrea-nano": dict(vocab_size=0, block_size=128, n_layer=4, n_head=4, n_embd=128),
    "andrea-12m": dict(vocab_size=2305, block_size=1024, n_layer=6, n_head=12, n_embd=384),
    "andrea-120m": dict(vocab_size=8449, block_size=1024, n_layer=12, n_head=12, n_embd=768),
    "andrea-480m": dict(vocab_size=16641, block_size=1024, n_layer=16, n_head=24, n_embd=1536),
    "gpt2": dict(vocab_size=50257, block_size=1024, n_layer=12, n_head=12, n_embd=768),
    "microgpt": dict(
        vocab_size=0, block_size=16, n_layer=1, n_head=4, n_embd=16, **DIALECTS["microgpt"]
    ),
}
