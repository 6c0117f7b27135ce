"""Choosing tokens: each part by itself, and whole generations by a real model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from andrea.errors import ArgumentError, StateError
from andrea.sampling import Sampler, SamplingConfig, generate, generate_batch
from small_runs import small_model

# Logits whose probabilities are 0.4, 0.3, 0.2, 0.1, in an order that sorting must find.
PROBABILITIES = np.array([0.2, 0.4, 0.1, 0.3])
LOGITS = np.log(PROBABILITIES).astype(np.float32)


def drawn(config: SamplingConfig, logits: Any = LOGITS, count: int = 4000) -> Any:
    """Share of each token in many draws."""
    sampler = Sampler(config, len(logits), seed=7)
    tokens = [sampler.sample(logits) for _ in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


def test_draws_follow_the_probabilities() -> None:
    # Four standard deviations of a share of 0.5 in 4000 draws are 0.032.
    assert np.abs(drawn(SamplingConfig()) - PROBABILITIES).max() < 0.032


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_is_a_power(temperature: float) -> None:
    expected = PROBABILITIES ** (1 / temperature)
    expected /= expected.sum()
    assert np.abs(drawn(SamplingConfig(temperature=temperature)) - expected).max() < 0.032


def test_temperature_0_is_the_most_likely() -> None:
    assert drawn(SamplingConfig(temperature=0.0), count=50)[1] == 1.0
    # So is a temperature that makes every quotient overflow.
    assert drawn(SamplingConfig(temperature=1e-300), count=50)[1] == 1.0
    tie = np.zeros(5, dtype=np.float32)
    assert Sampler(SamplingConfig(temperature=0.0), 5).sample(tie) == 0


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.05}, [1]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.71}, [0, 1, 3]),
        ({"min_p": 1.0}, [1]),
        ({"min_p": 0.6}, [1, 3]),
        ({"min_p": 0.26}, [0, 1, 3]),
        ({"top_k": 3, "top_p": 0.5}, [1, 3]),
        ({"top_p": 0.95, "min_p": 0.45, "top_k": 4}, [0, 1, 3]),
    ],
)
def test_filters_keep_the_likely_ones_in_proportion(
    settings: dict[str, Any], kept: list[int]
) -> None:
    shares = drawn(SamplingConfig(**settings))
    expected = np.zeros(4)
    expected[kept] = PROBABILITIES[kept] / PROBABILITIES[kept].sum()
    assert np.abs(shares - expected).max() < 0.032
    assert (shares > 0).tolist() == (expected > 0).tolist()


def test_top_k_keeps_lower_ids_of_equals() -> None:
    shares = drawn(SamplingConfig(top_k=2), np.zeros(5, dtype=np.float32), count=200)
    assert (shares > 0).tolist() == [True, True, False, False, False]


def test_repetition_penalty_divides_or_multiplies_by_sign() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.2], dtype=np.float32)
    greedy = SamplingConfig(temperature=0.0, repetition_penalty=1.5)
    sampler = Sampler(greedy, 4)
    assert sampler.sample(logits) == 0
    assert sampler.sample(logits) == 1, "2.0 / 1.5 is below 1.5"
    negative = np.array([-1.0, -1.2, -9.0, -9.0], dtype=np.float32)
    sampler = Sampler(greedy, 4)
    sampler.observe([0])
    assert sampler.sample(negative) == 1, "-1.0 x 1.5 is below -1.2"


def test_same_seed_same_tokens_everywhere() -> None:
    """Fixed numbers: a change of generator or of the drawing would change users' samples."""
    logits = np.linspace(-1, 1, 100, dtype=np.float32)

    def tokens(**settings: int) -> list[int]:
        sampler = Sampler(SamplingConfig(), 100, **settings)
        return [sampler.sample(logits) for _ in range(6)]

    assert tokens(seed=3) == tokens(seed=3)
    assert tokens(seed=3) != tokens(seed=4)
    assert tokens(seed=3) != tokens(seed=3, stream=1)
    assert tokens(seed=1) == [54, 93, 34, 9, 95, 14]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "hot"},
        {"temperature": None},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_k": 2.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.01},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("nan")},
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ArgumentError, match=f"^{name} must be .*, got") as caught:
        SamplingConfig(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_damaged_logits_are_refused(bad: float) -> None:
    logits = LOGITS.copy()
    logits[2] = bad
    with pytest.raises(StateError, match="not finite"):
        Sampler(SamplingConfig(), 4).sample(logits)


def test_greedy_generation_is_the_argmax_of_uncached_logits() -> None:
    model = small_model(n_layer=1)
    prompt = [3, 1, 4, 1, 5]
    expected = list(prompt)
    for _ in range(9):
        expected.append(int(model.logits([expected])[0, -1].argmax()))
    assert list(generate(model, prompt, max_tokens=9, temperature=0.0)) == expected[5:]
    # model.generate is the same thing.
    assert list(model.generate(prompt, max_tokens=9, temperature=0.0)) == expected[5:]


def test_generation_goes_on_past_the_context() -> None:
    model = small_model(block_size=8)
    tokens = list(generate(model, [1, 2, 3], max_tokens=40, seed=5))
    assert len(tokens) == 40
    assert tokens == list(generate(model, [1, 2, 3], max_tokens=40, seed=5))


def test_a_sample_does_not_depend_on_how_many_there_are() -> None:
    model = small_model()

    def samples(count: int, **settings: Any) -> list[list[int]]:
        texts: list[list[int]] = [[] for _ in range(count)]
        for index, token in generate_batch(
            model, [2, 7], num_samples=count, max_tokens=25, seed=11, **settings
        ):
            texts[index].append(token)
        return texts

    one, five = samples(1), samples(5)
    assert one[0] == five[0] == list(generate(model, [2, 7], max_tokens=25, seed=11))
    assert five[:3] == samples(3)
    assert len({tuple(text) for text in five}) == 5
    # One that ends early leaves the others as they are.
    stop = [five[1][4]]
    for text, stopped in zip(five, samples(5, stop=stop), strict=True):
        assert stopped == (text[: text.index(stop[0])] if stop[0] in text else text)


def test_stop_ids_and_sequences_are_never_given_out() -> None:
    model = small_model()
    tokens = list(generate(model, [1], max_tokens=30, seed=2))
    third = tokens[2]
    before = tokens[: tokens.index(third)]
    assert list(generate(model, [1], max_tokens=30, seed=2, stop={third})) == before
    assert list(generate(model, [1], max_tokens=30, seed=2, stop=[tokens[5:8]])) == tokens[:5]
    # A beginning of a sequence at the very end is no stop.
    longer = [tokens[-2], tokens[-1], *tokens]
    assert list(generate(model, [1], max_tokens=30, seed=2, stop=[longer])) == tokens


@pytest.mark.filterwarnings("error")
def test_extremes_are_no_accident() -> None:
    """No overflow is told, and none makes numbers that are none."""
    logits = np.array([3.0, -2.0, 1.0, 2.0])
    for penalty, expected in ((1e-310, [0, 0, 0]), (1e300, [0, 3, 2])):
        sampler = Sampler(SamplingConfig(temperature=1e-320, repetition_penalty=penalty), 4)
        sampler.observe([1])
        assert [sampler.sample(logits) for _ in range(3)] == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([0, -1], "-1 is outside the vocabulary"),
        ([9999], "9999 is outside the vocabulary"),
        ([0.5], "token ids"),
        ([[1, 2]], "one row"),
    ],
)
def test_prompts_are_checked_at_the_call(prompt: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        generate(small_model(), prompt, max_tokens=3)


def test_counts_are_checked_at_the_call() -> None:
    model = small_model()
    with pytest.raises(ArgumentError, match="max_tokens"):
        generate(model, [1], max_tokens=-1)
    for count in (0, 2**62):
        with pytest.raises(ArgumentError, match="num_samples must be between 1 and 1048576"):
            generate_batch(model, [1], num_samples=count, max_tokens=1)
    for seed in (-1, 2**64, 0.5):
        with pytest.raises(ArgumentError, match="seed"):
            generate(model, [1], max_tokens=1, seed=seed)  # type: ignore[arg-type]
    numpy_seed: Any = np.int64(3)
    expected = list(generate(model, [1], max_tokens=9, seed=3))
    assert list(generate(model, [1], max_tokens=9, seed=numpy_seed)) == expected
    assert list(generate(model, [1], max_tokens=0)) == []
