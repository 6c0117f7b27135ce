"""The ops of a GPT in NumPy, forward and backward: the truth that the engine is tested against.

Forwards accept complex input, so that complex-step derivatives can prove the backwards, which are
analytic, in float64 (test_reference_ops.py). Sizes: B sequences, T tokens, C n_embd, V vocab_size,
NH heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NORM_EPS = 1e-5
IGNORED_TARGET = -1


# --- embedding: out[b, t] = wte[tokens[b, t]] + wpe[t]


def embedding_forward(tokens: Array, wte: Array, wpe: Array) -> Array:
    """Token plus position embedding: tokens (B, T), wte (V, C), wpe (P >= T, C) -> (B, T, C)."""
    return wte[tokens] + wpe[: tokens.shape[1]]


def embedding_backward(dout: Array, tokens: Array, wte: Array, wpe: Array) -> tuple[Array, Array]:
    """Gradients (dwte, dwpe) of the two tables; rows that no token or position used are zero."""
    dwte = np.zeros(wte.shape)
    dwpe = np.zeros(wpe.shape)
    np.add.at(dwte, tokens, dout)
    dwpe[: tokens.shape[1]] = dout.sum(axis=0)
    return dwte, dwpe


# --- layer norm: out = gamma * (x - mean) * rstd + beta, with rstd = 1 / sqrt(var + eps), per row


def layer_norm_forward(
    x: Array, gamma: Array | None = None, beta: Array | None = None
) -> tuple[Array, Array, Array]:
    """Layer norm of each row (Ba et al. 2016), biased variance: x (..., C) -> (out, mean, rstd).

    gamma and beta (C) may be left out: 1 and 0.
    """
    mean = x.mean(axis=-1)
    centred = x - mean[..., None]
    rstd = 1.0 / np.sqrt((centred * centred).mean(axis=-1) + NORM_EPS)
    return _scaled(centred * rstd[..., None], gamma) + (0.0 if beta is None else beta), mean, rstd


def layer_norm_backward(
    dout: Array, x: Array, mean: Array, rstd: Array, gamma: Array | None = None
) -> tuple[Array, Array, Array]:
    """Gradients (dx, dgamma, dbeta)."""
    normalized = (x - mean[..., None]) * rstd[..., None]
    dnormalized = _scaled(dout, gamma)
    along_row = (dnormalized * normalized).mean(axis=-1, keepdims=True)
    dx = rstd[..., None] * (
        dnormalized - dnormalized.mean(axis=-1, keepdims=True) - normalized * along_row
    )
    return dx, _sum_of_rows(dout * normalized), _sum_of_rows(dout)


# --- RMSNorm: out = gamma * x * rstd, with rstd = 1 / sqrt(mean(x^2) + eps), per row


def rms_norm_forward(x: Array, gamma: Array | None = None) -> tuple[Array, Array]:
    """RMSNorm of each row (Zhang & Sennrich 2019): x (..., C) -> (out, rstd); no gamma (C) is 1."""
    rstd = 1.0 / np.sqrt((x * x).mean(axis=-1) + NORM_EPS)
    return _scaled(x * rstd[..., None], gamma), rstd


def rms_norm_backward(
    dout: Array, x: Array, rstd: Array, gamma: Array | None = None
) -> tuple[Array, Array]:
    """Gradients (dx, dgamma)."""
    normalized = x * rstd[..., None]
    dnormalized = _scaled(dout, gamma)
    along_row = (dnormalized * normalized).mean(axis=-1, keepdims=True)
    dx = rstd[..., None] * (dnormalized - normalized * along_row)
    return dx, _sum_of_rows(dout * normalized)


def _scaled(x: Array, gamma: Array | None) -> Array:
    return x if gamma is None else gamma * x


def _sum_of_rows(x: Array) -> Array:
    return x.sum(axis=tuple(range(x.ndim - 1)))


# --- linear: out = x W^T + b


def linear_forward(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Linear layer: x (..., inputs), weight (outputs, inputs), bias (outputs) -> (..., outputs).

    It may have no bias.
    """
    out = x @ weight.T
    return out if bias is None else out + bias


def linear_backward(dout: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients (dx, dweight, dbias)."""
    dout_rows = dout.reshape(-1, dout.shape[-1])
    x_rows = x.reshape(-1, x.shape[-1])
    return dout @ weight, dout_rows.T @ x_rows, dout_rows.sum(axis=0)


# --- residual add: out = stream + delta


def residual_forward(stream: Array, delta: Array) -> Array:
    """The residual stream with a sublayer's output added; shapes equal."""
    return stream + delta


def residual_backward(dout: Array) -> tuple[Array, Array]:
    """Gradients (dstream, ddelta): both are dout."""
    return dout.copy(), dout.copy()


# --- causal attention, per head: out = softmax(q k^T / sqrt(head_dim)) v, over keys up to the query


def attention_forward(qkv: Array, n_head: int) -> tuple[Array, Array]:
    """Causal attention (Vaswani et al. 2017): qkv (B, T, 3C) -> (out (B, T, C), lse (B, NH, T)).

    A row of qkv holds the queries of all heads, then the keys, then the values; lse is the
    log-sum-exp of each row of scaled scores.
    """
    query, key, value = _split_heads(qkv, n_head)
    weights, lse = _attention_weights(query, key)
    return _merge_heads(weights @ value), lse


def attention_backward(dout: Array, qkv: Array, n_head: int) -> Array:
    """Gradient dqkv (B, T, 3C); the softmax is computed again from qkv."""
    query, key, value = _split_heads(qkv, n_head)
    weights, _ = _attention_weights(query, key)
    (dhead,) = _split_heads(dout, n_head, parts=1)
    dweights = dhead @ value.swapaxes(-1, -2)
    dscores = weights * (dweights - (weights * dweights).sum(axis=-1, keepdims=True))
    dscores /= np.sqrt(query.shape[-1])
    dquery = dscores @ key
    dkey = dscores.swapaxes(-1, -2) @ query
    dvalue = weights.swapaxes(-1, -2) @ dhead
    return np.concatenate([_merge_heads(part) for part in (dquery, dkey, dvalue)], axis=-1)


def _attention_weights(query: Array, key: Array) -> tuple[Array, Array]:
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    causal = np.tri(scores.shape[-1], dtype=bool)
    largest = np.where(causal, scores.real, -np.inf).max(axis=-1, keepdims=True)
    # Scores of the future are replaced before exp, where they could overflow, and again after it.
    exponentials = np.where(causal, np.exp(np.where(causal, scores - largest, 0.0)), 0.0)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / total, (largest + np.log(total))[..., 0]


def _split_heads(packed: Array, n_head: int, parts: int = 3) -> list[Array]:
    batch, length, width = packed.shape
    heads = packed.reshape(batch, length, parts, n_head, width // (parts * n_head))
    return list(heads.transpose(2, 0, 3, 1, 4))


def _merge_heads(heads: Array) -> Array:
    batch, n_head, length, head_dim = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(batch, length, n_head * head_dim)


# --- head: logits = x wte^T; untied, a matrix of its own is in wte's place


def head_forward(x: Array, wte: Array) -> Array:
    """Logits of the head: x (..., C), wte (V, C) -> (..., V)."""
    return x @ wte.T


def head_backward(dlogits: Array, x: Array, wte: Array) -> tuple[Array, Array]:
    """Gradients (dx, dwte)."""
    return dlogits @ wte, dlogits.reshape(-1, wte.shape[0]).T @ x.reshape(-1, wte.shape[1])


# --- cross-entropy: loss = -log softmax(logits)[target], 0 where it is -1; mean over the rest


def cross_entropy_losses(logits: Array, targets: Array) -> Array:
    """Loss of each position in nats: logits (..., V), targets (...) with -1 ignored -> (...)."""
    shifted = logits - logits.real.max(axis=-1, keepdims=True)
    log_total = np.log(np.exp(shifted).sum(axis=-1))
    counted = targets != IGNORED_TARGET
    chosen = np.take_along_axis(shifted, np.where(counted, targets, 0)[..., None], axis=-1)[..., 0]
    return np.where(counted, log_total - chosen, 0.0)


def cross_entropy_forward(logits: Array, targets: Array) -> Any:
    """Mean loss in nats over the targets that are not -1; there must be one."""
    return cross_entropy_losses(logits, targets).sum() / (targets != IGNORED_TARGET).sum()


def cross_entropy_backward(dloss: float, logits: Array, targets: Array) -> Array:
    """Gradient dlogits (..., V) of the mean loss, times dloss."""
    counted = targets != IGNORED_TARGET
    dlogits = softmax(logits)
    one_hot = np.arange(logits.shape[-1]) == targets[..., None]
    return (dlogits - one_hot) * counted[..., None] * (dloss / counted.sum())


def softmax(logits: Array) -> Array:
    """Softmax over the last axis."""
    exponentials = np.exp(logits - logits.real.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
