"""The library as its callers use and misuse it: wrong arguments, wrong times, full memory.

A wrong call raises what its documentation says, changes nothing, and never ends the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import andrea
from andrea import ArgumentError, DeviceError, DTypeError, OutOfMemoryError, StateError
from andrea._library import check, ffi, lib
from andrea.arrays import token_array

V, T_MAX = 11, 6
CONFIG = andrea.ModelConfig(vocab_size=V, block_size=T_MAX, n_layer=2, n_head=2, n_embd=8)
BATCH = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int32)
TARGETS = np.array([[2, 3, 4, 5], [6, 7, 8, 9]], np.int32)


@pytest.fixture
def model() -> andrea.GPT:
    return andrea.GPT(CONFIG, device="cpu", precision="fp32", seed=4)


def state_of(model: andrea.GPT) -> bytes:
    kinds = (
        model.parameters(),
        model.gradients(),
        model.first_moments(),
        model.second_moments(),
    )
    return b"".join(view.tobytes() for kind in kinds for view in kind.values())


def take_batches(model: andrea.GPT) -> list[Callable[[Any, Any], object]]:
    """Every call that takes inputs and targets."""
    return [
        model.forward,
        model.forward_backward,
        lambda inputs, targets: model.train_step(inputs, targets, learning_rate=1e-3),
    ]


# ---- token arrays

WRONG_TOKENS = {
    "floats": (BATCH.astype(np.float64), DTypeError),
    "float32 in memory of the right size": (BATCH.astype(np.float32), DTypeError),
    "not a number": (np.full((2, 4), np.nan), DTypeError),
    "booleans": (BATCH > 0, DTypeError),
    "complex numbers": (BATCH.astype(np.complex64), DTypeError),
    "texts": (np.array([["a", "b"]]), DTypeError),
    "objects": (np.array([[object()] * 4] * 2), DTypeError),
    "times": (BATCH.astype("datetime64[s]"), DTypeError),
    "nothing": (None, DTypeError),
    "a dict": ({1: 2}, DTypeError),
    "integers beyond 64 bits": ([[2**70] * 4] * 2, DTypeError),
    "a list of unequal lists": ([[1, 2, 3], [4]], ArgumentError),
    "one dimension": (BATCH[0], ArgumentError),
    "three dimensions": (BATCH[None], ArgumentError),
    "one number": (3, ArgumentError),
    "no sequences": (np.zeros((0, 4), np.int32), ArgumentError),
    "no tokens": (np.zeros((2, 0), np.int32), ArgumentError),
    "longer than block_size": (np.zeros((1, T_MAX + 1), np.int32), ArgumentError),
    "a negative id": (np.where(BATCH == 7, -1, BATCH), ArgumentError),
    "the smallest id": (np.where(BATCH == 7, -(2**31), BATCH).astype(np.int32), ArgumentError),
    "an id as large as the vocabulary": (np.where(BATCH == 8, V, BATCH), ArgumentError),
    "an id that wraps to one of the vocabulary": (BATCH.astype(np.int64) + 2**32, ArgumentError),
    "unsigned ids that wrap": (BATCH.astype(np.uint64) + np.uint64(2**63), ArgumentError),
}


@pytest.mark.parametrize("case", WRONG_TOKENS)
def test_wrong_tokens_are_refused(model: andrea.GPT, case: str) -> None:
    wrong, error = WRONG_TOKENS[case]
    before = state_of(model)
    targets = np.zeros(np.shape(wrong), np.int32) if case != "a list of unequal lists" else TARGETS
    for call in take_batches(model):
        with pytest.raises(error) as caught:
            call(wrong, targets)
        assert "\n" not in str(caught.value)
    with pytest.raises(error):
        model.logits(wrong)
    assert state_of(model) == before and model.step_count == 0


WRONG_TARGETS = {
    "floats": (TARGETS.astype(np.float64), DTypeError),
    "not a number": (np.full((2, 4), np.nan), DTypeError),
    "another shape": (TARGETS[:, :3], ArgumentError),
    "more sequences": (np.repeat(TARGETS, 2, axis=0), ArgumentError),
    "transposed": (TARGETS.T, ArgumentError),
    "below -1": (np.where(TARGETS == 7, -2, TARGETS), ArgumentError),
    "as large as the vocabulary": (np.where(TARGETS == 7, V, TARGETS), ArgumentError),
    "nothing but -1": (np.full_like(TARGETS, -1), ArgumentError),
}


@pytest.mark.parametrize("case", WRONG_TARGETS)
def test_wrong_targets_are_refused(model: andrea.GPT, case: str) -> None:
    wrong, error = WRONG_TARGETS[case]
    before = state_of(model)
    for call in take_batches(model):
        with pytest.raises(error):
            call(BATCH, wrong)
    assert state_of(model) == before and model.step_count == 0


FINE_TOKENS: dict[str, Callable[[np.ndarray], Any]] = {
    "lists": lambda a: a.tolist(),
    "tuples": lambda a: tuple(map(tuple, a.tolist())),
    "int64": lambda a: a.astype(np.int64),
    "uint8": lambda a: a.astype(np.uint8),
    "uint16": lambda a: a.astype(np.uint16),
    "big-endian": lambda a: a.astype(">i4"),
    "columns first": np.asfortranarray,
    "every second column": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "backwards": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "not aligned": lambda a: np.frombuffer(b"x" + a.tobytes(), np.int32, offset=1).reshape(a.shape),
    "not writeable": lambda a: np.frombuffer(a.tobytes(), np.int32).reshape(a.shape),
    "a matrix's subclass": lambda a: np.ma.masked_array(a),
}


def test_the_engine_gets_aligned_numbers() -> None:
    """An array across the middle of its numbers works on some processors, and nowhere by the rules
    of C++."""
    odd = FINE_TOKENS["not aligned"](BATCH)
    assert not odd.flags.aligned
    given = token_array("inputs", odd, ndim=2)
    assert given.flags.aligned and given.flags.c_contiguous
    np.testing.assert_array_equal(given, BATCH)


@pytest.mark.parametrize("case", FINE_TOKENS)
def test_any_integers_will_do(model: andrea.GPT, case: str) -> None:
    convert = FINE_TOKENS[case]
    expected = model.forward(BATCH, TARGETS)
    assert model.forward(convert(BATCH), convert(TARGETS)) == expected
    assert model.logits(convert(BATCH)).tobytes() == model.logits(BATCH).tobytes()


dtypes = st.sampled_from(["i1", "u1", "i2", "u2", "<i4", ">i4", "u4", "i8", "u8", "f4", "f8", "?"])
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=T_MAX + 2)
token_arrays = dtypes.flatmap(
    lambda dtype: (
        arrays.arrays(dtype, shapes)
        | arrays.arrays(dtype, shapes, elements=st.integers(0, 1).map(np.dtype(dtype).type))
    )
)
FUZZED = andrea.GPT(CONFIG, seed=5)


@settings(max_examples=300, deadline=None)
@given(inputs=token_arrays, targets=token_arrays | st.none())
def test_any_arrays_work_or_are_refused(inputs: np.ndarray, targets: np.ndarray | None) -> None:
    if targets is None:  # as often as not, of one shape
        targets = inputs
    fine = inputs.ndim == 2 and inputs.dtype.kind in "iu" and 0 < inputs.shape[1] <= T_MAX
    fine = fine and bool(inputs.size and inputs.min() >= 0 and inputs.max() < V)
    try:
        loss = FUZZED.forward_backward(inputs, targets)
        assert fine and targets.shape == inputs.shape and np.isfinite(loss)
    except (ArgumentError, DTypeError):
        assert not (fine and targets is inputs)
    try:
        assert np.isfinite(FUZZED.logits(inputs)).all() and fine
    except (ArgumentError, DTypeError):
        assert not fine


# ---- other arguments


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        *(("learning_rate", value, ArgumentError) for value in (-1e-3, np.nan, np.inf, 1e39)),
        *(("beta1", value, ArgumentError) for value in (-0.1, 1.0, np.nan)),
        *(("beta2", value, ArgumentError) for value in (-0.1, 1.0, 2.0)),
        *(("eps", value, ArgumentError) for value in (0.0, 1e-39, -1e-8, np.nan)),
        *(("weight_decay", value, ArgumentError) for value in (-0.1, np.inf)),
        *(("max_norm", value, ArgumentError) for value in (-1.0, np.nan)),
        *(("max_norm", value, DTypeError) for value in (None, "much", [1.0, 2.0])),
        ("learning_rate", 10**400, ArgumentError),
        *(("skip_loss_above", value, ArgumentError) for value in (0.0, -1.0, np.nan, -np.inf)),
        *(("skip_norm_above", value, ArgumentError) for value in (0.0, -1.0, np.nan, -(10**400))),
        *(("skip_norm_above", value, DTypeError) for value in (None, "much")),
    ],
    ids=lambda value: None if isinstance(value, type | str) else f"{value!r:.12}",
)
def test_wrong_options_of_a_step(
    model: andrea.GPT, name: str, value: Any, error: type[Exception]
) -> None:
    model.forward_backward(BATCH, TARGETS)
    before = state_of(model)
    with pytest.raises(error, match=name):
        model.step(**{"learning_rate": 1e-3, name: value})
    assert state_of(model) == before and model.step_count == 0


@pytest.mark.parametrize("limit", [np.inf, 10**400, 1e39, np.float64(1e300)])
def test_limits_above_all_numbers_are_none(model: andrea.GPT, limit: float) -> None:
    model.forward_backward(BATCH, TARGETS)
    model.step(1e-3, skip_loss_above=limit, skip_norm_above=limit)
    assert model.step_count == 1


@pytest.mark.parametrize(
    ("scale", "error"),
    [(np.nan, ArgumentError), (-np.inf, ArgumentError), (None, DTypeError), ("one", DTypeError)],
)
def test_wrong_loss_scales(model: andrea.GPT, scale: Any, error: type[Exception]) -> None:
    model.forward(BATCH, TARGETS)
    with pytest.raises(error):
        model.backward(scale)
    with pytest.raises(error):
        model.forward_backward(BATCH, TARGETS, loss_scale=scale)
    model.backward()  # the forward pass is still there to go back through


def test_wrong_models() -> None:
    with pytest.raises(DTypeError, match="ModelConfig"):
        andrea.GPT(CONFIG.to_dict())  # type: ignore[arg-type]
    for device in ("gpu", "", "CPU", "cud", "cpu:1"):
        with pytest.raises(DeviceError, match="cpu"):
            andrea.GPT(CONFIG, device=device)
    for device in ("cuda:", "cuda:x", "cuda:-1", "cuda:99"):
        with pytest.raises(DeviceError, match=device):
            andrea.GPT(CONFIG, device=device)
    with pytest.raises(DTypeError, match="device"):
        andrea.GPT(CONFIG, device=None)  # type: ignore[arg-type]
    for precision in ("fp16", "float32", ""):
        with pytest.raises(DeviceError, match="fp32"):
            andrea.GPT(CONFIG, precision=precision)
    for seed, error in ((-1, ArgumentError), (2**64, ArgumentError), (0.5, DTypeError)):
        with pytest.raises(error, match="seed"):
            andrea.GPT(CONFIG, seed=seed)  # type: ignore[arg-type]
    for count, error in ((-1, ArgumentError), (2**63, ArgumentError), ("many", DTypeError)):
        with pytest.raises(error, match="step_count"):
            andrea.GPT(CONFIG).step_count = count  # type: ignore[assignment]


def test_wrong_thread_counts() -> None:
    before = andrea.get_num_threads()
    for count in (-1, 1025, 2**40, 1.0, None, True):
        with pytest.raises(ArgumentError):
            andrea.set_num_threads(count)  # type: ignore[arg-type]
    assert andrea.get_num_threads() == before


@pytest.mark.parametrize(
    "sizes", [(2**31 - 1, 1, 1, 1, 2**16), (1, 2**31 - 1, 1, 1, 2**16), (9, 9, 2**10, 1, 2**17)]
)
def test_models_that_fit_nowhere(sizes: tuple[int, ...]) -> None:
    with pytest.raises(OutOfMemoryError):
        andrea.GPT(andrea.ModelConfig(*sizes))


@pytest.mark.parametrize("sizes", [(9, 9, 2**16 + 1, 1, 8), (9, 9, 2**16, 1, 2**20)])
def test_models_past_the_engines_limits(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"at most|too large"):
        andrea.GPT(andrea.ModelConfig(*sizes))


@pytest.mark.parametrize("batch_size", [1, 2**31 - 1])
@pytest.mark.parametrize("sizes", [(2**31 - 1, 2**31 - 1, 1, 1, 2**20), (9, 2**31 - 1, 9, 1, 64)])
def test_memory_plans_of_any_size_are_never_negative(
    sizes: tuple[int, ...], batch_size: int
) -> None:
    """Where the sum passes 64 bits the plan is refused; it must not look as if it fitted."""
    try:
        plan = andrea.engine_memory(andrea.ModelConfig(*sizes), batch_size)
    except ArgumentError:
        return
    assert min(plan.values()) > 0
    assert plan["total"] >= 4 * batch_size * sizes[1] * sizes[4]  # the residual stream alone


@pytest.mark.parametrize("device", ["gpu", "", None, "cpu\0", "\udc80"])
def test_wrong_devices_are_refused_everywhere(device: Any) -> None:
    with pytest.raises((DeviceError, DTypeError)):
        andrea.GPT(CONFIG, device=device)
    with pytest.raises((DeviceError, DTypeError)):
        andrea.engine_memory(CONFIG, 1, device=device)


LITTLE_MEMORY = """
import resource
import numpy as np
import andrea
andrea.set_num_threads(1)
small = andrea.ModelConfig(16, 4096, 1, 1, 64)
model = andrea.GPT(small)
tokens = np.zeros((1, 8), np.int32)
loss = model.forward(tokens, tokens)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))

def refused(call):
    try:
        call()
    except andrea.OutOfMemoryError as error:
        assert error.args[0] and "\\n" not in error.args[0]
    else:
        raise AssertionError("there was enough memory")

large = np.zeros((64, 4096), np.int32)
for _ in range(3):
    refused(lambda: andrea.GPT(andrea.ModelConfig(2**20, 8, 1, 1, 128)))
    refused(lambda: model.forward(large, large))
    refused(lambda: model.forward_backward(large, large))
    refused(lambda: model.decoder(1024))
    assert model.forward(tokens, tokens) == loss  # a smaller batch still fits
    model.backward()
print("fine")
"""


def test_more_sequences_than_any_memory_holds() -> None:
    """Refused by their number, before lists of 50 GB are filled or sizes leave 64 bits."""
    model = andrea.GPT(andrea.ModelConfig(V, 1024, 8, 2, 64), device="cpu", precision="fp32")
    for count, said in ((2**31 - 1, "too many"), (0, "at least 1")):
        with pytest.raises(ArgumentError, match=said):
            check(lib.mg_decoder_create(model._model, count, ffi.new("mg_decoder **")))


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_a_full_memory_is_an_exception() -> None:
    child = [sys.executable, "-c", LITTLE_MEMORY]
    done = subprocess.run(child, capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr or f"ended by signal {-done.returncode}"


# ---- order of calls


def test_backward_needs_a_forward_of_its_own(model: andrea.GPT) -> None:
    with pytest.raises(StateError, match="forward"):
        model.backward()
    model.forward(BATCH, TARGETS)
    model.backward()
    gradients = state_of(model)
    with pytest.raises(StateError, match="forward"):
        model.backward()
    assert state_of(model) == gradients
    # What overwrites the activations ends the forward they belong to.
    ends: list[Callable[[], object]] = [
        lambda: model.logits(BATCH),
        lambda: model.step(1e-3),
        lambda: model.reset(1),
        lambda: model.forward_backward(BATCH, TARGETS),
    ]
    for end in ends:
        model.forward(BATCH, TARGETS)
        end()
        with pytest.raises(StateError, match="forward"):
            model.backward()


def test_a_refused_forward_keeps_the_one_before(model: andrea.GPT) -> None:
    other = andrea.GPT(CONFIG, seed=4)
    for each in (model, other):
        each.forward(BATCH, TARGETS)
    with pytest.raises(ArgumentError):
        model.forward(BATCH, np.full_like(TARGETS, -1))
    with pytest.raises(ArgumentError):
        model.forward(BATCH + V, TARGETS)
    for each in (model, other):
        each.backward()
    assert state_of(model) == state_of(other)


def test_a_closed_model_says_so(model: andrea.GPT) -> None:
    views = model.parameters()
    model.close()
    model.close()
    assert "closed" in repr(model)
    calls: list[Callable[[], object]] = [
        lambda: model.forward(BATCH, TARGETS),
        lambda: model.backward(),
        lambda: model.forward_backward(BATCH, TARGETS),
        lambda: model.train_step(BATCH, TARGETS, learning_rate=1e-3),
        lambda: model.step(1e-3),
        lambda: model.logits(BATCH),
        lambda: model.parameters(),
        lambda: model.gradients(),
        lambda: model.first_moments(),
        lambda: model.second_moments(),
        lambda: model.refresh(),
        lambda: model.reset(0),
        lambda: model.decoder(),
        lambda: list(model.generate([1], max_tokens=2)),
        lambda: model.num_parameters,
        lambda: model.step_count,
        lambda: setattr(model, "step_count", 1),
        lambda: model.device,
        lambda: model.precision,
    ]
    for call in calls:
        with pytest.raises(StateError, match="closed"):
            call()
    assert model.config == CONFIG
    assert np.isfinite(views["wte.weight"]).all()
