"""The logit lens: what the model would predict if it stopped after each of its blocks.

The final norm and the head are applied to the residual stream after every block (nostalgebraist
2020, "interpreting GPT: the logit lens"). After the last one that is what the model predicts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from andrea.errors import ArgumentError

from .trace_forward import NORM_EPS, Array, ForwardPass, checked_positions

if TYPE_CHECKING:
    from andrea.model import GPT

# K positions; depth 0 is the stream before the first block, n_layer the whole model.


@dataclass(frozen=True)
class LogitLens:
    """Predictions of the next token after each block.

    positions: (K,) places in the text.
    targets: (K,) the tokens that follow in the text; -1 where none does.
    tokens, probabilities: (n_layer + 1, K, top) the likeliest next tokens, the likeliest first.
    target_probability: (n_layer + 1, K) of the token that follows; NaN where none does.
    target_rank: (n_layer + 1, K) how many tokens were likelier; -1 where none follows.
    loss: (n_layer + 1, K) -ln of target_probability, in nats.
    entropy: (n_layer + 1, K) of the prediction, in nats; ln vocab_size where all are alike.
    """

    positions: NDArray[np.int64]
    targets: NDArray[np.int64]
    tokens: NDArray[np.int64]
    probabilities: Array
    target_probability: Array
    target_rank: NDArray[np.int64]
    loss: Array
    entropy: Array


def logit_lens(
    model: GPT, tokens: ArrayLike, positions: Sequence[int] | None = None, *, top: int = 5
) -> LogitLens:
    """Predictions after each block, at some tokens of a text.

    Costs a product with the head for each position and block, in float64.

    Args:
        model: of any dialect, device and precision; see `ForwardPass`.
        tokens: (T,) token ids, 1 to block_size of them.
        positions: places in the text, from the end where they are negative; None: all.
        top: how many of the likeliest tokens to tell; fewer where the vocabulary has fewer.

    Raises:
        ArgumentError: the tokens are none or too many, there is no such position, or top is below
            1.
        DeviceError: the model is on a GPU and CuPy is not installed.
    """
    if top < 1:
        raise ArgumentError(f"top must be 1 or more, got {top}")
    forward = ForwardPass(model, tokens)
    places = checked_positions(positions, forward.num_tokens)
    targets = np.append(forward.tokens[1:], -1).astype(np.int64)[places]
    rows = [_row(logits, targets, top) for logits in _logits(forward, places)]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return LogitLens(np.array(places, dtype=np.int64), targets, *columns)


def lens_logits(model: GPT, tokens: ArrayLike, positions: Sequence[int] | None = None) -> Array:
    """The logits themselves, (n_layer + 1, K, vocab_size) float64; arguments and errors as in
    `logit_lens`, for small inputs."""
    forward = ForwardPass(model, tokens)
    return np.array(list(_logits(forward, checked_positions(positions, forward.num_tokens))))


def _logits(forward: ForwardPass, places: list[int]) -> Iterator[Array]:
    """Logits (K, vocab_size) after 0 blocks, 1 block, and so on."""
    head = forward.matrix("wte.weight" if forward.config.tie_embeddings else "lm_head.weight")
    for depth in range(forward.config.n_layer + 1):
        stream = forward.stream(depth)[places]
        yield forward.rounded(_final_norm(forward, stream)) @ head.T


def _final_norm(forward: ForwardPass, stream: Array) -> Array:
    if not forward.config.final_norm:
        return stream
    if forward.config.norm == "layernorm":
        stream = stream - stream.mean(axis=-1, keepdims=True)
    variance = (stream * stream).mean(axis=-1, keepdims=True)
    return forward.scaled("ln_f", stream / np.sqrt(variance + NORM_EPS))


def _row(
    logits: Array, targets: NDArray[np.int64], top: int
) -> tuple[NDArray[np.int64], Array, Array, NDArray[np.int64], Array, Array]:
    """What `LogitLens` tells of one depth, in its order."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    order = np.argsort(-log, axis=-1, kind="stable")[:, :top]
    is_known = targets >= 0
    chosen = np.take_along_axis(log, np.maximum(targets, 0)[:, None], axis=-1)
    loss = np.where(is_known, -chosen[:, 0], np.nan)
    rank = np.where(is_known, (log > chosen).sum(axis=-1), -1)
    # Of a sure prediction it is 0, and not -0 by rounding.
    entropy: Array = np.maximum(-(np.exp(log) * log).sum(axis=-1), 0.0) + 0.0
    likeliest = np.exp(np.take_along_axis(log, order, axis=-1))
    return order, likeliest, np.exp(-loss), rank, loss, entropy
