"""The op tests' own instrument: guards catch what they are for, and refused calls say why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ops.device import Device, Kind, OpError, Written, added, output

X, WEIGHT, BIAS = np.ones((3, 4), np.float32), np.ones((6, 4), np.float32), np.ones(6, np.float32)


def test_a_write_past_the_end_is_seen(device: Device) -> None:
    with pytest.raises(AssertionError, match="linear_forward, buffer 0: written past its end"):
        device.run("linear_forward", output(13), X, WEIGHT, BIAS, 3, 6, 4)


def test_a_write_to_an_input_is_seen(device: Device) -> None:
    with pytest.raises(AssertionError, match="linear_forward, buffer 0: an input was written"):
        device.run("linear_forward", np.zeros((3, 6), np.float32), X, WEIGHT, BIAS, 3, 6, 4)


def test_an_output_that_is_not_written_stays_nan(device: Device) -> None:
    (out,) = device.run("linear_forward", output(5, 6), X, WEIGHT, BIAS, 3, 6, 4)
    assert (out[:3] == 5.0).all() and np.isnan(out[3:]).all()


def test_a_read_past_the_end_brings_nan(device: Device) -> None:
    (total,) = device.run("sum", output(1), np.ones(9, np.float32), 10)
    assert np.isnan(total[0])


def test_elements_that_would_be_rounded_are_refused(device: Device) -> None:
    """Else a test would compare with what the op was never given."""
    x = np.full((3, 4), 1.001, np.float32)
    arguments = ("linear_forward", output(3, 6), x, WEIGHT, BIAS, 3, 6, 4)
    if device.precision == "fp32":
        device.run(*arguments)
        return
    with pytest.raises(AssertionError, match="Elements are not rounded"):
        device.run(*arguments)


@pytest.mark.parametrize("sizes", [(0, 6, 4), (3, 0, 4), (3, 6, 0), (-1, 6, 4)])
def test_sizes_below_one_are_refused(device: Device, sizes: tuple[int, int, int]) -> None:
    with pytest.raises(OpError, match=r"linear_forward: a size is (0|-1) but must be at least 1"):
        device.run("linear_forward", output(3, 6), X, WEIGHT, BIAS, *sizes)


def test_heads_that_do_not_divide_the_width_are_refused(device: Device) -> None:
    qkv = np.zeros((1, 2, 12), np.float32)
    with pytest.raises(OpError, match="attention_forward: NH does not divide C"):
        device.run("attention_forward", output(2, 4), output(6), qkv, 1, 2, 4, 3)


def test_optimizer_options_of_another_size_are_refused(device: Device) -> None:
    values = [added(np.ones(3, np.float32)) for _ in range(4)]
    options = device.ffi.new("mg_step_options*", {"struct_size": 4})
    with pytest.raises(OpError, match="struct_size"):
        device.run("adamw", *values, np.ones(1, np.float32), 3, 1, 1, options)


def test_an_instruction_set_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpError, match="MICROGPT_ISA is sse9, but this library has only: generic"):
        Device(Kind("cpu", "fp32", "sse9"), tmp_path)


def test_a_buffer_given_twice_is_one(device: Device) -> None:
    both = Written(np.full((3, 6), 2.0, np.float32))
    (out,) = device.run("linear_residual_forward", both, both, X, WEIGHT, BIAS, 3, 6, 4)
    assert (out == 7.0).all()
