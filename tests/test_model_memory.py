"""Views of the engine's memory, the life of models and decoders, and what threads don't change."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import andrea
from andrea import ArgumentError, DTypeError

V, T_MAX = 11, 12
CONFIG = andrea.ModelConfig(vocab_size=V, block_size=T_MAX, n_layer=2, n_head=2, n_embd=20)
TOKENS = np.random.default_rng(6).integers(0, V, (3, T_MAX), np.int32)
TARGETS = np.roll(TOKENS, -1, axis=1)


@pytest.fixture
def model() -> andrea.GPT:
    return andrea.GPT(CONFIG, device="cpu", precision="fp32", seed=4)


@pytest.fixture
def default_threads() -> Iterator[None]:
    yield
    andrea.set_num_threads(0)


# ---- views


def test_views_are_the_engines_memory(model: andrea.GPT) -> None:
    first, second = model.parameters(), model.parameters()
    assert sum(view.size for view in first.values()) == model.num_parameters
    for name, view in first.items():
        assert view.dtype == np.float32 and view.flags.writeable and view.flags.c_contiguous
        assert np.shares_memory(view, second[name])
        view[...] = view + 1.0
        assert (second[name] == view).all()
    addresses = sorted((view.ctypes.data, view.nbytes) for view in first.values())
    for (address, size), (following, _) in pairwise(addresses):
        assert address + size <= following


def test_writing_to_a_view_changes_the_model(model: andrea.GPT) -> None:
    before = model.forward(TOKENS, TARGETS)
    other = andrea.GPT(CONFIG, seed=5)
    for name, view in model.parameters().items():
        view[...] = other.parameters()[name]
    model.refresh()
    after = model.forward(TOKENS, TARGETS)
    assert after != before and after == other.forward(TOKENS, TARGETS)


def test_gradient_views_follow_the_calls(model: andrea.GPT) -> None:
    gradients, moments = model.gradients(), model.first_moments()
    assert not any(view.any() for view in gradients.values())
    model.forward_backward(TOKENS, TARGETS)
    once = {name: view.copy() for name, view in gradients.items()}
    assert all(view.any() for view in once.values())
    model.forward_backward(TOKENS, TARGETS)
    for name, view in gradients.items():
        np.testing.assert_allclose(view, 2 * once[name], rtol=1e-4, atol=1e-7)
    gradients["ln_f.bias"][...] = 1e3  # a caller may write there too
    norm = model.step(0.0, max_norm=0.0)
    assert norm > 1e3
    assert not any(view.any() for view in gradients.values())
    assert (moments["ln_f.bias"] == np.float32(1e3) * (1 - np.float32(0.9))).all()


def test_views_keep_the_memory_alive() -> None:
    model = andrea.GPT(CONFIG, seed=4)
    view = model.parameters()["wte.weight"]
    part, expected = view[3:5, ::2], view.copy()
    address = view.ctypes.data
    model.close()
    del model, view
    gc.collect()
    # Had it been given back, new models would be at that place, and write there.
    others = [andrea.GPT(CONFIG, seed=seed) for seed in range(8)]
    starts = [other.parameters()["wte.weight"].ctypes.data for other in others]
    assert address not in starts
    assert (part == expected[3:5, ::2]).all()
    part[...] = 0.0
    del part
    gc.collect()


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
def test_memory_comes_back() -> None:
    """Thirty models of 8 MB of parameters and gradients, one after another."""
    config = andrea.ModelConfig(1000, 64, 1, 2, 256)
    tokens = np.zeros((1, 64), np.int32)

    def use() -> None:
        model = andrea.GPT(config)
        model.forward_backward(tokens, tokens)
        model.decoder(2).feed([[1], [2]])

    for _ in range(3):
        use()
    gc.collect()
    before = resident_bytes()
    for _ in range(30):
        use()
    assert resident_bytes() - before < 2**26


# ---- decoders


def test_a_decoder_outlives_its_model(model: andrea.GPT) -> None:
    expected = model.logits(TOKENS[:1, :3])[0, -1]
    decoder = model.decoder()
    model.close()
    del model
    gc.collect()
    logits = decoder.feed([TOKENS[0, :3]])
    np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-6)


def test_wrong_decoders_and_feeds(model: andrea.GPT) -> None:
    for size, error in ((0, ArgumentError), (-1, ArgumentError), (1.5, DTypeError)):
        with pytest.raises(error, match="batch_size"):
            model.decoder(size)  # type: ignore[arg-type]
    decoder = model.decoder(2)
    kept = decoder.feed([[1, 2], [3]])
    wrong: list[tuple[Any, type[Exception]]] = [
        ([[1]], ArgumentError),
        ([[1], [2], [3]], ArgumentError),
        ([[1], [V]], ArgumentError),
        ([[1], [-1]], ArgumentError),
        ([[1], [2**40]], ArgumentError),
        ([[1], [[2]]], ArgumentError),
        ([[1], 2], ArgumentError),
        ([[1], [0.5]], DTypeError),
        ([[1], "a"], DTypeError),
        ([[1], None], DTypeError),
        (None, DTypeError),
        (7, DTypeError),
    ]
    for tokens, error in wrong:
        with pytest.raises(error):
            decoder.feed(tokens)
        assert decoder.lengths == [2, 1]
    again = decoder.feed([[], []])
    assert again.tobytes() == kept.tobytes() and not np.shares_memory(again, kept)
    decoder.reset()
    assert decoder.feed(np.array([[1, 2], [3, 4]], np.uint8))[0].tobytes() == kept[0].tobytes()


def test_rows_fed_nothing_keep_their_logits(model: andrea.GPT) -> None:
    decoder = model.decoder(3)
    assert not decoder.feed([[], [], []]).any()
    first = decoder.feed([[1, 2], [], [3]])
    assert first[0].any() and not first[1].any() and first[2].any()
    second = decoder.feed([[], [4], []])
    assert (second[0] == first[0]).all() and second[1].any() and (second[2] == first[2]).all()
    decoder.reset()
    assert decoder.lengths == [0, 0, 0]
    assert (decoder.feed([[1, 2], [], [3]]) == first).all()


@pytest.mark.parametrize("block_size", [1, 2, 3, 12])
def test_past_the_context_is_a_fresh_start_with_its_last_half(block_size: int) -> None:
    """The stated rule: the last block_size // 2 tokens, at least one, are read from position 0."""
    config = andrea.ModelConfig(V, block_size, 2, 2, 20)
    model = andrea.GPT(config, seed=4)
    for view in model.parameters().values():
        view *= 10.0  # so that every token and position matters
    model.refresh()
    tokens = np.random.default_rng(7).integers(0, V, 3 * block_size + 2).tolist()
    half = max(1, block_size // 2)
    decoder, fresh = model.decoder(), model.decoder()
    length = 0
    for count in range(1, len(tokens) + 1):
        logits = decoder.feed([tokens[count - 1 : count]])
        length += 1
        if length > block_size:
            length = half
        assert decoder.lengths == [length]
        fresh.reset()
        expected = fresh.feed([tokens[count - length : count]])
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
        if length == half and count > half:
            assert logits.tobytes() == expected.tobytes()
    # A prompt longer than the context, at once.
    fresh.reset()
    expected = fresh.feed([tokens[-half:]])
    decoder.reset()
    assert decoder.feed([tokens]).tobytes() == expected.tobytes()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, T_MAX + 3)] * 2), min_size=1, max_size=6))
def test_sequences_do_not_feel_each_other(feeds: list[tuple[int, int]]) -> None:
    """Two sequences fed together give what each gives alone, whatever the lengths."""
    rng = np.random.default_rng(8)
    model = andrea.GPT(CONFIG, seed=4)
    together, alone = model.decoder(2), [model.decoder(), model.decoder()]
    for counts in feeds:
        tokens = [rng.integers(0, V, count).tolist() for count in counts]
        logits = together.feed(tokens)
        for row, decoder in enumerate(alone):
            expected = decoder.feed([tokens[row]])
            np.testing.assert_allclose(logits[row : row + 1], expected, rtol=1e-4, atol=1e-6)
            assert together.lengths[row] == decoder.lengths[0] <= T_MAX


# ---- steps


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_gradient_that_is_not_finite_skips_the_update(model: andrea.GPT, bad: float) -> None:
    model.train_step(TOKENS, TARGETS, learning_rate=1e-2)
    kinds = (model.parameters(), model.first_moments(), model.second_moments())
    before = b"".join(view.tobytes() for kind in kinds for view in kind.values())
    model.forward_backward(TOKENS, TARGETS)
    model.gradients()["h.1.mlp.c_fc.bias"][:2] = bad  # 3e38 twice: only the norm overflows
    norm = model.step(1e-2)
    assert not np.isfinite(norm) if bad != 3e38 else norm > 3e38
    assert model.step_count == (1 if not np.isfinite(norm) else 2)
    assert not any(view.any() for view in model.gradients().values())
    after = b"".join(view.tobytes() for kind in kinds for view in kind.values())
    assert (after == before) == (not np.isfinite(norm))
    assert all(np.isfinite(view).all() for view in model.parameters().values())
    assert np.isfinite(model.train_step(TOKENS, TARGETS, learning_rate=1e-2))


def test_a_broken_parameter_is_seen_in_the_loss_and_stops_the_step(model: andrea.GPT) -> None:
    model.parameters()["h.0.attn.c_attn.weight"][0, 0] = np.nan
    model.refresh()
    assert np.isnan(model.train_step(TOKENS, TARGETS, learning_rate=1e-2))
    assert np.isnan(model.last_gradient_norm) and model.step_count == 0
    assert np.isnan(model.logits(TOKENS)).any()


def trained(threads: int, batch: tuple[int, int]) -> str:
    andrea.set_num_threads(threads)
    config = andrea.ModelConfig(97, 40, 2, 3, 48)
    model = andrea.GPT(config, seed=2)
    losses = []
    for step in range(6):
        rng = np.random.default_rng(step)
        tokens, targets = rng.integers(0, 97, (2, *batch), np.int32)
        losses.append(model.train_step(tokens, targets, learning_rate=1e-2))
    kinds = (model.parameters(), model.first_moments(), model.second_moments())
    state = b"".join(view.tobytes() for kind in kinds for view in kind.values())
    return hashlib.sha256(state + np.array(losses).tobytes()).hexdigest()


@pytest.mark.parametrize("batch", [(1, 1), (3, 37), (13, 40)])
@pytest.mark.usefixtures("default_threads")
def test_training_gives_the_same_bits_with_any_number_of_threads(batch: tuple[int, int]) -> None:
    expected = trained(1, batch)
    for threads in (2, 3, 8):
        assert trained(threads, batch) == expected


@pytest.mark.usefixtures("default_threads")
def test_the_number_of_threads_may_change_between_forward_and_backward() -> None:
    states = []
    for counts in ((1, 1, 1), (3, 1, 2)):
        model = andrea.GPT(CONFIG, seed=4)
        andrea.set_num_threads(counts[0])
        model.forward(TOKENS, TARGETS)
        andrea.set_num_threads(counts[1])
        model.backward()
        andrea.set_num_threads(counts[2])
        model.step(1e-2)
        states.append(b"".join(view.tobytes() for view in model.parameters().values()))
    assert states[0] == states[1]
