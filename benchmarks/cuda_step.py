"""What a training step in bf16 asks of a GPU: each kernel and product that the CUDA backend runs.

Counted from the shapes that native/src/model/gpt.cpp passes and from what the kernels of
native/src/cuda read and write; an operand of a product counts once, one that is written and read
again by a later kernel twice: at these sizes no cache holds it. N = B T rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shapes import Shape

# What a kernel is for. Products and attention multiply matrices; all others move numbers.
PRODUCT, ATTENTION = "products", "attention"
NORM, GELU, SOFTMAX, UPDATE, OTHER = (
    "norms",
    "GELU again",
    "softmax of the logits",
    "update",
    "other",
)

# The head's chunks, as in cuda_products.cpp: logits take a 32nd of the GPU's memory at most, and
# are 2^31 numbers at most.
_HEAD_SHARE, _ROW_MULTIPLE, _VOCABULARY_MULTIPLE = 32, 128, 8


@dataclass(frozen=True)
class Kernel:
    """One kernel or product of an op, which is called `calls` times a step.

    op: as benchmarks/ops.py names it. each: how often a call runs it, with these figures. flops:
    operations done; needed: of them, those that the model's formulas ask for, not done a second
    time. bytes: of memory moved. exponentials: of scores. counts: whether it is a launch that the
    engine counts; clearing memory isn't.
    """

    op: str
    what: str
    kind: str
    calls: int
    bytes: float
    flops: float = 0.0
    needed: float = 0.0
    exponentials: float = 0.0
    counts: bool = True
    each: int = 1

    @property
    def runs(self) -> int:
        """Of a step."""
        return self.calls * self.each


def cuda_step(shape: Shape, gpu_memory: float) -> list[Kernel]:
    """All kernels of forward, backward and update, in about that order."""
    return [
        *_embedding_and_norm(shape),
        *_linear(shape),
        *_attention(shape),
        *_head(shape, gpu_memory),
        *_update(shape),
    ]


def _embedding_and_norm(shape: Shape) -> Iterator[Kernel]:
    N, T, C, V, L = shape.tokens, shape.block_size, shape.n_embd, shape.vocab_size, shape.n_layer
    rows = min(N, V)  # of wte that are touched, at most
    forward = 4 * C * (rows + T + N) + 4 * N
    yield Kernel("embedding forward", "", OTHER, 1, forward)
    statistics, parameters = 8 * N, 8 * C
    yield Kernel("norm forward", "", NORM, 2 * L + 1, N * C * 6 + statistics + parameters)
    # x and dx in, dx out in float32; dout in, dx out and the norm's output again as Elements.
    yield Kernel("norm backward", "", NORM, 2 * L, N * C * 18 + statistics + 24 * C)
    yield Kernel("last norm backward", "", NORM, 1, N * C * 16 + statistics + 24 * C)
    yield Kernel("clear dx", "", OTHER, 1, 4 * N * C, counts=False)
    tokens = 4 * C * (2 * rows + N) + 4 * N
    yield Kernel("embedding backward", "tokens", OTHER, 1, tokens)
    yield Kernel("embedding backward", "positions", OTHER, 1, 4 * C * (2 * T + N))


def _linear(shape: Shape) -> Iterator[Kernel]:
    N, C, L = shape.tokens, shape.n_embd, shape.n_layer
    layers = {"c_attn": (3 * C, C), "attn proj": (C, C), "c_fc": (4 * C, C), "mlp proj": (C, 4 * C)}
    for name, (rows, columns) in layers.items():
        flops, weight = 2.0 * N * rows * columns, 2 * rows * columns
        x, y = 2 * N * columns, 2 * N * rows

        def product(op: str, moved: float, what: str = "", flops: float = flops) -> Kernel:
            return Kernel(op, what, PRODUCT, L, moved, flops, flops)

        if name == "c_attn":
            yield product(f"{name} forward", x + weight + 2 * rows + y)
        elif name == "c_fc":
            yield product(f"{name} forward, GELU", x + weight + 2 * rows + 2 * y)
        else:  # the residual stream in and out, and the bias, in float32
            yield product(f"{name} forward, residual", x + weight + 4 * rows + 4 * y)
        if name == "mlp proj":
            gradient = f"{name} input gradient, GELU"
            yield product(gradient, y + weight + 2 * x, "product")
            yield Kernel(gradient, "GELU again", GELU, L, 2 * x)
        else:
            yield product(f"{name} input gradient", y + weight + x)
        gradient = f"{name} weight gradient"
        yield product(gradient, y + x + 4 * weight + 4 * rows, "product")
        yield Kernel(gradient, "bias", OTHER, L, 12 * rows)


def _seen(T: int, rows: int, keys: int) -> float:
    """Scores that warps of so many queries compute, so many keys at once, up to the diagonal."""
    return float(sum(-(-min(q + rows, T) // keys) * keys * rows for q in range(0, T, rows)))


def _attention(shape: Shape) -> Iterator[Kernel]:
    N, T, C, L = shape.tokens, shape.block_size, shape.n_embd, shape.n_layer
    heads = shape.batch_size * shape.n_head
    one = float(N * T * C)  # a product over the causal half: 2 T C a token, halved
    statistics = 4 * N * shape.n_head
    small = shape.n_embd // shape.n_head <= 64
    forward, backward = _seen(T, 32, 64 if small else 32), _seen(T, 32 if small else 16, 32)
    moved = 8 * N * C + statistics
    yield Kernel("attention forward", "", ATTENTION, L, moved, 2 * one, 2 * one, heads * forward)
    # Scores and the gradients of probabilities are computed by either kernel, so that each sum has
    # one owner: queries make dq of them, from q, k, v, dout and out; keys make dk and dv.
    op, moved, again = "attention backward", 12 * N * C + 2 * statistics, heads * backward
    yield Kernel(op, "queries", ATTENTION, L, moved, 3 * one, 2 * one, again)
    yield Kernel(op, "keys", ATTENTION, L, moved, 4 * one, 2 * one, again)


def head_rows(N: int, V: int, gpu_memory: float) -> int:
    """Rows of logits that are held at once."""
    stride = -(-V // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    most = max(1, min(int(gpu_memory / _HEAD_SHARE / 4), 1 << 31) // stride)
    if most > _ROW_MULTIPLE:
        most = most // _ROW_MULTIPLE * _ROW_MULTIPLE
    if most >= N:
        return N
    chunks = -(-N // most)
    return min(most, -(-N // chunks // _ROW_MULTIPLE) * _ROW_MULTIPLE)


def _head(shape: Shape, gpu_memory: float) -> Iterator[Kernel]:
    """Chunk by chunk; figures are of an average chunk."""
    op = "head and loss, both ways"
    N, C, V = shape.tokens, shape.n_embd, shape.vocab_size
    width = -(-V // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    chunks = -(-N // head_rows(N, V, gpu_memory))
    rows = N / chunks
    needed, padded = 2.0 * rows * V * C, 2.0 * rows * width * C
    logits, gradient, x, wte = 4 * rows * width, 2 * rows * width, 2 * rows * C, 2 * width * C
    yield Kernel(op, "logits", PRODUCT, 1, x + wte + logits, padded, needed, each=chunks)
    yield Kernel(op, "loss", SOFTMAX, 1, logits + gradient + 8 * rows, each=chunks)
    yield Kernel(op, "input gradient", PRODUCT, 1, gradient + wte + x, padded, needed, each=chunks)
    weight = gradient + x + 8 * V * C
    yield Kernel(op, "weight gradient", PRODUCT, 1, weight, needed, needed, each=chunks)
    yield Kernel("loss of the batch", "", OTHER, 1, 4 * N)


def _update(shape: Shape) -> Iterator[Kernel]:
    P = shape.parameters
    yield Kernel("gradient norm", "", UPDATE, 1, 4 * P)
    # Parameters, gradients and moments in and out, the bfloat16 copy out.
    yield Kernel("AdamW", "", UPDATE, 1, 34 * P)
