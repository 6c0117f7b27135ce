"""One token followed through one block, and the size of what every block adds to the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .trace_forward import Array, ForwardPass, checked_index
from .trace_gates import OPEN, gate_and_output

if TYPE_CHECKING:
    from andrea.model import GPT

# C is n_embd, D head_dim, P the tokens that the traced one sees: those before it and itself.


@dataclass(frozen=True)
class Norm:
    """A norm of one row of the residual stream.

    mean: the row's; None of RMSNorm, which doesn't ask for it.
    variance: about the mean; of RMSNorm the mean square.
    rstd: 1 / sqrt(variance + 1e-5), as the engine has it.
    normed: (C,) the row less its mean, times rstd, times gain and plus bias where there are such.
    """

    name: str
    mean: float | None
    variance: float
    rstd: float
    normed: Array


@dataclass(frozen=True)
class Attention:
    """A block's attention at one token.

    norm: the one that belongs to it, before it (pre-norm) or after it (post-norm); or None.
    read: (C,) what c_attn reads: the normed stream of a pre-norm block, else the stream.
    query, key, value: (n_head, D) the token's own.
    keys, values: (n_head, P, D) those of all tokens that it sees.
    weights: (n_head, P) softmax(query keys / sqrt(D)); each row sums to 1.
    heads: (n_head, D) the values' sums by these weights, as the engine has them.
    parts: (n_head, C) what each head adds: its columns of c_proj times its sum.
    bias: (C,) of c_proj, the rest of delta; or None.
    delta: (C,) what attention puts out.
    total: (C,) the stream with it: before + delta, or without residual connection delta alone.
    """

    norm: Norm | None
    read: Array
    query: Array
    key: Array
    value: Array
    keys: Array
    values: Array
    weights: Array
    heads: Array
    parts: Array
    bias: Array | None
    delta: Array
    total: Array


@dataclass(frozen=True)
class MLP:
    """A block's MLP at one token; norm, read, delta and total as in `Attention`.

    hidden: (hidden_dim,) what c_fc puts out: mlp_dim numbers, of swiglu twice as many.
    gate: (mlp_dim,) how far the activation opens for each unit, 0 to 1.
    output: (mlp_dim,) what the activation puts out.
    open_share: the share of units that it lets through, their gate above 1/2.
    mean_gate: the gates' mean.
    """

    norm: Norm | None
    read: Array
    hidden: Array
    gate: Array
    output: Array
    open_share: float
    mean_gate: float
    delta: Array
    total: Array


@dataclass(frozen=True)
class TokenTrace:
    """One token through one block.

    tokens: (T,) the text's ids. before, middle, after: (C,) the residual stream at the token before
    the block, between attention and MLP, and after the block.
    """

    tokens: NDArray[np.int32]
    block: int
    position: int
    before: Array
    attention: Attention
    middle: Array
    mlp: MLP
    after: Array


@dataclass(frozen=True)
class StreamNorms:
    """Lengths of the stream and of what blocks add, at every token: float64 arrays.

    stream: (n_layer + 1, T) before each block, and after the last.
    middle: (n_layer, T) between attention and MLP.
    attention, mlp: (n_layer, T) of what each puts out.
    attention_cosine, mlp_cosine: (n_layer, T) of the angle between that and the stream it is added
        to; 0 where one of them is all zero.
    change: (n_layer, T) the length of after - before, over that of before: 0 of a block that does
        nothing.
    kept: (n_layer, T) cosine of the angle between the stream before and after a block.
    """

    stream: Array
    middle: Array
    attention: Array
    mlp: Array
    attention_cosine: Array
    mlp_cosine: Array
    change: Array
    kept: Array


def trace_token(model: GPT, tokens: ArrayLike, block: int = 0, position: int = -1) -> TokenTrace:
    """Follow a token through a block, step by step.

    Args:
        model: of any dialect, device and precision; see `ForwardPass`.
        tokens: (T,) token ids, 1 to block_size of them.
        block: from 0, or from the end with -1 for the last.
        position: of the token, from 0, or from the end.

    Raises:
        ArgumentError: the tokens are none or too many, or there is no such block or position.
        DeviceError: the model is on a GPU and CuPy is not installed.
    """
    block = checked_index("block", block, model.config.n_layer, "the model")
    forward = ForwardPass(model, tokens)
    place = checked_index("token", position, forward.num_tokens, "the text")
    before, middle = forward.stream(block)[place], forward.middle(block)[place]
    attention_delta, mlp_delta = (delta[place] for delta in forward.deltas(block))
    attention_total, mlp_total = (total[place] for total in forward.sums(block))
    return TokenTrace(
        forward.tokens,
        block,
        place,
        before,
        _attention(forward, block, place, before, attention_delta, attention_total),
        middle,
        _mlp(forward, block, place, middle, mlp_delta, mlp_total),
        forward.stream(block + 1)[place],
    )


def _attention(
    forward: ForwardPass, block: int, place: int, before: Array, delta: Array, total: Array
) -> Attention:
    config, h = forward.config, f"h.{block}"
    norm, read = _norm(forward, f"{h}.ln_1", place, before, total)
    packed = forward.rows(f"{h}.attn.c_attn")[: place + 1]
    # A row holds the queries of all heads, then the keys, then the values.
    split = packed.reshape(place + 1, 3, config.n_head, config.head_dim).transpose(1, 2, 0, 3)
    queries, keys, values = split
    query = queries[:, -1]
    heads = forward.rows(f"{h}.attn.heads")[place].reshape(config.n_head, config.head_dim)
    c_proj = forward.matrix(f"{h}.attn.c_proj.weight")
    columns = c_proj.reshape(config.n_embd, config.n_head, config.head_dim)
    return Attention(
        norm=norm,
        read=read,
        query=query,
        key=keys[:, -1],
        value=values[:, -1],
        keys=keys,
        values=values,
        weights=_softmax(np.einsum("hd,hpd->hp", query, keys) / np.sqrt(config.head_dim)),
        heads=heads,
        parts=np.einsum("chd,hd->hc", columns, heads),
        bias=forward.vector(f"{h}.attn.c_proj.bias"),
        delta=delta,
        total=total,
    )


def _mlp(
    forward: ForwardPass, block: int, place: int, middle: Array, delta: Array, total: Array
) -> MLP:
    h = f"h.{block}"
    norm, read = _norm(forward, f"{h}.ln_2", place, middle, total)
    hidden = forward.rows(f"{h}.mlp.c_fc")[place]
    gate, output = gate_and_output(forward.config.activation, hidden)
    return MLP(
        norm=norm,
        read=read,
        hidden=hidden,
        gate=gate,
        output=output,
        open_share=float((gate > OPEN).mean()),
        mean_gate=float(gate.mean()),
        delta=delta,
        total=total,
    )


def _norm(
    forward: ForwardPass, name: str, place: int, before: Array, total: Array
) -> tuple[Norm | None, Array]:
    """The norm of a sublayer, and what its first matrix reads (C,)."""
    position = forward.config.norm_position
    if position == "none":
        return None, forward.rounded(before)
    row = before if position == "pre" else total
    mean = float(forward.rows(f"{name}.mean")[place]) if forward.has(f"{name}.mean") else None
    rstd = float(forward.rows(f"{name}.rstd")[place])
    centred = row - (mean or 0.0)
    normed = forward.scaled(name, centred * rstd)
    if position == "pre":
        normed = forward.rounded(normed)
    norm = Norm(name, mean, float((centred * centred).mean()), rstd, normed)
    return norm, normed if position == "pre" else forward.rounded(before)


def _softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights


def stream_norms(model: GPT, tokens: ArrayLike) -> StreamNorms:
    """Lengths of the residual stream and of what each block adds to it, at every token.

    Args:
        model: of any dialect, device and precision; see `ForwardPass`.
        tokens: (T,) token ids, 1 to block_size of them.

    Raises:
        ArgumentError: the tokens are none or too many.
        DeviceError: the model is on a GPU and CuPy is not installed.
    """
    forward = ForwardPass(model, tokens)
    blocks = range(model.config.n_layer)
    rows: dict[str, list[Array]] = {
        name: [] for name in StreamNorms.__dataclass_fields__ if name != "stream"
    }
    stream = [_length(forward.stream(0))]
    for block in blocks:
        before, middle, after = (
            forward.stream(block),
            forward.middle(block),
            forward.stream(block + 1),
        )
        attention, mlp = forward.deltas(block)
        rows["middle"].append(_length(middle))
        rows["attention"].append(_length(attention))
        rows["mlp"].append(_length(mlp))
        rows["attention_cosine"].append(cosine(before, attention))
        rows["mlp_cosine"].append(cosine(middle, mlp))
        rows["change"].append(_over(_length(after - before), _length(before)))
        rows["kept"].append(cosine(before, after))
        stream.append(_length(after))
    return StreamNorms(stream=np.array(stream), **{name: np.array(of) for name, of in rows.items()})


def cosine(a: Array, b: Array) -> Array:
    """Cosine of the angle between rows (..., C) -> (...); 0 where one is all zero."""
    cosines = _over(np.einsum("...c,...c->...", a, b), _length(a) * _length(b))
    bounded: Array = np.clip(cosines, -1.0, 1.0)
    return bounded


def _length(rows: Array) -> Array:
    lengths: Array = np.linalg.norm(rows, axis=-1)
    return lengths


def _over(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
