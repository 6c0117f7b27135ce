"""The engine's whole model against the NumPy reference: loss, logits, gradients, ten steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import andrea
from ops.device import ISAS
from parity_pair import (
    CASES,
    DIRECTION_TOLERANCE,
    PRECISIONS,
    TOLERANCES,
    Kind,
    Pair,
    cases,
    check_gradients,
    every_case,
    every_kind,
    new_engine,
    pair,
    random_batch,
)
from reference import adamw, gpt
from reference.compare import assert_close, assert_same_direction
from reference.ops import Array


@every_case
def test_loss_logits_and_gradients(kind: Kind, case: str) -> None:
    shape, size, spread = CASES[case]
    with pair(kind, shape, spread) as both:
        tokens, targets = random_batch(both.config, size)
        loss, logits, gradients = gpt.loss_and_gradients(
            both.parameters, both.config, tokens, targets
        )
        assert_close("logits", both.engine.logits(tokens), logits, both.tolerances.logits)
        assert_close("loss", both.engine.forward(tokens, targets), loss, both.tolerances.loss)
        both.engine.backward()
        check_gradients(kind.precision, both.engine.read("gradients"), gradients)


@cases("usual", "odd")
def test_forward_backward_in_one(kind: Kind, case: str) -> None:
    """The pass that training uses gives the bits of forward and backward in parts."""
    shape, size, spread = CASES[case]
    with pair(kind, shape, spread) as both:
        tokens, targets = random_batch(both.config, size)
        loss = both.engine.forward(tokens, targets)
        both.engine.backward(loss_scale=0.5)
        apart = both.engine.read("gradients")
        both.engine.zero_gradients()
        assert both.engine.forward_backward(tokens, targets, loss_scale=0.5) == loss
        for name, gradient in both.engine.read("gradients").items():
            assert gradient.tobytes() == apart[name].tobytes(), name


@every_kind
def test_untrained_engine_agrees_too(kind: Kind) -> None:
    """The engine's own initialisation, as training starts from it."""
    config = andrea.ModelConfig(256, 64, 4, 4, 128)
    engine = new_engine(config, kind, seed=7)
    parameters = {
        name: value.astype(np.float64) for name, value in engine.read("parameters").items()
    }
    tokens, targets = random_batch(config, (2, 64))
    loss, _, gradients = gpt.loss_and_gradients(parameters, config, tokens, targets)
    assert abs(loss - np.log(256)) < 0.1
    measured = engine.forward_backward(tokens, targets)
    assert_close("loss", measured, loss, kind.tolerances.loss)
    check_gradients(kind.precision, engine.read("gradients"), gradients)
    engine.close()


@every_kind
def test_ignored_targets(kind: Kind) -> None:
    """Ignored positions count neither in the mean nor in the gradient, wherever they are."""
    shape, size, spread = CASES["usual"]
    with pair(kind, shape, spread) as both:
        tokens, targets = random_batch(both.config, size, ignored=0.0)
        for kept in ((0, 0), (2, 31), (1, 13)):
            only = np.full_like(targets, -1)
            only[kept] = targets[kept]
            loss, _, gradients = gpt.loss_and_gradients(both.parameters, both.config, tokens, only)
            both.engine.zero_gradients()
            measured = both.engine.forward_backward(tokens, only)
            assert_close("loss of one", measured, loss, both.tolerances.one_loss)
            check_gradients(kind.precision, both.engine.read("gradients"), gradients)


@every_kind
@pytest.mark.parametrize(("parts", "rows"), [(4, 2), (8, 1), (2, 4)])
def test_accumulation_equals_the_large_batch(kind: Kind, parts: int, rows: int) -> None:
    """The sum of micro-batches, each scaled by its share, is the gradient of the whole batch."""
    shape, _, spread = CASES["usual"]
    with pair(kind, shape, spread) as both:
        tokens, targets = random_batch(both.config, (8, 32), ignored=0.0)
        loss = both.engine.forward_backward(tokens, targets)
        whole = both.engine.read("gradients")
        _, _, expected = gpt.loss_and_gradients(both.parameters, both.config, tokens, targets)
        both.engine.zero_gradients()
        losses = []
        for part in range(parts):
            piece = slice(part * rows, (part + 1) * rows)
            losses.append(
                both.engine.forward_backward(tokens[piece], targets[piece], loss_scale=1 / parts)
            )
        assert_close("loss", np.mean(losses), loss, both.tolerances.loss)
        for name, gradient in both.engine.read("gradients").items():
            assert_close(f"{name}, parts and whole", gradient, whole[name], both.tolerances.parts)
        check_gradients(kind.precision, both.engine.read("gradients"), expected)
        norm = both.engine.step(learning_rate=0.0)
        assert_close("norm", norm, adamw.global_norm(expected), both.tolerances.norm)


@every_kind
@pytest.mark.parametrize("max_norm", [0.5, 0.0])
def test_ten_optimizer_steps(kind: Kind, max_norm: float) -> None:
    """Loss and norm of each step, then parameters' movement and both moments, by tensor name."""
    shape, size, spread = CASES["usual"]
    options = adamw.AdamWOptions(learning_rate=2e-3, max_norm=max_norm, weight_decay=0.2)
    with pair(kind, shape, spread) as both:
        start = {name: value.copy() for name, value in both.parameters.items()}
        moments = [{name: np.zeros_like(value) for name, value in start.items()} for _ in range(2)]
        for step in range(1, 11):
            tokens, targets = random_batch(both.config, size, seed=60 + step)
            loss, _, gradients = gpt.loss_and_gradients(
                both.parameters, both.config, tokens, targets
            )
            norm = adamw.adamw_step(both.parameters, gradients, *moments, step, options)
            measured = both.engine.forward_backward(tokens, targets)
            assert_close(f"loss of step {step}", measured, loss, both.tolerances.loss)
            measured_norm = both.engine.step(
                learning_rate=options.learning_rate,
                beta1=options.beta1,
                beta2=options.beta2,
                eps=options.eps,
                weight_decay=options.weight_decay,
                max_norm=options.max_norm,
            )
            assert_close(f"norm of step {step}", measured_norm, norm, both.tolerances.norm)
        assert both.engine.step_count == 10
        assert not any(gradient.any() for gradient in both.engine.read("gradients").values())
        check = check_moved_nearly_alike if kind.precision == "bf16" else check_moved_alike
        for name, value in both.engine.read("parameters").items():
            moved = value.astype(np.float64) - start[name]
            expected = both.parameters[name] - start[name]
            set_key_bias(name, moved, 0.0)
            set_key_bias(name, expected, 0.0)
            check(name, start[name], moved, expected)
        for moment, measured_moments, expected_moments in (
            ("first moment", both.engine.read("first_moments"), moments[0]),
            ("second moment", both.engine.read("second_moments"), moments[1]),
        ):
            for name, value in measured_moments.items():
                if kind.precision == "fp32":
                    assert_close(f"{name}, {moment}", value, expected_moments[name], 1e-5)
                else:
                    assert_same_direction(
                        f"{name}, {moment}", value, expected_moments[name], DIRECTION_TOLERANCE
                    )


@every_kind
@pytest.mark.parametrize("limit", ["skip_loss_above", "skip_norm_above"])
def test_a_step_above_a_limit_is_left_out(kind: Kind, limit: str) -> None:
    """As if its batches had never come; at the limit it is done, with the bits of any other."""
    shape, size, spread = CASES["usual"]
    with pair(kind, shape, spread) as limited, pair(kind, shape, spread) as free:

        def step(both: Pair, seed: int, **limits: float) -> tuple[float, float]:
            for part in (0, 1):
                tokens, targets = random_batch(both.config, size, seed=seed + part)
                both.engine.forward_backward(tokens, targets, loss_scale=0.5)
            norm = both.engine.step(learning_rate=1e-2, **limits)
            assert not any(gradient.any() for gradient in both.engine.read("gradients").values())
            return both.engine.update_loss(), norm

        assert step(limited, 80) == step(free, 80)
        before = state_of(limited)
        loss, norm = step(limited, 82, skip_norm_above=1e-20)
        at_limit = np.float32(loss if limit == "skip_loss_above" else norm)
        below_limit = np.nextafter(at_limit, np.float32(0))
        assert step(limited, 82, **{limit: float(below_limit)}) == (loss, norm)
        assert state_of(limited) == before and limited.engine.step_count == 1
        assert step(limited, 82, **{limit: float(at_limit)}) == (loss, norm)
        assert limited.engine.step_count == 2
        assert step(free, 82) == (loss, norm)
        assert state_of(limited) == state_of(free) != before


def state_of(both: Pair) -> bytes:
    kinds = ("parameters", "first_moments", "second_moments")
    tensors = [tensor for kind in kinds for tensor in both.engine.read(kind).values()]
    return b"".join(tensor.tobytes() for tensor in tensors)


@every_kind
@pytest.mark.parametrize("limit", [1e-20, 1e30])
def test_a_loss_that_is_not_finite_is_said_whatever_the_limits(kind: Kind, limit: float) -> None:
    shape, size, spread = CASES["usual"]
    with pair(kind, shape, spread) as both:
        bias = both.engine.read("parameters")["ln_f.bias"]
        both.engine.write({"ln_f.bias": np.full_like(bias, np.nan)})
        both.engine.forward_backward(*random_batch(both.config, size))
        norm = both.engine.step(learning_rate=1e-2, skip_loss_above=limit, skip_norm_above=limit)
        assert np.isnan(norm) and np.isnan(both.engine.update_loss())
        assert both.engine.step_count == 0


def set_key_bias(name: str, values: Array, value: float) -> None:
    """No loss depends on the keys' bias: its gradient is rounding, its steps are chance."""
    if name.endswith("c_attn.bias"):
        values[len(values) // 3 : 2 * len(values) // 3] = value


def check_moved_alike(name: str, start: Array, moved: Array, expected: Array) -> None:
    assert_close(f"{name}, moved", moved, expected, 2e-3)
    assert_close(f"{name}, value", start + moved, start + expected, 1e-4)


def check_moved_nearly_alike(name: str, start: Array, moved: Array, expected: Array) -> None:
    """AdamW divides by a gradient's size, so where that is lost in bf16's rounding, steps are
    chance: a few of a tensor's numbers go elsewhere, the tensor as a whole does not."""
    assert_same_direction(f"{name}, moved", moved, expected, 1e-2)
    assert_close(f"{name}, distance", np.linalg.norm(moved), np.linalg.norm(expected), 3e-2)
    assert_close(f"{name}, value", start + moved, start + expected, 0.2)


@every_kind
def test_train_step_is_the_parts_in_one(kind: Kind) -> None:
    shape, size, spread = CASES["usual"]
    with pair(kind, shape, spread) as one, pair(kind, shape, spread) as parts:
        for seed in (70, 71):
            tokens, targets = random_batch(one.config, size, seed=seed)
            loss = one.engine.train_step(tokens, targets, learning_rate=1e-3, weight_decay=0.3)
            assert parts.engine.forward(tokens, targets) == loss
            parts.engine.backward()
            parts.engine.step(learning_rate=1e-3, weight_decay=0.3)
        expected = parts.engine.read("parameters")
        for name, value in one.engine.read("parameters").items():
            assert value.tobytes() == expected[name].tobytes(), name


CHILD = """
import sys
import numpy as np
import andrea
arrays = dict(np.load(sys.argv[1]))
config = andrea.ModelConfig(*map(int, arrays.pop("shape")))
model = andrea.GPT(config, device="cpu", precision=sys.argv[3])
tokens, targets = arrays.pop("tokens"), arrays.pop("targets")
for name, view in model.parameters().items():
    view[...] = arrays[name]
model.refresh()
loss = model.forward_backward(tokens, targets)
print(andrea.engine_info()["isa"], model.precision)
np.savez(sys.argv[2], loss=loss, logits=model.logits(tokens), **model.gradients())
"""


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("isa", ISAS)
def test_each_instruction_set(precision: str, isa: str, tmp_path: Path) -> None:
    """The instruction set is chosen when the library loads, so each has a process of its own."""
    available = andrea.available_instruction_sets()
    if isa not in available:
        pytest.skip(f"no device cpu-{isa}: this library and CPU have {', '.join(available)}")
    shape, size, spread = CASES["odd"]
    config = andrea.ModelConfig(*shape)
    new_engine(config, Kind("cpu", precision)).close()
    parameters = gpt.init_parameters(config, np.random.default_rng(52), spread)
    parameters = {name: value.astype(np.float32) for name, value in parameters.items()}
    tokens, targets = random_batch(config, size)
    np.savez(tmp_path / "in.npz", shape=shape, tokens=tokens, targets=targets, **parameters)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "in.npz", tmp_path / "out.npz", precision],
        env={**os.environ, "MICROGPT_ISA": isa},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == [isa, precision]
    found = dict(np.load(tmp_path / "out.npz"))
    exact = {name: value.astype(np.float64) for name, value in parameters.items()}
    loss, logits, gradients = gpt.loss_and_gradients(exact, config, tokens, targets)
    tolerances = TOLERANCES[precision]
    assert_close("loss", found.pop("loss"), loss, tolerances.loss)
    assert_close("logits", found.pop("logits"), logits, tolerances.logits)
    check_gradients(precision, found, gradients)
