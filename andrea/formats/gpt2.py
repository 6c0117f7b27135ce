"""Which models GPT-2's own formats can hold, and those models with every tensor that GPT-2 has.

A bias that a model lacks is one of zeros there, and a gain one of ones: the same numbers come out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.config import ModelConfig
from andrea.errors import CheckpointError
from andrea.runs.tensorfile import Tensor

from .weights import LazyTensor, Weights, tensor_shapes

# Biases and gains are filled in, and what a model starts with is over once it is written.
_FIXED: dict[str, Any] = {
    "norm": "layernorm",
    "norm_position": "pre",
    "residual": True,
    "activation": "gelu",
    "tie_embeddings": True,
    "final_norm": True,
    "embedding_norm": False,
}


def as_gpt2(weights: Weights, what: str, **also: tuple[Any, ...] | None) -> Weights:
    """The same model with all of GPT-2's tensors; nothing is copied until it is read.

    what: who is to hold it, for people. also: settings, each with the values that it may have there
    beside GPT-2's, or None for any.

    Raises:
        CheckpointError: a setting has another value.
    """
    config = weights.config
    _refuse_others(config, what, also)
    full = dataclasses.replace(config, norm_affine=True, attn_bias=True, mlp_bias=True)
    there = weights.parameters
    tensors = {
        name: there[name] if name in there else _filled(name, shape)
        for name, shape in tensor_shapes(full).items()
    }
    return Weights(full, tensors, weights.tokenizer)


def _refuse_others(config: ModelConfig, what: str, also: dict[str, tuple[Any, ...] | None]) -> None:
    usual = {**_FIXED, "mlp_dim": 4 * config.n_embd}
    for name, value in usual.items():
        more = also.get(name, ())
        found = getattr(config, name)
        if more is not None and found not in (value, *more):
            known = " or ".join(str(one) for one in (value, *more))
            raise CheckpointError(
                f"{what} can't hold this model: its {name} is {found}, there it is always {known}"
            )


def _filled(name: str, shape: tuple[int, ...]) -> Tensor:
    make: Callable[..., NDArray[Any]] = np.zeros if name.endswith(".bias") else np.ones
    return LazyTensor(shape, partial(make, shape, dtype=np.float32))
