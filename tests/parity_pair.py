"""One model twice, in the engine and in the NumPy reference, for the tests that compare them.

Parameters are the reference's random ones, biases included, rounded to float32 and written into the
engine. A precision that the engine doesn't have is skipped by name here; that both must be there
stands in test_precision.py. Cases on device cuda are marked `gpu`; the CUDA backend has the CPU
backend's tolerances. Tensors are read as copies, which needs no CuPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import andrea
from gpu import require_gpu
from reference import gpt
from reference.bfloat16 import UNIT
from reference.compare import assert_close, assert_same_direction
from reference.ops import Array

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Kind:
    """Where a model lives, and its precision."""

    device: str
    precision: str

    @property
    def tolerances(self) -> Tolerances:
        return TOLERANCES[self.precision]


CPUS = [Kind("cpu", precision) for precision in PRECISIONS]
GPUS = [Kind("cuda", precision) for precision in PRECISIONS]


def marks(kind: Kind) -> list[Any]:
    return [pytest.mark.gpu] if kind.device == "cuda" else []


def name_of(kind: Kind) -> str:
    return kind.precision if kind.device == "cpu" else f"{kind.device}-{kind.precision}"


every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name_of(kind), marks=marks(kind)) for kind in [*CPUS, *GPUS]]
)


@dataclass(frozen=True)
class Tolerances:
    """Relative errors that are allowed in one precision; the session's table shows the measured."""

    loss: float
    one_loss: float  # of a single position
    logits: float
    gradient: float
    norm: float  # of all gradients together
    decoding: float  # the decoder's logits against those of the engine's whole pass
    parts: float  # gradients of micro-batches together against those of the whole batch


# In bf16 a logit is a sum of products whose left side is the last norm's output, rounded, of a
# stream to which each layer added sums of rounded numbers: together that moves it by a few UNIT of
# the largest logit, and the loss of a position by as much. The mean loss is one over many, where
# such errors cancel. A gradient has come through twice as many roundings, and may be a small
# difference of large terms. Between two ways of the engine only a sum's order differs, so that now
# and then a number is rounded the other way (parts); and whether attention's probabilities are
# rounded (decoding).
TOLERANCES = {
    "fp32": Tolerances(
        loss=1e-6,
        one_loss=1e-6,
        logits=1e-5,
        gradient=1e-4,
        norm=2e-6,
        decoding=1e-5,
        parts=1e-5,
    ),
    "bf16": Tolerances(
        loss=1e-3,
        one_loss=4 * UNIT,
        logits=4 * UNIT,
        gradient=12 * UNIT,
        norm=1e-2,
        decoding=2 * UNIT,
        parts=UNIT,
    ),
}
# The bar for bf16: cosine at least 0.999 between each tensor's gradient and the true one.
DIRECTION_TOLERANCE = 1e-3

# V, block_size, n_layer, n_head, n_embd; B, T; spread of the weights
CASES = {
    "usual": ((65, 32, 2, 4, 48), (3, 32), 0.1),
    "odd": ((97, 37, 3, 3, 33), (2, 35), 0.1),
    "nano": ((256, 128, 4, 4, 128), (2, 128), 0.02),
    "one of each": ((1, 1, 1, 1, 1), (1, 1), 0.3),
    "width 1": ((5, 6, 2, 1, 1), (2, 5), 0.3),
    "width 3": ((4, 6, 1, 3, 3), (3, 6), 0.3),
    "one token": ((11, 8, 2, 2, 10), (5, 1), 0.3),
    "head_dim 80": ((23, 70, 1, 2, 160), (1, 70), 0.05),
    "many rows": ((19, 40, 1, 2, 12), (20, 40), 0.2),
}


def cases(*names: str) -> Any:
    """Each of the cases with each kind. A case alone is that case on the CPU in fp32, which is how
    test_mutation.py names it."""
    return pytest.mark.parametrize(
        ("kind", "case"),
        [
            pytest.param(
                kind,
                case,
                id=case if kind == CPUS[0] else f"{case}-{name_of(kind)}",
                marks=marks(kind),
            )
            for kind in [*CPUS, *GPUS]
            for case in names
        ],
    )


every_case = cases(*CASES)


@dataclass
class Pair:
    """The same model twice: the engine's, and the reference's parameters in float64."""

    config: andrea.ModelConfig
    engine: andrea.GPT
    parameters: gpt.Parameters
    tolerances: Tolerances


def new_engine(config: andrea.ModelConfig, kind: Kind, seed: int = 0) -> andrea.GPT:
    """A model on a device in a precision, or a skip where there is no such device or precision."""
    if kind.device == "cuda":
        require_gpu()
    try:
        return andrea.GPT(config, device=kind.device, precision=kind.precision, seed=seed)
    except andrea.DeviceError as error:
        if kind.device == "cuda":
            raise  # a GPU that can be used has both precisions
        pytest.skip(f"no precision {kind.precision}: {error}")


@contextmanager
def pair(kind: Kind, shape: tuple[int, ...], spread: float, seed: int = 50) -> Iterator[Pair]:
    config = andrea.ModelConfig(*shape)
    parameters = gpt.init_parameters(config, np.random.default_rng(seed), spread)
    with pair_of(kind, config, parameters) as both:
        yield both


@contextmanager
def pair_of(kind: Kind, config: andrea.ModelConfig, parameters: gpt.Parameters) -> Iterator[Pair]:
    engine = new_engine(config, kind)
    rounded = {name: value.astype(np.float32) for name, value in parameters.items()}
    engine.write(rounded)
    parameters = {name: value.astype(np.float64) for name, value in rounded.items()}
    yield Pair(config, engine, parameters, kind.tolerances)
    engine.close()


def random_batch(
    config: andrea.ModelConfig, size: tuple[int, int], seed: int = 51, ignored: float = 0.2
) -> tuple[Array, Array]:
    """Tokens and targets (B, T); a share of the targets is -1, but never the first."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, config.vocab_size, size, np.int32)
    targets = rng.integers(0, config.vocab_size, size, np.int32)
    targets.reshape(-1)[1:][rng.random(targets.size - 1) < ignored] = -1
    return tokens, targets


def check_gradients(
    precision: str,
    measured: dict[str, Array],
    expected: gpt.Parameters,
    tolerance: float = 0.0,
    direction: float = DIRECTION_TOLERANCE,
) -> None:
    """Each tensor within the tolerance, 0: the precision's; in bf16 its direction as well."""
    assert list(measured) == list(expected)
    tolerance = tolerance or TOLERANCES[precision].gradient
    for name, gradient in expected.items():
        assert_close(name, measured[name], gradient, tolerance)
        if precision == "bf16":
            _check_direction(name, measured[name], gradient, direction, least=tolerance / 12)


def _check_direction(
    name: str, measured: Array, expected: Array, tolerance: float, least: float
) -> None:
    parts = {name: slice(None)}
    if "c_attn" in name:
        # The values' gradients are the largest: alone, they would hide the others' direction.
        width = len(expected) // 3
        parts = {
            f"{name} {part}": slice(index * width, (index + 1) * width)
            for index, part in enumerate(("query", "key", "value"))
        }
    for part, rows in parts.items():
        if part.endswith("c_attn.bias key"):
            # All of a query's scores move alike with the keys' bias, which softmax doesn't see: the
            # true gradient is 0, so what rounding leaves has no direction. It must be small.
            left = np.abs(measured[rows]).max()
            assert left <= least * np.abs(expected).max(), f"{part}: {left:.3g} instead of 0"
        else:
            assert_same_direction(f"{part}, 1 - cosine", measured[rows], expected[rows], tolerance)
