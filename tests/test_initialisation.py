"""The parameters a model starts with: exact bits, distributions, and what they depend on."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import andrea
from dialects import DIALECTS, config_of
from reference import gpt
from reference.ops import Array

SMALL = andrea.ModelConfig(vocab_size=65, block_size=32, n_layer=2, n_head=4, n_embd=48)
# SHA-256 of SMALL's parameters with seed 1: little-endian float32, tensors in the table's order.
GOLDEN = "2a4e3360d5b300a77a589172be78139785a9d948838ad751f7d569d993b4c66b"


def parameters(config: andrea.ModelConfig = SMALL, seed: int = 1) -> dict[str, Array]:
    return {name: view.copy() for name, view in andrea.GPT(config, seed=seed).parameters().items()}


def digest(values: dict[str, Array]) -> str:
    return hashlib.sha256(b"".join(v.astype("<f4").tobytes() for v in values.values())).hexdigest()


def is_residual_projection(name: str) -> bool:
    return name.endswith("c_proj.weight")


def std_of(name: str, n_layer: int) -> float:
    """0.02, and 0.02 / sqrt(2 n_layer) for what adds to the residual stream."""
    return 0.02 / math.sqrt(2 * n_layer) if is_residual_projection(name) else 0.02


# ---- exact bits


def test_golden_bits() -> None:
    assert digest(parameters()) == GOLDEN


CHILD = """
import hashlib, sys
import andrea
andrea.set_num_threads(int(sys.argv[1]))
model = andrea.GPT(andrea.ModelConfig(65, 32, 2, 4, 48), seed=1)
values = model.parameters().values()
print(hashlib.sha256(b"".join(value.astype("<f4").tobytes() for value in values)).hexdigest())
"""


@pytest.mark.parametrize("isa", andrea.available_instruction_sets())
@pytest.mark.parametrize("threads", [1, 3])
def test_golden_bits_with_every_instruction_set_and_thread_count(isa: str, threads: int) -> None:
    environment = {**os.environ, "MICROGPT_ISA": isa}
    child = [sys.executable, "-c", CHILD, str(threads)]
    done = subprocess.run(child, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == GOLDEN


def test_reset_gives_the_bits_of_a_new_model() -> None:
    model = andrea.GPT(SMALL, seed=9)
    batch = np.arange(64, dtype=np.int32).reshape(2, 32)
    model.train_step(batch, batch, learning_rate=1e-2)
    model.forward_backward(batch, batch)
    model.reset(1)
    assert digest(model.parameters()) == GOLDEN
    assert model.step_count == 0
    for kind in (model.gradients(), model.first_moments(), model.second_moments()):
        assert not any(value.any() for value in kind.values())


# ---- the generator, from its papers


def philox_4x32_10(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """Salmon, Moraes, Dror & Shaw 2011: ten rounds of two multiplications."""
    x, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ x[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def test_philox_as_published() -> None:
    """The known answers that come with the generator's reference implementation."""
    ones = 0xFFFFFFFF
    zero_answer = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox_4x32_10((0, 0, 0, 0), (0, 0)) == zero_answer
    ones_answer = [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox_4x32_10((ones, ones, ones, ones), (ones, ones)) == ones_answer


def halves(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32


def expected_value(name: str, index: int, seed: int, std: float) -> float:
    """Sample `index` of the stream that FNV-1a makes of the tensor's name."""
    stream = 0xCBF29CE484222325
    for letter in name.encode():
        stream = ((stream ^ letter) * 0x100000001B3) % 2**64
    words = philox_4x32_10((*halves(index // 4), *halves(stream)), halves(seed))
    return std * NormalDist().inv_cdf((words[index % 4] + 0.5) / 2**32)


def check_values(config: andrea.ModelConfig, seed: int) -> None:
    """Against Python's own quantile function, at the ends and in the middle of every matrix."""
    for name, value in parameters(config, seed).items():
        if value.ndim < 2:
            assert (value == (1.0 if name.endswith("weight") else 0.0)).all(), name
            continue
        # The engine's std is a float32, as all its numbers are.
        std = np.float32(config.init_std)
        if is_residual_projection(name) and config.scaled_init:
            std = std / np.sqrt(np.float32(2 * config.n_layer))
        flat = value.reshape(-1)
        for index in {0, 1, 2, 3, 4, flat.size // 2 + 1, flat.size - 1}:
            exact = expected_value(name, index, seed, float(std))
            assert flat[index] == pytest.approx(exact, rel=1e-7, abs=0), (name, index)


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
def test_values_are_normal_quantiles_of_the_generator(seed: int) -> None:
    check_values(SMALL, seed)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("start", [{}, {"init_std": 0.08}, {"scaled_init": False}], ids=str)
def test_values_of_a_dialect(name: str, start: dict[str, Any]) -> None:
    """Each of its tensors is a stream of its own name, and as wide as the configuration says."""
    config = config_of({**DIALECTS[name], **start})
    check_values(config, seed=5)
    assert list(parameters(config)) == list(gpt.parameter_shapes(config))


def test_microgpt_starts_as_its_ancestor() -> None:
    """N(0, 0.08) everywhere, and nothing but matrices."""
    config = andrea.ModelConfig(65, 32, 2, 4, 48, **andrea.config.DIALECTS["microgpt"])
    values = parameters(config)
    assert all(value.ndim == 2 for value in values.values()) and "lm_head.weight" in values
    for name, value in values.items():
        assert abs(value.astype(float).std() / 0.08 - 1) < 4 / math.sqrt(2 * value.size), name


# ---- distributions


def test_gains_are_one_and_biases_zero() -> None:
    for name, value in parameters().items():
        if value.ndim == 1:
            assert (value == (1.0 if name.endswith("weight") else 0.0)).all(), name


@pytest.mark.parametrize("n_layer", [1, 2, 8])
def test_mean_and_spread_of_each_matrix(n_layer: int) -> None:
    """Within four standard errors of what a normal distribution of the specified spread gives."""
    config = andrea.ModelConfig(257, 64, n_layer, 2, 64)
    values = parameters(config, seed=3)
    matrices = {name: value.astype(float) for name, value in values.items() if value.ndim == 2}
    assert len(matrices) == 2 + 4 * n_layer
    for name, value in matrices.items():
        std, n = std_of(name, n_layer), value.size
        assert abs(value.mean()) < 4 * std / math.sqrt(n), name
        assert abs(value.std() / std - 1) < 4 / math.sqrt(2 * n), name


def test_values_are_normally_distributed() -> None:
    """Kolmogorov and Smirnov's distance to the normal distribution, and the tails."""
    value = parameters(andrea.ModelConfig(1024, 8, 1, 1, 256))["wte.weight"].reshape(-1)
    sample = np.sort(value.astype(float)) / 0.02
    cumulative = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in sample])
    steps = np.arange(sample.size + 1) / sample.size
    distance = max((steps[1:] - cumulative).max(), (cumulative - steps[:-1]).max())
    assert distance < 1.63 / math.sqrt(sample.size)  # the test's limit at 1%
    assert abs((sample**3).mean()) < 4 * math.sqrt(15 / sample.size)
    assert abs((sample**4).mean() - 3) < 4 * math.sqrt(96 / sample.size)
    assert 4.0 < -sample[0] < 6.5 and 4.0 < sample[-1] < 6.5


def test_neighbours_and_tensors_are_independent() -> None:
    values = parameters(andrea.ModelConfig(512, 512, 2, 2, 128))
    rows = values["wte.weight"].astype(float)
    streams = {name: value.reshape(-1)[:16384] for name, value in values.items() if value.ndim == 2}
    series = [(rows[:, :-1], rows[:, 1:]), (rows[:-1], rows[1:]), (rows[:, :-4], rows[:, 4:])]
    names = list(streams)
    series += [(streams[a], streams[b]) for a, b in pairwise(names)]
    for one, other in series:
        correlation = np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]
        assert abs(correlation) < 4 / math.sqrt(one.size)


# ---- what values depend on


def test_seeds_differ_everywhere() -> None:
    seeds = [0, 1, 2, 2**32, 2**63, 2**64 - 1]
    matrices = [parameters(seed=seed)["h.1.attn.c_attn.weight"] for seed in seeds]
    for place, one in enumerate(matrices):
        for other in matrices[:place]:
            assert (one == other).mean() < 1e-3


def test_values_do_not_depend_on_depth_but_for_the_scaling() -> None:
    """A deeper model starts with the blocks of a shallower one."""
    shallow, deep = (parameters(andrea.ModelConfig(65, 32, n_layer, 4, 48)) for n_layer in (1, 4))
    for name, value in shallow.items():
        if is_residual_projection(name):
            np.testing.assert_allclose(deep[name], value / 2, rtol=1e-6)
        else:
            assert value.tobytes() == deep[name].tobytes(), name


def test_a_longer_tensor_begins_like_a_shorter_one() -> None:
    short, long = (parameters(andrea.ModelConfig(V, 32, 1, 4, 48)) for V in (65, 200))
    assert (long["wte.weight"][:65] == short["wte.weight"]).all()


@pytest.mark.parametrize("vocab_size", [65, 256, 8449])
def test_an_untrained_model_knows_nothing(vocab_size: int) -> None:
    """Its loss is within 0.1 of ln V, what guessing gives."""
    config = andrea.ModelConfig(vocab_size, 64, 4, 4, 128)
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        inputs, targets = rng.integers(0, vocab_size, (2, 4, 64), np.int32)
        loss = andrea.GPT(config, seed=seed).forward(inputs, targets)
        assert abs(loss - math.log(vocab_size)) < 0.1
