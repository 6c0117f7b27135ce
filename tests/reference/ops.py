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

LAYER_NORM_EPS = 1e-5
IGNORED_TARGET = -1
_GELU_SCALE = np.sqrt(2.0 / np.pi)
_GELU_CUBIC = 0.044715


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


def layer_norm_forward(x: Array, gamma: Array, beta: Array) -> tuple[Array, Array, Array]:
    """Layer norm of each row (Ba et al. 2016), biased variance: x (..., C) -> (out, mean, rstd)."""
    mean = x.mean(axis=-1)
    centred = x - mean[..., None]
    rstd = 1.0 / np.sqrt((centred * centred).mean(axis=-1) + LAYER_NORM_EPS)
    return gamma * centred * rstd[..., None] + beta, mean, rstd


def layer_norm_backward(
    dout: Array, x: Array, mean: Array, rstd: Array, gamma: Array
) -> tuple[Array, Array, Array]:
    """Gradients (dx, dgamma, dbeta)."""
    normalized = (x - mean[..., None]) * rstd[..., None]
    dnormalized = dout * gamma
    along_row = (dnormalized * normalized).mean(axis=-1, keepdims=True)
    dx = rstd[..., None] * (
        dnormalized - dnormalized.mean(axis=-1, keepdims=True) - normalized * along_row
    )
    rows = tuple(range(x.ndim - 1))
    return dx, (dout * normalized).sum(axis=rows), dout.sum(axis=rows)


# --- linear: out = x W^T + b


def linear_forward(x: Array, weight: Array, bias: Array) -> Array:
    """Linear layer: x (..., inputs), weight (outputs, inputs), bias (outputs) -> (..., outputs)."""
    return x @ weight.T + bias


def linear_backward(dout: Array, x: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Gradients (dx, dweight, dbias)."""
    dout_rows = dout.reshape(-1, dout.shape[-1])
    x_rows = x.reshape(-1, x.shape[-1])
    return dout @ weight, dout_rows.T @ x_rows, dout_rows.sum(axis=0)


# --- gelu: out = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))


def gelu_forward(x: Array) -> Array:
    """GELU in its tanh form (Hendrycks & Gimpel 2016), elementwise."""
    return 0.5 * x * (1.0 + np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x)))


def gelu_backward(dout: Array, x: Array) -> Array:
    """Gradient dx."""
    tanh = np.tanh(_GELU_SCALE * (x + _GELU_CUBIC * x * x * x))
    dinner = _GELU_SCALE * (1.0 + 3.0 * _GELU_CUBIC * x * x)
    return dout * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * dinner)


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


# --- tied head: logits = x wte^T


def head_forward(x: Array, wte: Array) -> Array:
    """Logits of the head, which shares the token embedding: x (..., C), wte (V, C) -> (..., V)."""
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
