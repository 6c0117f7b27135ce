"""mg_op_adamw: one step over a range of parameters against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ops.device import Device, OpError, added
from reference.adamw import AdamWOptions, adamw_step
from reference.compare import assert_close
from reference.ops import Array

TOLERANCE = 1e-6


def c_options(device: Device, options: AdamWOptions) -> Any:
    return device.ffi.new(
        "mg_step_options*",
        {
            "struct_size": device.ffi.sizeof("mg_step_options"),
            "learning_rate": options.learning_rate,
            "beta1": options.beta1,
            "beta2": options.beta2,
            "epsilon": options.eps,
            "weight_decay": options.weight_decay,
            "max_norm": options.max_norm,
            "skip_loss_above": options.skip_loss_above,
            "skip_norm_above": options.skip_norm_above,
        },
    )


def run(
    device: Device, values: list[Array], norm: float, decays: bool, step: int, options: AdamWOptions
) -> tuple[Array, ...]:
    return device.run(
        "adamw",
        *(added(value) for value in values),
        np.array([norm], np.float32),
        values[0].size,
        int(decays),
        step,
        c_options(device, options),
    )


def inputs(rng: np.random.Generator, count: int) -> list[Array]:
    """Parameters as small as their updates, gradients, and moments of gradients about as large."""
    parameters, gradients, m, v = rng.standard_normal((4, count), np.float32)
    return [0.02 * parameters, gradients, 0.3 * m, v * v]


@pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 9, 16, 17, 33, 1000, 70001])
@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_one_step(
    device: Device, rng: np.random.Generator, count: int, decays: bool, step: int
) -> None:
    values = inputs(rng, count)
    options = AdamWOptions(learning_rate=0.01, weight_decay=0.3, max_norm=1.0)
    # The reference decays matrices, that is, arrays of two dimensions.
    shape = (1, count) if decays else (count,)
    expected = [{"p": value.astype(float).reshape(shape)} for value in values]
    norm = adamw_step(*expected, step, options)
    found = run(device, values, norm, decays, step, options)
    for name, measured, wanted in zip(("p", "g", "m", "v"), found, expected, strict=True):
        if name != "g":
            assert_close(name, measured, wanted["p"].reshape(-1), TOLERANCE)
    assert not found[1].any()


@pytest.mark.parametrize(("max_norm", "norm"), [(2.0, 8.0), (8.0, 8.0), (20.0, 8.0), (0.0, 8.0)])
def test_clipping_by_the_given_norm(
    device: Device, rng: np.random.Generator, max_norm: float, norm: float
) -> None:
    values = inputs(rng, 50)
    values[1] *= np.float32(norm / np.linalg.norm(values[1].astype(float)))
    options = AdamWOptions(learning_rate=0.01, max_norm=max_norm)
    expected = [{"p": value.astype(float)} for value in values]
    adamw_step(*expected, 3, options)
    found = run(device, values, norm, False, 3, options)
    for name, index in (("p", 0), ("m", 2), ("v", 3)):
        assert_close(name, found[index], expected[index]["p"], TOLERANCE)


def test_no_gradient_no_moment_no_update(device: Device) -> None:
    """0 / (sqrt(0) + eps) is 0: a parameter that was never used stays, but for the decay."""
    values = [np.full(20, 2.0, np.float32), *np.zeros((3, 20), np.float32)]
    options = AdamWOptions(learning_rate=0.01, weight_decay=0.5)
    assert (run(device, values, 0.0, False, 1, options)[0] == 2.0).all()
    assert_close("decayed", run(device, values, 0.0, True, 1, options)[0], np.full(20, 1.99), 1e-7)


@pytest.mark.parametrize("norm", [np.nan, np.inf])
def test_a_norm_that_is_not_finite_only_zeroes_the_gradients(
    device: Device, rng: np.random.Generator, norm: float
) -> None:
    values = inputs(rng, 37)
    values[1][5] = norm
    found = run(device, values, norm, True, 4, AdamWOptions(learning_rate=0.01))
    for index in (0, 2, 3):
        assert found[index].tobytes() == values[index].tobytes()
    assert not found[1].any()


@pytest.mark.parametrize("limit", [7.9999995, 8.0, 8.000001, 0.0, np.inf, 1e-30])
def test_a_norm_above_its_limit_only_zeroes_the_gradients(
    device: Device, rng: np.random.Generator, limit: float
) -> None:
    values = inputs(rng, 37)
    values[1] *= np.float32(8.0 / np.linalg.norm(values[1].astype(float)))
    options = AdamWOptions(learning_rate=0.01, skip_norm_above=limit)
    found = run(device, values, 8.0, True, 4, options)
    unlimited = run(device, values, 8.0, True, 4, AdamWOptions(learning_rate=0.01))
    for index in (0, 2, 3):
        expected = values[index] if 0 < limit < 8.0 else unlimited[index]
        assert found[index].tobytes() == expected.tobytes()
    assert not found[1].any()
    assert unlimited[0].tobytes() != values[0].tobytes()


@pytest.mark.parametrize("name", ["skip_loss_above", "skip_norm_above"])
@pytest.mark.parametrize("limit", [-1.0, np.nan, -np.inf])
def test_limits_that_are_none_are_refused(device: Device, name: str, limit: float) -> None:
    values = [np.ones(3, np.float32)] * 4
    options = AdamWOptions(learning_rate=0.01, **{name: limit})
    with pytest.raises(OpError, match=f"{name} is -?[a-z0-9]+ but must be at least 0"):
        run(device, values, 1.0, False, 1, options)
