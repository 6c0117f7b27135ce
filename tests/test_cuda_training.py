"""Training on device cuda: the CPU's curve, the same bits each time, few launches, no allocations.

How near single passes and steps come to the reference stands in test_parity.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import andrea
from andrea._library import check, cuda_info, ffi, lib
from gpu import require_gpu
from parity_pair import GPUS, Kind, name_of
from reference.ops import Array
from small_runs import TEXT

pytestmark = pytest.mark.gpu

CONFIG = andrea.ModelConfig(vocab_size=128, block_size=32, n_layer=2, n_head=2, n_embd=32)
BYTES = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int32)
on_gpu = pytest.mark.parametrize("kind", GPUS, ids=name_of)


@pytest.fixture(autouse=True)
def _gpu() -> None:
    require_gpu()


def batches(count: int, B: int = 4, T: int = 32, seed: int = 3) -> Iterator[tuple[Array, Array]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        starts = rng.integers(0, len(BYTES) - T - 1, B)
        rows = BYTES[starts[:, None] + np.arange(T + 1)]
        yield rows[:, :-1].copy(), rows[:, 1:].copy()


def new_model(kind: Kind, config: andrea.ModelConfig = CONFIG, seed: int = 0) -> andrea.GPT:
    return andrea.GPT(config, device=kind.device, precision=kind.precision, seed=seed)


def curve(model: andrea.GPT, steps: int) -> list[float]:
    return [
        model.train_step(tokens, targets, learning_rate=3e-3) for tokens, targets in batches(steps)
    ]


def state(model: andrea.GPT) -> bytes:
    kinds = ("parameters", "first_moments", "second_moments")
    tensors = [tensor for kind in kinds for tensor in model.read(kind).values()]
    return b"".join(tensor.tobytes() for tensor in tensors)


# ---- what is learned


# Two sums in different orders move a step by rounding, and each step is taken from where the last
# one ended. In bf16, 2^-9 of a number is rounding.
CURVE_TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


@on_gpu
def test_the_curve_is_that_of_the_cpu(kind: Kind) -> None:
    there = curve(new_model(kind), 60)
    here = curve(new_model(Kind("cpu", kind.precision)), 60)
    assert there[0] == pytest.approx(np.log(128), abs=0.1) and there[-1] < 0.6 * there[0]
    np.testing.assert_allclose(there, here, rtol=0, atol=CURVE_TOLERANCE[kind.precision])


@on_gpu
def test_two_runs_are_the_same_bits(kind: Kind) -> None:
    one, other = new_model(kind, seed=4), new_model(kind, seed=4)
    assert curve(one, 12) == curve(other, 12)
    assert state(one) == state(other)


@on_gpu
def test_initial_weights_are_those_of_the_cpu(kind: Kind) -> None:
    assert state(new_model(kind, seed=6)) == state(new_model(Kind("cpu", "fp32"), seed=6))


@on_gpu
def test_recorded_steps_are_the_steps_that_were_recorded(kind: Kind) -> None:
    """A shape's first step runs op by op, its second is recorded as a graph, later ones replay it.
    Memory that is released drops the records, so beside a decoder that comes and goes every step
    runs op by op."""
    shapes = [(4, 32), (3, 17), (4, 32), (1, 1), (3, 17), (4, 32), (4, 32), (3, 17), (5, 32)]
    found = []
    for is_recorded in (True, False):
        model = new_model(kind)
        losses = []
        for number, (B, T) in enumerate([*shapes, *shapes]):
            if not is_recorded:
                model.decoder(1)
            ((tokens, targets),) = batches(1, B, T, seed=number)
            # The rate changes from step to step, as it does in training.
            losses.append(model.train_step(tokens, targets, learning_rate=1e-3 * (1 + number)))
            losses.append(model.last_gradient_norm)
        found.append((losses, state(model)))
    assert found[0] == found[1]


@on_gpu
def test_steps_that_nobody_waits_for(kind: Kind) -> None:
    """Queued ahead, with one buffer of the caller's for all batches: each has its own numbers."""
    waited, queued = new_model(kind), new_model(kind)
    tokens, targets = np.empty((2, 4, 32), np.int32)
    for new_tokens, new_targets in batches(8):
        expected = waited.train_step(new_tokens, new_targets, learning_rate=1e-2)
        tokens[:], targets[:] = new_tokens, new_targets
        queued.forward_backward(tokens, targets, wait=False)
        queued.step(learning_rate=1e-2, wait=False)
        tokens[:], targets[:] = 0, 1
    assert queued.loss() == expected
    assert queued.last_gradient_norm == waited.last_gradient_norm
    assert queued.step_count == 8
    assert state(queued) == state(waited)


@on_gpu
def test_a_step_that_is_not_finite_is_left_out(kind: Kind) -> None:
    model = new_model(kind)
    curve(model, 3)
    good = model.read("parameters")["wte.weight"]
    bad = good.copy()
    bad[BYTES[5], 7] = np.inf
    model.write({"wte.weight": bad})
    before = state(model)
    for tokens, targets in batches(3):
        loss = model.train_step(tokens, targets, learning_rate=1e-2)
        assert not np.isfinite(loss) and not np.isfinite(model.last_gradient_norm)
    assert model.step_count == 3 and state(model) == before
    assert not any(gradient.any() for gradient in model.read("gradients").values())
    model.write({"wte.weight": good})
    assert np.isfinite(curve(model, 1)).all() and model.step_count == 4


@on_gpu
def test_decoding_follows_the_weights(kind: Kind) -> None:
    """Products read a copy of the weights in bf16, which must be renewed with them."""
    model, other = new_model(kind), new_model(kind, seed=9)
    decoder = model.decoder(2)
    ((tokens, _),) = batches(1, 2, 21)

    def write() -> None:
        model.write({name: 2.0 * tensor for name, tensor in other.read("parameters").items()})

    changes: dict[str, Any] = {
        "nothing": lambda: None,
        "steps": lambda: curve(model, 9),
        "written": write,
        "reset": lambda: model.reset(3),
    }
    before = np.zeros((2, 128))
    for change, make in changes.items():
        make()
        decoder.reset()
        decoder.feed(list(tokens[:, :20]))
        one_more, whole = decoder.feed(list(tokens[:, 20:])), model.logits(tokens)[:, 20]
        size = np.abs(whole).max()
        assert np.abs(one_more - whole).max() < 0.02 * size, change
        assert np.abs(one_more - before).max() > 0.2 * size, change
        before = one_more.copy()


def test_auto_is_the_gpu_and_bf16() -> None:
    model = andrea.GPT(CONFIG)
    assert (model.device, model.precision) == ("cuda", "bf16")
    assert cuda_info().device_name in model.description and "bf16" in model.description


# ---- what a step costs


def launches() -> int:
    backend = ffi.new("mg_backend**")
    check(lib.mg_backend_create(b"cuda", b"bf16", backend))
    count = int(lib.mg_backend_launches(backend[0]))
    lib.mg_backend_free(backend[0])
    return count


def launches_of_a_step(kind: Kind, n_layer: int, recorded: bool, **dialect: Any) -> int:
    """Of one training step, by ops or as a graph."""
    model = new_model(kind, andrea.ModelConfig(300, 24, n_layer, 2, 16, **dialect))
    (batch,) = batches(1, 2, 24)
    for _ in range(3 if recorded else 0):
        model.train_step(*batch, learning_rate=1e-3)
    model.synchronize()
    making_a_backend = -(launches() - launches())
    before = launches()
    model.train_step(*batch, learning_rate=1e-3)
    return launches() - before - making_a_backend


# Logits take a 32nd of a GPU's memory at most: of an H200's 141 GB, at 50,304 float32 a token, that
# is 21,760 tokens, so 32K of them are 2 chunks and 64K are 4 of them at most.
MORE_CHUNKS = 3
LAUNCHES_PER_CHUNK = 4  # logits, losses, and the gradients of both sides of their product


@on_gpu
@pytest.mark.parametrize("recorded", [False, True], ids=["by ops", "as graphs"])
def test_launches_of_a_step(kind: Kind, recorded: bool) -> None:
    """At most 24 per block and 30 beside. They don't depend on widths, so the 120M shape, which
    would take a simulated GPU an hour, has those of a narrow model of its depth."""
    one, three = (launches_of_a_step(kind, n_layer, recorded) for n_layer in (1, 3))
    per_block = (three - one) / 2
    beside = one - per_block
    assert 10 < per_block <= 24
    assert beside > 5 and beside + MORE_CHUNKS * LAUNCHES_PER_CHUNK <= 30


@on_gpu
def test_launches_of_dialects(kind: Kind) -> None:
    """A bias costs a launch, of its gradient; other activations than GELU one, of forward."""

    def of_a_block(**dialect: Any) -> int:
        one, two = (launches_of_a_step(kind, n_layer, False, **dialect) for n_layer in (1, 2))
        return two - one

    gpt2 = of_a_block()
    without_biases = of_a_block(attn_bias=False, mlp_bias=False)
    assert without_biases == gpt2 - 4
    gated = of_a_block(attn_bias=False, mlp_bias=False, norm="rmsnorm", activation="swiglu")
    assert gated == without_biases + 1
    # A norm of the stream leaves what the next layer reads; backward, sums come by themselves.
    assert of_a_block(norm_position="post") == gpt2 + 4


@on_gpu
def test_post_norms_of_a_width_without_whole_vectors(kind: Kind) -> None:
    """Number by number, they too leave the stream and what the next layer reads of it."""
    config = andrea.ModelConfig(31, 8, 2, 3, 9, norm_position="post")
    (batch,) = batches(1, 2, 8)
    tokens, targets = (ids % 31 for ids in batch)
    losses = [
        andrea.GPT(config, device=device, precision=kind.precision, seed=6).forward(tokens, targets)
        for device in ("cpu", kind.device)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6 if kind.precision == "fp32" else 1e-3)


def free_memory() -> int:
    free = int(cuda_info().memory_free)
    assert free > 0
    return free


@on_gpu
def test_nothing_is_allocated_during_steps(kind: Kind) -> None:
    model = new_model(kind)
    free = []
    for tokens, targets in batches(10):
        model.train_step(tokens, targets, learning_rate=1e-3)
        free.append(free_memory())
    # The first step finds out what is needed, the second may record it.
    assert len(set(free[2:])) == 1 and free[0] - free[2] < 1 << 20


@on_gpu
def test_memory_is_what_was_planned(kind: Kind) -> None:
    config = andrea.ModelConfig(1000, 64, 3, 4, 64)
    planned = andrea.engine_memory(config, 8, device=kind.device, precision=kind.precision)
    before = free_memory()
    model = new_model(kind, config)
    for tokens, targets in batches(3, 8, 64):
        model.train_step(tokens, targets, learning_rate=1e-3)
    taken = before - free_memory()
    assert taken <= planned["total"] <= 1.02 * taken + (1 << 20)
    del model
    assert free_memory() == before
