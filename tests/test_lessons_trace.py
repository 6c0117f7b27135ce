"""One token through a block, the stream's lengths and the logit lens, against the NumPy reference.

The models are those of all pairs of switches (dialects.py), with weights of a size at which every
step is far from the identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.errors import ArgumentError
from andrea.lessons.lens import LogitLens, lens_logits, logit_lens
from andrea.lessons.trace import StreamNorms, TokenTrace, stream_norms, trace_token
from andrea.lessons.trace_gates import gate_and_output
from dialect_pair import TOLERANCE, dialect_pair
from dialects import DIALECTS, config_of
from parity_pair import PRECISIONS, Kind, Pair
from reference import activations, gpt, ops
from reference.compare import assert_close
from reference.ops import Array

every_dialect = pytest.mark.parametrize("name", DIALECTS)
every_precision = pytest.mark.parametrize("precision", PRECISIONS)

TEXT = np.array([3, 1, 4, 1, 5, 9, 2], np.int32)
# What is compared is what the engine kept, or one step from it.
STEP = {"fp32": 2e-6, "bf16": 2.0**-7}


@contextmanager
def engine_and_reference(name: str, precision: str) -> Iterator[tuple[Pair, dict[str, Array]]]:
    with dialect_pair(Kind("cpu", precision), name) as both:
        yield both, gpt.layer_inputs(both.parameters, both.config, TEXT[None])


def reference_streams(both: Pair, layers: dict[str, Array]) -> list[Array]:
    """The stream (T, C) before each block, between its attention and MLP, ..., and after the last:
    2 n_layer + 1 of them."""
    config = both.config
    reads = {"pre": ("ln_1", "ln_2"), "post": ("attn.c_attn", "mlp.c_fc")}
    first, second = reads.get(config.norm_position, reads["post"])
    streams = []
    for layer in range(config.n_layer):
        streams += [layers[f"h.{layer}.{first}"][0], layers[f"h.{layer}.{second}"][0]]
    return [*streams, layers["ln_f" if config.final_norm else "head"][0]]


def reference_deltas(both: Pair, layers: dict[str, Array]) -> list[Array]:
    """What attention and MLP of each block put out, (T, C) each."""
    found = []
    for layer in range(both.config.n_layer):
        for part in ("attn", "mlp"):
            name = f"h.{layer}.{part}.c_proj"
            bias = both.parameters.get(f"{name}.bias")
            weight = both.parameters[f"{name}.weight"]
            found.append(ops.linear_forward(layers[name][0], weight, bias))
    return found


def check_norm(both: Pair, found: Any, name: str, layers: dict[str, Array], place: int) -> None:
    """A traced norm against the reference's of the same name."""
    config = both.config
    tolerance = TOLERANCE[both.engine.precision]
    if config.norm_position == "none":
        assert found is None
        return
    row = layers[name][0][place]
    gain, bias = both.parameters.get(f"{name}.weight"), both.parameters.get(f"{name}.bias")
    if config.norm == "rmsnorm":
        normed, rstd = ops.rms_norm_forward(row, gain)
        assert found.mean is None
        variance = (row * row).mean()
    else:
        normed, mean, rstd = ops.layer_norm_forward(row, gain, bias)
        # 0 but for rounding after another norm: compared by the stream's size.
        assert_close(f"{name}.mean, traced", found.mean + 1.0, mean + 1.0, tolerance)
        variance = row.var()
    assert found.name == name
    assert_close(f"{name}.variance, traced", found.variance, variance, 2 * tolerance)
    assert_close(f"{name}.rstd, traced", found.rstd, rstd, tolerance)
    assert_close(f"{name}, traced", found.normed, normed, tolerance)


@every_precision
@every_dialect
def test_every_step_is_the_references(name: str, precision: str) -> None:
    with engine_and_reference(name, precision) as (both, layers):
        config, tolerance = both.config, TOLERANCE[precision]
        streams, deltas = reference_streams(both, layers), reference_deltas(both, layers)
        for block, place in ((0, 0), (1, 4), (1, len(TEXT) - 1)):
            found = trace_token(both.engine, TEXT, block, place)
            h = f"h.{block}"
            assert (found.block, found.position) == (block, place)
            check_norm(both, found.attention.norm, f"{h}.ln_1", layers, place)
            check_norm(both, found.mlp.norm, f"{h}.ln_2", layers, place)
            query, keys, values = ops._split_heads(layers[f"{h}.qkv"], config.n_head)
            seen = slice(place + 1)
            c_proj = both.parameters[f"{h}.attn.c_proj.weight"]
            mixed = layers[f"{h}.attn.c_proj"][0][place]
            of_heads = np.split(mixed, config.n_head)
            parts = [
                c_proj[:, head * config.head_dim : (head + 1) * config.head_dim] @ values
                for head, values in enumerate(of_heads)
            ]
            hidden = layers[f"{h}.hidden"][0][place]
            expected = {
                "before": (found.before, streams[2 * block][place]),
                "read by attention": (found.attention.read, layers[f"{h}.attn.c_attn"][0][place]),
                "query": (found.attention.query, query[0][:, place]),
                "key": (found.attention.key, keys[0][:, place]),
                "value": (found.attention.value, values[0][:, place]),
                "keys": (found.attention.keys, keys[0][:, seen]),
                "values": (found.attention.values, values[0][:, seen]),
                "weights": (
                    found.attention.weights,
                    ops._attention_weights(query, keys)[0][0][:, place, seen],
                ),
                "heads": (found.attention.heads, np.array(of_heads)),
                "parts": (found.attention.parts, np.array(parts)),
                "attention's delta": (found.attention.delta, deltas[2 * block][place]),
                "middle": (found.middle, streams[2 * block + 1][place]),
                "read by the MLP": (found.mlp.read, layers[f"{h}.mlp.c_fc"][0][place]),
                "hidden": (found.mlp.hidden, hidden),
                "output": (found.mlp.output, layers[f"{h}.mlp.c_proj"][0][place]),
                "the MLP's delta": (found.mlp.delta, deltas[2 * block + 1][place]),
                "after": (found.after, streams[2 * block + 2][place]),
            }
            for step, (measured, wanted) in expected.items():
                assert_close(f"{step}, traced", measured, wanted, tolerance)


@every_precision
@every_dialect
def test_the_steps_add_up(name: str, precision: str) -> None:
    """What is derived follows from what the engine kept: heads to delta, delta to stream."""
    with engine_and_reference(name, precision) as (both, _):
        config, step = both.config, STEP[precision]
        for block in range(config.n_layer):
            found = trace_token(both.engine, TEXT, block, 5)
            attention, mlp = found.attention, found.mlp
            h = f"h.{block}"
            assert_close("rows of weights", attention.weights.sum(axis=-1), np.ones(2), 1e-12)
            mixed = np.einsum("hp,hpd->hd", attention.weights, attention.values)
            assert_close("weights times values", mixed, attention.heads, step)
            bias = 0.0 if attention.bias is None else attention.bias
            assert (attention.bias is None) == (not config.attn_bias)
            # Sums in float32 of numbers that are the same: bf16's matrices are, too.
            added = attention.parts.sum(axis=0) + bias
            assert_close("parts of heads", added, attention.delta, 2e-6)
            weight = both.engine.read()[f"{h}.mlp.c_proj.weight"].astype(np.float64)
            bias = both.engine.read().get(f"{h}.mlp.c_proj.bias", np.zeros(1))
            assert_close("units", mlp.output @ weight.T + bias, mlp.delta, step)
            for part, before, after in (
                (attention, found.before, found.middle),
                (mlp, found.middle, found.after),
            ):
                total = before + part.delta if config.residual else part.delta
                assert np.array_equal(part.total, total)
                if config.norm_position == "post":
                    assert part.norm is not None
                    assert_close("normed stream", after, part.norm.normed, 1e-6)
                    assert_close("read", part.read, before, step)
                else:
                    assert np.array_equal(after, part.total)
                    is_normed = part.norm is not None
                    assert_close("read", part.read, part.norm.normed if is_normed else before, step)
        assert np.array_equal(
            trace_token(both.engine, TEXT, 0, 5).after, trace_token(both.engine, TEXT, 1, 5).before
        )


@every_precision
@every_dialect
def test_lengths_are_the_references(name: str, precision: str) -> None:
    with engine_and_reference(name, precision) as (both, layers):
        tolerance = TOLERANCE[precision]
        streams, deltas = reference_streams(both, layers), reference_deltas(both, layers)
        found = stream_norms(both.engine, TEXT)

        def cosines(a: list[Array], b: list[Array]) -> Array:
            return np.array(
                [
                    [x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(rows, others, strict=True)]
                    for rows, others in zip(a, b, strict=True)
                ]
            )

        lengths = [np.sqrt((stream * stream).sum(axis=-1)) for stream in streams]
        of_deltas = [np.sqrt((delta * delta).sum(axis=-1)) for delta in deltas]
        change = [
            np.sqrt(((after - before) ** 2).sum(axis=-1)) / length
            for before, after, length in zip(
                streams[:-1:2], streams[2::2], lengths[:-1:2], strict=True
            )
        ]
        expected = StreamNorms(
            stream=np.array(lengths[::2]),
            middle=np.array(lengths[1::2]),
            attention=np.array(of_deltas[::2]),
            mlp=np.array(of_deltas[1::2]),
            attention_cosine=cosines(streams[:-1:2], deltas[::2]),
            mlp_cosine=cosines(streams[1::2], deltas[1::2]),
            change=np.array(change),
            kept=cosines(streams[:-1:2], streams[2::2]),
        )
        for field in dataclasses.fields(StreamNorms):
            measured, wanted = getattr(found, field.name), getattr(expected, field.name)
            # Cosines beside 1, not beside the largest of them.
            beside = 2.0 if field.name in ("attention_cosine", "mlp_cosine", "kept") else 0.0
            assert_close(f"{field.name}, lengths", measured + beside, wanted + beside, tolerance)
        # The same as one token's trace.
        traced = trace_token(both.engine, TEXT, 1, 3)
        for lengths, row in (
            (found.stream, traced.before),
            (found.middle, traced.middle),
            (found.attention, traced.attention.delta),
            (found.mlp, traced.mlp.delta),
        ):
            assert np.isclose(lengths[1, 3], np.linalg.norm(row), rtol=1e-12)


@every_precision
@every_dialect
def test_the_last_row_of_the_lens_is_the_models(name: str, precision: str) -> None:
    """And the others are the reference's final norm and head of the streams before it."""
    with engine_and_reference(name, precision) as (both, layers):
        config, p = both.config, both.parameters
        found = lens_logits(both.engine, TEXT)
        assert found.shape == (config.n_layer + 1, len(TEXT), config.vocab_size)
        assert_close("logits, last of lens", found[-1], both.engine.logits(TEXT[None])[0], 4e-6)
        for depth, stream in enumerate(reference_streams(both, layers)[::2]):
            if config.final_norm and config.norm == "rmsnorm":
                stream = ops.rms_norm_forward(stream, p.get("ln_f.weight"))[0]
            elif config.final_norm:
                gain, bias = p.get("ln_f.weight"), p.get("ln_f.bias")
                stream = ops.layer_norm_forward(stream, gain, bias)[0]
            head = p["wte.weight" if config.tie_embeddings else "lm_head.weight"]
            expected = ops.head_forward(stream, head)
            assert_close("logits, lens", found[depth], expected, TOLERANCE[precision])


def test_what_the_lens_tells() -> None:
    model = andrea.GPT(config_of({"init_std": 0.5}), device="cpu", precision="fp32", seed=3)
    found = logit_lens(model, TEXT, [2, -1], top=4)
    probabilities = ops.softmax(lens_logits(model, TEXT, [2, -1]))
    assert list(found.positions) == [2, 6] and list(found.targets) == [1, -1]
    assert found.tokens.shape == found.probabilities.shape == (3, 2, 4)
    for depth in range(3):
        for place in range(2):
            row = probabilities[depth, place]
            order = np.argsort(row)[::-1][:4]
            assert list(found.tokens[depth, place]) == list(order)
            assert np.allclose(found.probabilities[depth, place], row[order], rtol=1e-12)
            entropy = -sum(share * np.log(share) for share in row)
            assert np.isclose(found.entropy[depth, place], entropy, rtol=1e-12)
        row = probabilities[depth, 0]
        assert np.isclose(found.target_probability[depth, 0], row[1], rtol=1e-12)
        assert np.isclose(found.loss[depth, 0], -np.log(row[1]), rtol=1e-12)
        assert found.target_rank[depth, 0] == sum(row > row[1])
    assert np.isnan(found.target_probability[:, 1]).all() and np.isnan(found.loss[:, 1]).all()
    assert list(found.target_rank[:, 1]) == [-1] * 3
    assert logit_lens(model, TEXT, top=99).tokens.shape == (3, 7, 13)


def test_a_sure_prediction_has_an_entropy_of_zero() -> None:
    sizes = {"vocab_size": 20, "block_size": 8, "n_layer": 2, "n_head": 1, "n_embd": 64}
    model = andrea.GPT(andrea.ModelConfig(**sizes, init_std=100.0), device="cpu")
    entropy = logit_lens(model, TEXT).entropy
    assert entropy.min() == 0 and not np.signbit(entropy).any()


@pytest.mark.parametrize("activation", activations.NAMES)
def test_gates_times_what_comes_is_the_activation(activation: str) -> None:
    hidden = np.concatenate([np.linspace(-12, 12, 481), np.random.default_rng(0).normal(size=481)])
    gate, output = gate_and_output(activation, hidden)
    expected = activations.forward(activation, hidden)
    assert_close("activation, gated", output, expected, 1e-14)
    opening = hidden[:481] if activation == "swiglu" else hidden
    assert gate.shape == opening.shape and gate.min() >= 0 and gate.max() <= 1
    assert np.array_equal(gate > 0.5, opening > 0)
    if activation == "gelu_erf":  # the far end keeps its digits: Phi(-8), Abramowitz & Stegun 26.2
        assert np.isclose(gate_and_output("gelu_erf", np.array([-8.0]))[0], 6.220960574e-16, 1e-9)


def test_a_model_of_open_units() -> None:
    """A c_fc whose bias opens three units of eight: the share is 3/8, whatever the token."""
    model = andrea.GPT(
        config_of({"activation": "relu", "mlp_dim": 8}), device="cpu", precision="fp32"
    )
    bias = np.array([1, -1, 1, -1, -1, 1, -1, -1], np.float32)
    zero = np.zeros((8, 12), np.float32)
    model.write({"h.1.mlp.c_fc.weight": zero, "h.1.mlp.c_fc.bias": bias})
    found = trace_token(model, TEXT, -1, -2)
    assert (found.block, found.position) == (1, 5)
    assert found.mlp.open_share == found.mlp.mean_gate == 3 / 8
    assert list(found.mlp.output) == [1, 0, 1, 0, 0, 1, 0, 0]


def test_a_block_of_zeros_changes_nothing() -> None:
    model = andrea.GPT(config_of({}), device="cpu", precision="fp32", seed=1)
    model.write(
        {name: 0 * values for name, values in model.read().items() if name.startswith("h.0.")}
    )
    found = stream_norms(model, TEXT)
    for name in ("attention", "mlp", "attention_cosine", "mlp_cosine", "change"):
        assert not getattr(found, name)[0].any(), name
    assert np.allclose(found.kept[0], 1.0, atol=1e-12)
    assert found.change[1].all()


def test_a_text_of_one_token() -> None:
    model = andrea.GPT(config_of({}), device="cpu", precision="fp32")
    found = trace_token(model, [5])
    assert np.array_equal(found.attention.weights, np.ones((2, 1)))
    assert isinstance(found, TokenTrace) and isinstance(logit_lens(model, [5]), LogitLens)


def test_what_is_returned_is_the_callers() -> None:
    """Views of the engine would change with its next call, and keep it from longer texts."""
    model = andrea.GPT(config_of({}), device="cpu", precision="fp32")
    short, lens, norms = (call(model, TEXT[:2]) for call in (trace_token, logit_lens, stream_norms))
    copies = [value.copy() for value in arrays_of(short, lens, norms)]
    trace_token(model, TEXT)
    model.train_step(TEXT[None], TEXT[None], 0.1)
    for value, copy in zip(arrays_of(short, lens, norms), copies, strict=True):
        assert np.array_equal(value, copy, equal_nan=True)


class OnGPU:
    """An array as CuPy has it: only `get` brings its numbers to the host."""

    def __init__(self, values: Array) -> None:
        self._values = values

    def __getitem__(self, key: Any) -> OnGPU:
        return OnGPU(self._values[key])

    def get(self) -> Array:
        return self._values


def test_arrays_of_a_gpu_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    model = andrea.GPT(config_of({}), device="cpu", precision="fp32")
    expected = trace_token(model, TEXT, 1, 3)
    views = model.activations
    monkeypatch.setattr(
        model, "activations", lambda: {name: OnGPU(array) for name, array in views().items()}
    )
    for fetched, array in zip(
        arrays_of(trace_token(model, TEXT, 1, 3)), arrays_of(expected), strict=True
    ):
        assert np.array_equal(fetched, array)


def arrays_of(*found: Any) -> list[Array]:
    """Every array in dataclasses, however deep."""
    arrays = []
    for one in found:
        for field in dataclasses.fields(one):
            value = getattr(one, field.name)
            if isinstance(value, np.ndarray):
                arrays.append(value)
            elif dataclasses.is_dataclass(value):
                arrays += arrays_of(value)
    return arrays


WRONG = [
    (dict(tokens=[]), "the text is empty"),
    (dict(tokens=range(9)), "the text has 9 tokens, and the model sees 8 at once"),
    (dict(tokens=[1, 13]), "13"),
    (dict(tokens=[[1, 2]]), "tokens"),
    (dict(tokens=[0.5]), "integer"),
    (dict(block=2), "there is no block 2: the model has 0 to 1, or from the end -1 to -2"),
    (dict(block=-3), "there is no block -3"),
    (dict(position=3), "there is no token 3: the text has 0 to 2, or from the end -1 to -3"),
    (dict(position=-4), "there is no token -4"),
    (dict(tokens=[1], position=1), "there is no token 1: the text has 0 alone"),
    (dict(position=1.0), "token must be an integer"),
]


@pytest.mark.parametrize(("changes", "text"), WRONG, ids=[str(changes) for changes, _ in WRONG])
def test_what_cannot_be_traced(changes: dict[str, Any], text: str) -> None:
    model = andrea.GPT(config_of({}), device="cpu", precision="fp32")
    with pytest.raises(andrea.AndreaError, match=text) as caught:
        trace_token(model, **{"tokens": [1, 2, 3], **changes})
    assert "\n" not in str(caught.value)


def test_what_the_lens_cannot_show() -> None:
    model = andrea.GPT(config_of({}), device="cpu", precision="fp32")
    with pytest.raises(ArgumentError, match="there is no token 7"):
        logit_lens(model, TEXT, [0, 7])
    with pytest.raises(ArgumentError, match="top must be 1 or more"):
        logit_lens(model, TEXT, top=0)
