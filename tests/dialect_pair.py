"""One small model of a dialect twice, in the engine and in the NumPy reference; see parity_pair.py.

Models as narrow as these, and in part without the residual stream that carries numbers around the
layers, suffer more from bf16's rounding than others: an error grows from layer to layer, and a mean
over 17 positions lets little of it cancel. Rounding the reference's weights alone moves a gradient
by up to 8% of its largest element. Where it moves a unit's input over 0, relu's derivative is the
other one. What a fault does is turn gradients, by far more.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np

from dialects import DIALECTS, config_of
from parity_pair import Kind, Pair, check_gradients, pair_of
from reference import gpt
from reference.bfloat16 import UNIT
from reference.ops import Array

BATCH = (3, 7)
# Of numbers of a forward pass, and of the mean loss.
TOLERANCE = {"fp32": 1e-5, "bf16": 16 * UNIT}
LOSS = {"fp32": 1e-6, "bf16": 4 * UNIT}
_GRADIENT = {"fp32": 1e-4, "bf16": 0.25}
_DIRECTION = 1e-2
_RELU_GRADIENT, _RELU_DIRECTION = 0.5, 5e-2


def dialect_pair(kind: Kind, name: str) -> AbstractContextManager[Pair]:
    """The model twice, with weights that leave numbers of the size of 1 with and without norms."""
    config = config_of(DIALECTS[name])
    parameters = gpt.init_parameters(config, np.random.default_rng(51), spread=0.3)
    for tensor, value in parameters.items():
        if tensor in ("wte.weight", "wpe.weight", "lm_head.weight"):
            value *= 0.7 / 0.3
        elif value.ndim == 2:
            value *= 1.0 / (value.std() * np.sqrt(value.shape[1]))
    return pair_of(kind, config, parameters)


def check_dialect_gradients(
    kind: Kind, both: Pair, measured: dict[str, Array], expected: gpt.Parameters
) -> None:
    """Every tensor's gradient, as far as the precision allows."""
    if kind.precision == "bf16" and both.config.activation == "relu":
        check_gradients("bf16", measured, expected, _RELU_GRADIENT, _RELU_DIRECTION)
    else:
        check_gradients(kind.precision, measured, expected, _GRADIENT[kind.precision], _DIRECTION)
