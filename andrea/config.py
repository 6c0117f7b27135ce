"""The model's configuration and the presets of the ANDREA family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .errors import ConfigError

_LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a GPT: token and position counts, depth, heads and width.

    Raises:
        ConfigError: a value is not a positive integer, or n_head does not divide n_embd.
    """

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(f"{field.name} must be an integer, got {value!r}")
            if not 1 <= value <= _LARGEST_INT32:
                raise ConfigError(f"{field.name} must be between 1 and 2**31 - 1, got {value}")
        if self.n_embd % self.n_head:
            raise ConfigError(
                f"n_head must divide n_embd: n_embd is {self.n_embd}, n_head is {self.n_head}"
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head: n_embd / n_head."""
        return self.n_embd // self.n_head

    @property
    def mlp_dim(self) -> int:
        """Width of the MLP's hidden layer: 4 x n_embd."""
        return 4 * self.n_embd

    def to_dict(self) -> dict[str, int]:
        """The configuration as plain data, in field order."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build a configuration from plain data.

        Raises:
            ConfigError: a key is missing or unknown, or a value is refused.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(values, Mapping):
            raise ConfigError(f"model settings must be named values, got {values!r:.60}")
        unknown = sorted(set(values) - set(names))
        missing = [name for name in names if name not in values]
        if unknown:
            raise ConfigError(f"unknown model setting {unknown[0]!r}; known: {', '.join(names)}")
        if missing:
            raise ConfigError(f"model setting {missing[0]!r} is missing")
        return cls(**{name: values[name] for name in names})


# vocab_size 0 means: chosen from the text. Figures: the family's published table.
PRESETS: dict[str, dict[str, int]] = {
    "andrea-nano": dict(vocab_size=0, block_size=128, n_layer=4, n_head=4, n_embd=128),
    "andrea-12m": dict(vocab_size=2305, block_size=1024, n_layer=6, n_head=12, n_embd=384),
    "andrea-120m": dict(vocab_size=8449, block_size=1024, n_layer=12, n_head=12, n_embd=768),
    "andrea-480m": dict(vocab_size=16641, block_size=1024, n_layer=16, n_head=24, n_embd=1536),
}
