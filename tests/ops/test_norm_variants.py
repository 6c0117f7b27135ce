"""RMSNorm, norms without gain or bias, and norms of the residual stream, against the reference.

A null mean is RMSNorm's; a null gamma or beta is one that the norm doesn't have.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from ops.device import Device, Written, added, output
from reference import ops
from reference.compare import assert_close
from reference.ops import Array

# N, C
SIZES = [(1, 1), (1, 17), (3, 3), (3, 768), (70, 8), (70, 100)]
TOLERANCE = 2e-6


class Norm(NamedTuple):
    """What a norm does and has."""

    centres: bool = True
    gamma: bool = True
    beta: bool = True


NORMS = {
    "layer norm": Norm(),
    "layer norm without bias": Norm(beta=False),
    "layer norm without gain": Norm(gamma=False),
    "layer norm without both": Norm(gamma=False, beta=False),
    "RMSNorm": Norm(centres=False, beta=False),
    "RMSNorm without gain": Norm(centres=False, gamma=False, beta=False),
    "RMSNorm with bias": Norm(centres=False),
}
every_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
every_size = pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))


class Case:
    """Random input of a norm, and what becomes of it in float64."""

    def __init__(
        self, device: Device, rng: np.random.Generator, norm: Norm, size: tuple[int, int]
    ) -> None:
        N, C = size
        self.x = (1.0 + 2.0 * rng.standard_normal((N, C))).astype(np.float32)
        self.gamma = (1.0 + 0.5 * rng.standard_normal(C)).astype(np.float32) if norm.gamma else None
        self.beta = rng.standard_normal(C, np.float32) if norm.beta else None
        self.dout = device.rounded(rng.standard_normal((N, C), np.float32))
        # What the gradients are added to.
        self.before_dx = rng.standard_normal((N, C), np.float32)
        self.before = rng.standard_normal(C, np.float32)
        x, dout, gamma, beta = (
            None if values is None else values.astype(float)
            for values in (self.x, self.dout, self.gamma, self.beta)
        )
        if norm.centres:
            self.out, mean, self.rstd = ops.layer_norm_forward(x, gamma, beta)
            self.dx, self.dgamma, self.dbeta = ops.layer_norm_backward(
                dout, x, mean, self.rstd, gamma
            )
            self.mean: Array | None = mean
        else:
            out, self.rstd = ops.rms_norm_forward(x, gamma)
            self.out = out if beta is None else out + beta
            self.dx, self.dgamma = ops.rms_norm_backward(dout, x, self.rstd, gamma)
            self.dbeta = dout.sum(axis=0)
            self.mean = None
        # Rounding of x - mean is scaled by rstd: in narrow rows of nearly equal numbers it is much.
        self.tolerance = TOLERANCE * max(1.0, self.rstd.max())

    def statistics(self) -> tuple[Written | None, Written]:
        N = len(self.x)
        return None if self.mean is None else output(N), output(N)

    def known_statistics(self) -> tuple[Array | None, Array]:
        mean = None if self.mean is None else self.mean.astype(np.float32)
        return mean, self.rstd.astype(np.float32)

    def check_statistics(
        self, held: dict[Written, Array], mean: Written | None, rstd: Written
    ) -> None:
        if mean is not None:
            assert_close("mean", held[mean], self.mean, TOLERANCE)
        assert_close("rstd", held[rstd], self.rstd, TOLERANCE)

    def parameter_gradients(self) -> tuple[Written | None, Written | None]:
        return tuple(None if p is None else added(self.before) for p in (self.gamma, self.beta))

    def check_parameter_gradients(
        self, held: dict[Written, Array], dgamma: Written | None, dbeta: Written | None
    ) -> None:
        for name, buffer, expected in (
            ("dgamma", dgamma, self.dgamma),
            ("dbeta", dbeta, self.dbeta),
        ):
            if buffer is not None:
                assert_close(name, held[buffer], self.before + expected, self.tolerance)


def run(device: Device, op: str, *arguments: Any) -> dict[Written, Array]:
    """What each buffer holds after an op."""
    buffers = dict.fromkeys(argument for argument in arguments if isinstance(argument, Written))
    return dict(zip(buffers, device.run(op, *arguments), strict=True))


@every_size
@every_norm
def test_forward(
    device: Device, rng: np.random.Generator, norm: Norm, size: tuple[int, int]
) -> None:
    case = Case(device, rng, norm, size)
    out, (mean, rstd) = output(*size), case.statistics()
    held = run(device, "norm_forward", out, mean, rstd, case.x, case.gamma, case.beta, *size)
    assert_close("out", held[out], case.out, TOLERANCE, device.unit)
    case.check_statistics(held, mean, rstd)


@every_size
@every_norm
def test_backward(
    device: Device, rng: np.random.Generator, norm: Norm, size: tuple[int, int]
) -> None:
    case = Case(device, rng, norm, size)
    dx, out, (dgamma, dbeta) = added(case.before_dx), output(*size), case.parameter_gradients()
    elements = dx if device.precision == "fp32" else output(*size)
    given = (case.dout, case.x, *case.known_statistics(), case.gamma, case.beta)
    held = run(device, "norm_backward", dx, elements, out, dgamma, dbeta, *given, *size)
    assert_close("dx", held[dx], case.before_dx + case.dx, case.tolerance)
    assert held[elements].tobytes() == device.rounded(held[dx]).tobytes()
    assert_close("out again", held[out], case.out, case.tolerance, device.unit)
    case.check_parameter_gradients(held, dgamma, dbeta)


@every_size
@every_norm
@pytest.mark.parametrize("in_place", [False, True])
def test_forward_on_the_stream(
    device: Device, rng: np.random.Generator, norm: Norm, size: tuple[int, int], in_place: bool
) -> None:
    """float32 in every precision."""
    case = Case(device, rng, norm, size)
    out = added(case.x) if in_place else output(*size)
    mean, rstd = case.statistics()
    x = out if in_place else case.x
    held = run(device, "stream_norm_forward", out, mean, rstd, x, case.gamma, case.beta, *size)
    assert_close("out", held[out], case.out, TOLERANCE)
    case.check_statistics(held, mean, rstd)


@every_size
@every_norm
def test_backward_on_the_stream(
    device: Device, rng: np.random.Generator, norm: Norm, size: tuple[int, int]
) -> None:
    """dx comes in as the output's gradient, and leaves as the input's."""
    case = Case(device, rng, norm, size)
    dx, (dgamma, dbeta) = added(case.dout), case.parameter_gradients()
    elements = dx if device.precision == "fp32" else output(*size)
    given = (case.x, *case.known_statistics(), case.gamma)
    held = run(device, "stream_norm_backward", dx, elements, dgamma, dbeta, *given, *size)
    # By dout's size: in RMSNorm of a single number a row nothing is left of the difference.
    assert_close("dx", case.dout + held[dx], case.dout + case.dx, case.tolerance)
    assert held[elements].tobytes() == device.rounded(held[dx]).tobytes()
    case.check_parameter_gradients(held, dgamma, dbeta)
    alone = run(device, "stream_norm_backward", dx, None, dgamma, dbeta, *given, *size)
    assert alone[dx].tobytes() == held[dx].tobytes()


@pytest.mark.complete
def test_more_rows_than_a_grid_takes_at_once(device: Device, rng: np.random.Generator) -> None:
    """A GPU's warps, of which some share a row, then go on to others: ThreadSanitizer looks on."""
    case, size = Case(device, rng, NORMS["RMSNorm without gain"], (8500, 516)), (8500, 516)
    out, (_, rstd) = output(*size), case.statistics()
    held = run(device, "norm_forward", out, None, rstd, case.x, None, None, *size)
    assert_close("out", held[out], case.out, TOLERANCE, device.unit)


@pytest.mark.parametrize("C", [33, 64, 100])
@every_norm
def test_the_output_again_has_the_first_ones_bits(
    device: Device, rng: np.random.Generator, norm: Norm, C: int
) -> None:
    """What backward computes once more is what the layer read, in the odd rest of a row too."""
    case, (N, _) = Case(device, rng, norm, (300, C)), (300, C)
    out, again, (mean, rstd) = output(N, C), output(N, C), case.statistics()
    held = run(device, "norm_forward", out, mean, rstd, case.x, case.gamma, case.beta, N, C)
    known = None if mean is None else held[mean], held[rstd]
    of = (added(case.before_dx), None, again, None, None, case.dout, case.x)
    backward = run(device, "norm_backward", *of, *known, case.gamma, case.beta, N, C)
    assert backward[again].tobytes() == held[out].tobytes()


def test_rows_far_from_zero(device: Device, rng: np.random.Generator) -> None:
    """RMSNorm sees their size, not their spread: 1000 +- 1 becomes 1 +- 0.001."""
    x = (1000.0 + rng.standard_normal((5, 96))).astype(np.float32)
    out, rstd = output(5, 96), output(5)
    held = run(device, "norm_forward", out, None, rstd, x, None, None, 5, 96)
    expected, expected_rstd = ops.rms_norm_forward(x.astype(float))
    assert_close("out", held[out], expected, TOLERANCE, device.unit)
    assert_close("rstd", held[rstd], expected_rstd, TOLERANCE)


@pytest.mark.parametrize("centres", [True, False])
def test_rows_of_zeros(device: Device, centres: bool) -> None:
    """eps keeps them from dividing by 0: the output is 0, the gradient what comes back / sqrt(eps),
    and less its mean for a layer norm."""
    N, C = 3, 24
    zeros, dout = np.zeros((N, C), np.float32), np.tile(np.float32([1.0, 0.0]), (N, C // 2))
    mean, rstd, out = output(N) if centres else None, output(N), output(N, C)
    held = run(device, "stream_norm_forward", out, mean, rstd, zeros, None, None, N, C)
    assert not held[out].any()
    assert_close("rstd", held[rstd], np.full(N, 1e-5**-0.5), 1e-6)
    dx, known = added(dout), (np.zeros(N, np.float32) if centres else None, held[rstd])
    held = run(device, "stream_norm_backward", dx, None, None, None, zeros, *known, None, N, C)
    assert_close("dx", held[dx], (dout - (0.5 if centres else 0.0)) * 1e-5**-0.5, 1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("centres", [True, False])
def test_what_is_not_finite_is_not_hidden(device: Device, centres: bool, value: float) -> None:
    x = np.ones((3, 20), np.float32)
    x[1, 7] = value
    out = output(3, 20)
    statistics = output(3) if centres else None, output(3)
    held = run(device, "stream_norm_forward", out, *statistics, x, None, None, 3, 20)
    assert np.isfinite(held[out][[0, 2]]).all() and np.isnan(held[out][1, 7])
