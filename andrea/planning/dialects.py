"""Presets and dialects by name: what they fix of a model, and a dialect in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from andrea.config import DIALECT_SETTINGS, DIALECTS, PRESETS, ModelConfig
from andrea.errors import ConfigError

_NORMS = {"layernorm": "layer norm", "rmsnorm": "RMSNorm"}
_ACTIVATIONS = {
    "gelu_erf": "GELU in its erf form",
    "relu": "ReLU",
    "relu2": "squared ReLU",
    "swiglu": "SwiGLU",
}


def preset_sizes(preset: str | None) -> dict[str, Any]:
    """The sizes of a preset by name, and what of its dialect is not GPT-2's; none without one.

    Raises:
        ConfigError: there is no such preset.
    """
    if preset is None:
        return {}
    if preset not in PRESETS:
        raise ConfigError(f"no preset is called {preset!r}; there are {', '.join(PRESETS)}")
    return PRESETS[preset]


def preset_dialect(preset: str | None) -> dict[str, Any]:
    """What of a preset's dialect is not GPT-2's.

    Raises:
        ConfigError: there is no such preset.
    """
    return {name: value for name, value in preset_sizes(preset).items() if name in DIALECT_SETTINGS}


def dialect_settings(dialect: str) -> dict[str, Any]:
    """What a dialect has that GPT-2's doesn't.

    Raises:
        ConfigError: there is no such dialect.
    """
    if dialect not in DIALECTS:
        raise ConfigError(f"no dialect is called {dialect!r}; there are {', '.join(DIALECTS)}")
    return DIALECTS[dialect]


def chosen_dialect(
    preset: str | None, dialect: str | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Settings of a model's dialect: the preset's, or those of the dialect that is named instead,
    and over them what is given; None in there says nothing.

    Raises:
        ConfigError: there is no such preset or dialect.
    """
    below = preset_dialect(preset) if dialect is None else dialect_settings(dialect)
    return {**below, **{name: value for name, value in given.items() if value is not None}}


def dialect_name(own: Mapping[str, Any]) -> str | None:
    """The name of the dialect with these settings, whatever the width of its MLP; None: none."""
    known = {name: value for name, value in own.items() if name != "mlp_dim"}
    return next((name for name, settings in DIALECTS.items() if settings == known), None)


def describe_dialect(config: ModelConfig) -> str:
    """What of a model is not GPT-2's, in words, with the dialect's name; empty where all is."""
    parts = ", ".join(_parts(config))
    name = dialect_name(config.dialect())
    return f"{name}: {parts}" if parts and name not in (None, "gpt2") else parts


def _parts(config: ModelConfig) -> Iterator[str]:
    if config.num_norms == 0:
        yield "no norms"
    else:
        yield from _norms(config)
    if not config.residual:
        yield "no residual connections"
    if config.activation in _ACTIVATIONS:
        yield _ACTIVATIONS[config.activation]
    if "mlp_dim" in config.dialect():
        yield f"MLP {config.mlp_dim:,} wide"
    if not (config.attn_bias or config.mlp_bias):
        yield "no biases"
    elif not config.attn_bias:
        yield "no biases in attention"
    elif not config.mlp_bias:
        yield "no biases in the MLP"
    if not config.tie_embeddings:
        yield "untied head"
    if "init_std" in config.dialect():
        yield f"initial deviation {config.init_std:g}"
    if not config.scaled_init:
        yield "projections that start unscaled"


def _norms(config: ModelConfig) -> Iterator[str]:
    learned = "gain" if config.norm == "rmsnorm" else "gain and bias"
    kind = _NORMS[config.norm] + ("" if config.norm_affine else f" without {learned}")
    if kind != _NORMS["layernorm"]:
        yield kind
    if config.norm_position == "post":
        yield "norms after the sublayers"
    elif config.norm_position == "none":
        yield "no norms in the blocks"
    if config.embedding_norm:
        yield "a norm after the embeddings"
    if not config.final_norm:
        yield "no norm before the head"


def count_norms(config: ModelConfig) -> str:
    """The model's norms, and where they are."""
    if config.num_norms == 0:
        return "none"
    places = []
    if config.embedding_norm:
        places.append("1 after the embeddings")
    if config.norm_position != "none":
        places.append(f"2 x {config.n_layer} in the blocks")
    if config.final_norm:
        places.append("1 before the head")
    return f"{config.num_norms} ({_NORMS[config.norm]}): {', '.join(places)}"
