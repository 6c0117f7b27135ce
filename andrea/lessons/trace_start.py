"""What an untrained model is said to be: blocks that hardly change the stream, and predictions in
which all tokens are alike. Whether that is so at a model's size is measured, with stated bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .lens import LogitLens
from .trace import StreamNorms
from .trace_forward import Array

NEAR_IDENTITY = 0.5
"""A block is near the identity if it changes the stream by less than this share of its length."""
NEAR_UNIFORM = 0.95
"""A prediction is near uniform if its entropy is at least this share of ln vocab_size."""


@dataclass(frozen=True)
class Start:
    """How near to doing nothing a model is; means are those over the tokens measured.

    change: (n_layer,) mean of `StreamNorms.change`.
    near_identity: (n_layer,) whether that is below NEAR_IDENTITY.
    uniform: ln vocab_size, the loss of a guess and the largest entropy there is, in nats.
    entropy: (n_layer + 1,) mean entropy of the predictions after each block.
    loss: (n_layer + 1,) mean loss of these predictions; NaN where no token has a successor.
    near_uniform: whether the model's entropy is at least NEAR_UNIFORM of `uniform`.
    """

    change: Array
    near_identity: NDArray[np.bool_]
    uniform: float
    entropy: Array
    loss: Array
    near_uniform: bool


def measure_start(norms: StreamNorms, lens: LogitLens, vocab_size: int) -> Start:
    """Judge what `stream_norms` and `logit_lens` found of one text."""
    change = norms.change.mean(axis=-1)
    entropy = lens.entropy.mean(axis=-1)
    uniform = math.log(vocab_size)
    return Start(
        change=change,
        near_identity=change < NEAR_IDENTITY,
        uniform=uniform,
        entropy=entropy,
        loss=mean_loss(lens),
        near_uniform=bool(entropy[-1] >= NEAR_UNIFORM * uniform),
    )


def mean_loss(lens: LogitLens) -> Array:
    """(n_layer + 1,) mean loss over the positions that have a successor; NaN if none has."""
    known = lens.loss[:, lens.targets >= 0]
    return known.mean(axis=-1) if known.size else np.full(len(lens.loss), np.nan)
