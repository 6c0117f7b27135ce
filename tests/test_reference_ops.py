"""The NumPy reference's ops against complex-step derivatives and known facts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from reference import activations, complex_step, ops
from reference.compare import assert_close
from reference.ops import Array

TOLERANCE = 1e-10
# Rows, width: one, odd, and a width that isn't a power of two.
SHAPES = [(1, 1), (1, 7), (3, 1), (3, 5), (4, 12)]
# B, T, NH, head_dim.
ATTENTION_SHAPES = [(1, 1, 1, 1), (2, 1, 2, 3), (1, 5, 1, 1), (1, 4, 3, 3), (2, 7, 2, 4)]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


def check_gradients(
    forward: Callable[..., Array],
    inputs: dict[str, Array],
    backward: Callable[[Array], tuple[Array, ...]],
) -> None:
    """Compare backward(dout) with the complex-step gradient of sum(out * dout), dout random."""
    dout = np.random.default_rng(21).standard_normal(forward(**inputs).shape)
    gradients = backward(dout)
    assert len(gradients) == len(inputs)
    for (name, value), analytic in zip(inputs.items(), gradients, strict=True):

        def projected(moved: Array, name: str = name) -> Array:
            return (forward(**{**inputs, name: moved}) * dout).sum()

        assert_close(f"d{name}", analytic, complex_step.gradient(projected, value), TOLERANCE)


def test_complex_step_itself() -> None:
    x = np.linspace(-2.0, 2.0, 9)
    derivative = complex_step.gradient(lambda z: np.sin(z).sum(), x)
    assert_close("cos", derivative, np.cos(x), 1e-15)
    along = complex_step.directional(
        lambda z: (z["a"] * z["b"]).sum(), {"a": x, "b": x}, {"a": x, "b": x}
    )
    assert_close("product", along, 2 * (x * x).sum(), 1e-15)


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (3, 4)])
def test_embedding_gradients(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    tokens = rng.integers(0, 4, shape)
    tables = {"wte": rng.standard_normal((5, 3)), "wpe": rng.standard_normal((6, 3))}
    check_gradients(
        lambda wte, wpe: ops.embedding_forward(tokens, wte, wpe),
        tables,
        lambda dout: ops.embedding_backward(dout, tokens, **tables),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_gradients(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    inputs = {
        "x": 2.0 + 3.0 * rng.standard_normal(shape),
        "gamma": 1.0 + rng.standard_normal(shape[1]),
        "beta": rng.standard_normal(shape[1]),
    }
    _, mean, rstd = ops.layer_norm_forward(**inputs)
    check_gradients(
        lambda **moved: ops.layer_norm_forward(**moved)[0],
        inputs,
        lambda dout: ops.layer_norm_backward(dout, inputs["x"], mean, rstd, inputs["gamma"]),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_gradients_without_gain_and_bias(
    rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    inputs = {"x": 2.0 + 3.0 * rng.standard_normal(shape)}
    _, mean, rstd = ops.layer_norm_forward(**inputs)
    check_gradients(
        lambda x: ops.layer_norm_forward(x)[0],
        inputs,
        lambda dout: ops.layer_norm_backward(dout, inputs["x"], mean, rstd)[:1],
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("with_gain", [True, False])
def test_rms_norm_gradients(
    rng: np.random.Generator, shape: tuple[int, int], with_gain: bool
) -> None:
    inputs = {"x": 2.0 + 3.0 * rng.standard_normal(shape)}
    if with_gain:
        inputs["gamma"] = 1.0 + rng.standard_normal(shape[1])
    _, rstd = ops.rms_norm_forward(**inputs)
    check_gradients(
        lambda **moved: ops.rms_norm_forward(**moved)[0],
        inputs,
        lambda dout: ops.rms_norm_backward(dout, inputs["x"], rstd, inputs.get("gamma"))[
            : len(inputs)
        ],
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("outputs", [1, 6])
def test_linear_gradients(rng: np.random.Generator, shape: tuple[int, int], outputs: int) -> None:
    inputs = {
        "x": rng.standard_normal(shape),
        "weight": rng.standard_normal((outputs, shape[1])),
        "bias": rng.standard_normal(outputs),
    }
    check_gradients(
        ops.linear_forward,
        inputs,
        lambda dout: ops.linear_backward(dout, inputs["x"], inputs["weight"]),
    )


@pytest.mark.parametrize("name", activations.NAMES)
def test_activation_gradients(rng: np.random.Generator, name: str) -> None:
    x = np.concatenate([np.linspace(-12.0, 12.0, 97), [0.0, 1e-8, -1e-8, 40.0, -40.0]])
    if name == "swiglu":
        x = np.stack([x, rng.standard_normal(x.size)], axis=-1).reshape(-1, 2)
    check_gradients(
        lambda x: activations.forward(name, x),
        {"x": x},
        lambda dout: (activations.backward(name, dout, x),),
    )


def test_residual_gradients(rng: np.random.Generator) -> None:
    inputs = {"stream": rng.standard_normal((3, 5)), "delta": rng.standard_normal((3, 5))}
    check_gradients(ops.residual_forward, inputs, ops.residual_backward)


@pytest.mark.parametrize("shape", ATTENTION_SHAPES)
@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_attention_gradients(
    rng: np.random.Generator, shape: tuple[int, int, int, int], spread: float
) -> None:
    batch, length, n_head, head_dim = shape
    qkv = spread * rng.standard_normal((batch, length, 3 * n_head * head_dim))
    check_gradients(
        lambda qkv: ops.attention_forward(qkv, n_head)[0],
        {"qkv": qkv},
        lambda dout: (ops.attention_backward(dout, qkv, n_head),),
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vocab_size", [1, 9])
def test_head_gradients(rng: np.random.Generator, shape: tuple[int, int], vocab_size: int) -> None:
    inputs = {"x": rng.standard_normal(shape), "wte": rng.standard_normal((vocab_size, shape[1]))}
    check_gradients(ops.head_forward, inputs, lambda dout: ops.head_backward(dout, **inputs))


@pytest.mark.parametrize("targets", [[[3]], [[0, -1, 8], [-1, 4, 4]], [[-1, -1, 2, -1]]])
def test_cross_entropy_gradients(rng: np.random.Generator, targets: list[list[int]]) -> None:
    wanted = np.array(targets)
    logits = 4.0 * rng.standard_normal((*wanted.shape, 9))
    analytic = ops.cross_entropy_backward(0.7, logits, wanted)
    measured = complex_step.gradient(lambda z: 0.7 * ops.cross_entropy_forward(z, wanted), logits)
    assert_close("dlogits", analytic, measured, TOLERANCE)
    assert not analytic[wanted == -1].any()


def test_erfc_is_that_of_the_standard_library() -> None:
    """Where the complex step takes it the imaginary part says nothing new: what counts is the real
    one, on both sides of every border between its formulas."""
    x = np.concatenate([np.linspace(-6.0, 26.0, 3201), [-1.5, 1.5, np.nextafter(1.5, 0), -30.0]])
    exact = np.array([math.erfc(value) for value in x])
    for found in (activations.erfc(x), activations.erfc(x + 1e-30j).real):
        np.testing.assert_allclose(found, exact, rtol=2e-13)


def test_gelu_facts() -> None:
    x = np.linspace(-20.0, 20.0, 40001)
    exact = np.array([0.5 * value * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x])
    assert np.abs(activations.gelu_forward(x) - exact).max() < 1e-3
    assert np.abs(activations.gelu_erf_forward(x) - exact).max() < 1e-14
    for gelu in (activations.gelu_forward, activations.gelu_erf_forward):
        assert gelu(np.zeros(1))[0] == 0.0
        assert_close("large positive", gelu(np.array([30.0])), [30.0], 0.0)
        assert_close("large negative", gelu(np.array([-30.0])), [0.0], 1e-15)


def test_relu_and_gate_facts() -> None:
    x = np.array([-2.0, -0.0, 0.0, 3.0])
    assert activations.relu_forward(x).tolist() == [0.0, 0.0, 0.0, 3.0]
    assert activations.relu2_forward(x).tolist() == [0.0, 0.0, 0.0, 9.0]
    assert activations.relu_backward(np.full(4, 5.0), x).tolist() == [0.0, 0.0, 0.0, 5.0]
    with np.errstate(all="raise", under="ignore"):
        assert activations.sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]
    # A gate of 0 lets nothing through, a large one 1 times itself.
    gates_then_passed = np.array([[0.0, 50.0, -50.0, 7.0, 3.0, 7.0]])
    assert_close("out", activations.swiglu_forward(gates_then_passed), [[0.0, 150.0, 0.0]], 1e-15)


def test_rms_norm_is_layer_norm_of_what_is_centred(rng: np.random.Generator) -> None:
    x = 3.0 * rng.standard_normal((4, 9))
    centred = x - x.mean(axis=-1, keepdims=True)
    out, _, rstd = ops.layer_norm_forward(x)
    same, same_rstd = ops.rms_norm_forward(centred)
    assert_close("out", same, out, 1e-14)
    assert_close("rstd", same_rstd, rstd, 1e-14)
    assert_close("root mean square", np.sqrt((same**2).mean(axis=-1)), np.ones(4), 1e-5)


@settings(deadline=None, max_examples=50)
@given(
    npst.arrays(
        np.float64,
        npst.array_shapes(min_dims=1, max_dims=3, max_side=6),
        elements=st.floats(-1e4, 1e4),
    )
)
def test_softmax_and_layer_norm_statistics(x: Array) -> None:
    probabilities = ops.softmax(x)
    assert (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, atol=1e-12)

    width = x.shape[-1]
    out, mean, rstd = ops.layer_norm_forward(x, np.ones(width), np.zeros(width))
    np.testing.assert_allclose(out.mean(axis=-1), 0.0, atol=1e-9)
    variance = x.var(axis=-1)
    np.testing.assert_allclose(out.var(axis=-1), variance / (variance + 1e-5), atol=1e-9)
    np.testing.assert_allclose(mean, x.mean(axis=-1), atol=1e-9)
    np.testing.assert_allclose(rstd, (variance + 1e-5) ** -0.5, rtol=1e-9)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)
def test_attention_equals_a_loop_over_queries(
    batch: int, length: int, n_head: int, head_dim: int, seed: int
) -> None:
    width = n_head * head_dim
    qkv = 5.0 * np.random.default_rng(seed).standard_normal((batch, length, 3 * width))
    out, lse = ops.attention_forward(qkv, n_head)
    for b, t, head in np.ndindex(batch, length, n_head):
        columns = slice(head * head_dim, (head + 1) * head_dim)
        query = qkv[b, t, :width][columns]
        keys = qkv[b, : t + 1, width : 2 * width][:, columns]
        values = qkv[b, : t + 1, 2 * width :][:, columns]
        weights = np.exp(keys @ query / math.sqrt(head_dim))
        np.testing.assert_allclose(out[b, t, columns], weights @ values / weights.sum(), atol=1e-12)
        np.testing.assert_allclose(lse[b, head, t], math.log(weights.sum()), atol=1e-12)


def test_attention_survives_scores_that_overflow_exp() -> None:
    qkv = np.full((1, 3, 3), 40.0)
    qkv[0, :, 2] = [1.0, 2.0, 3.0]
    out, lse = ops.attention_forward(qkv, 1)
    assert_close("out", out[0, :, 0], [1.0, 1.5, 2.0], 1e-15)
    assert_close("lse", lse[0, 0], 1600.0 + np.log([1.0, 2.0, 3.0]), 1e-15)


@pytest.mark.parametrize("vocab_size", [1, 2, 257])
def test_cross_entropy_of_equal_logits_is_ln_of_vocabulary(vocab_size: int) -> None:
    logits = np.full((2, 3, vocab_size), 900.0)
    targets = np.array([[0, -1, vocab_size - 1], [-1, 0, 0]])
    losses = ops.cross_entropy_losses(logits, targets)
    np.testing.assert_allclose(losses, np.where(targets == -1, 0.0, np.log(vocab_size)))
    np.testing.assert_allclose(ops.cross_entropy_forward(logits, targets), np.log(vocab_size))


def test_embedding_picks_rows() -> None:
    wte, wpe = np.array([[1.0], [2.0], [3.0]]), np.array([[10.0], [20.0], [30.0]])
    out = ops.embedding_forward(np.array([[2, 0], [1, 1]]), wte, wpe)
    assert out[..., 0].tolist() == [[13.0, 21.0], [12.0, 22.0]]
