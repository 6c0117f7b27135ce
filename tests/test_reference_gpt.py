"""The NumPy reference's model and optimizer against complex-step derivatives and known facts."""

from __future__ import annotations

import math

import numpy as np
import pytest

import andrea
from andrea.config import DIALECTS as NAMED_DIALECTS
from dialects import DIALECTS, Dialect, config_of
from reference import adamw, complex_step, gpt, ops
from reference.compare import MEASURED, assert_close, relative_error
from reference.ops import Array

TOLERANCE = 1e-10


def shape(
    vocab_size: int = 11, block_size: int = 6, n_layer: int = 2, n_head: int = 2, n_embd: int = 6
) -> andrea.ModelConfig:
    return andrea.ModelConfig(vocab_size, block_size, n_layer, n_head, n_embd)


CONFIGS = {
    "usual": shape(),
    "odd": shape(vocab_size=7, block_size=5, n_layer=3, n_head=3, n_embd=9),
    "one of each": shape(1, 1, 1, 1, 1),
    "width 1": shape(4, 3, 1, 1, 1),
    "one token": shape(block_size=1),
    "head_dim 1": shape(n_head=6),
    "deep": shape(n_layer=5, n_head=1, n_embd=3),
}


def batch_for(
    config: andrea.ModelConfig, rows: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Tokens and targets (rows, block_size); about a third of the targets is ignored."""
    size = (rows, config.block_size)
    targets = rng.integers(0, config.vocab_size, size)
    targets[rng.random(size) < 0.3] = -1
    targets[0, 0] = 0
    return rng.integers(0, config.vocab_size, size), targets


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_of_all_coordinates(name: str) -> None:
    check_all_coordinates(CONFIGS[name])


def check_all_coordinates(config: andrea.ModelConfig) -> None:
    rng = np.random.default_rng(30)
    parameters = gpt.init_parameters(config, rng, spread=0.4)
    tokens, targets = batch_for(config, 3, rng)
    _, _, gradients = gpt.loss_and_gradients(parameters, config, tokens, targets)
    assert list(gradients) == list(parameters) == list(gpt.parameter_shapes(config))
    for tensor, gradient in gradients.items():
        measured = complex_step.gradient(
            lambda moved, tensor=tensor: gpt.loss(
                {**parameters, tensor: moved}, config, tokens, targets
            ),
            parameters[tensor],
        )
        assert_close(tensor, gradient, measured, TOLERANCE)


@pytest.mark.parametrize("name", [*DIALECTS, "microgpt"])
def test_gradients_of_all_coordinates_in_a_dialect(name: str) -> None:
    dialect = DIALECTS.get(name, NAMED_DIALECTS["microgpt"])
    check_all_coordinates(config_of({**dialect, "mlp_dim": 5}, (7, 4, 2, 2, 4)))


def check_directions(
    config: andrea.ModelConfig, rng: np.random.Generator, spread: float, number: int
) -> None:
    parameters = gpt.init_parameters(config, rng, spread)
    tokens, targets = batch_for(config, 2, rng)
    _, _, gradients = gpt.loss_and_gradients(parameters, config, tokens, targets)
    for tensor, gradient in gradients.items():
        directions = rng.standard_normal((number, *gradient.shape))
        measured = [
            complex_step.directional(
                lambda moved: gpt.loss({**parameters, **moved}, config, tokens, targets),
                {tensor: parameters[tensor]},
                {tensor: direction},
            )
            for direction in directions
        ]
        analytic = [(gradient * direction).sum() for direction in directions]
        assert_close(tensor, analytic, measured, TOLERANCE)


def test_gradients_of_a_wider_model_along_random_directions() -> None:
    check_directions(shape(65, 24, 3, 4, 48), np.random.default_rng(31), 0.15, number=6)


@pytest.mark.parametrize("name", DIALECTS)
def test_every_parameter_of_a_dialect_matters(name: str) -> None:
    check_every_parameter_matters(config_of(DIALECTS[name]))


def test_every_parameter_matters() -> None:
    check_every_parameter_matters(shape())


def check_every_parameter_matters(config: andrea.ModelConfig) -> None:
    rng = np.random.default_rng(32)
    parameters = gpt.init_parameters(config, rng, spread=0.3)
    tokens, targets = batch_for(config, 2, rng)
    _, _, gradients = gpt.loss_and_gradients(parameters, config, tokens, targets)
    for name, gradient in gradients.items():
        assert np.abs(gradient).max() > 1e-6, name
        assert not np.isin(parameters[name], (0.0, 1.0)).any(), name


# Layouts of the family's shapes and their parameters; its published files fit the last two.
NO_BIASES: Dialect = dict(attn_bias=False, mlp_bias=False)
LAYOUTS: dict[int, tuple[str, Dialect]] = {
    92_331_264: ("andrea-120m", {}),
    92_294_400: ("andrea-120m", dict(attn_bias=False)),
    98_820_096: ("andrea-120m", dict(tie_embeddings=False)),
    98_737_152: ("andrea-120m", dict(tie_embeddings=False, **NO_BIASES)),
    98_698_752: ("andrea-120m", dict(tie_embeddings=False, norm_affine=False, **NO_BIASES)),
    12_780_288: ("andrea-12m", NAMED_DIALECTS["microgpt"]),
}


@pytest.mark.parametrize("count", LAYOUTS)
def test_parameter_counts_of_the_family(count: int) -> None:
    preset, dialect = LAYOUTS[count]
    config = andrea.ModelConfig(**{**andrea.PRESETS[preset], **dialect})
    assert sum(math.prod(size) for size in gpt.parameter_shapes(config).values()) == count


def test_names_and_order_of_a_dialect() -> None:
    """Its own tensors have GPT-2's places: the head beside the tables, the norm after them."""
    config = config_of(dict(tie_embeddings=False, embedding_norm=True, norm="rmsnorm"))
    names = list(gpt.parameter_shapes(config))
    assert names[:4] == ["wte.weight", "wpe.weight", "lm_head.weight", "ln_emb.weight"]
    assert names[4:6] == ["h.0.ln_1.weight", "h.0.attn.c_attn.weight"]
    assert names[-1] == "ln_f.weight"


def test_changing_a_token_leaves_earlier_logits_alone() -> None:
    config, rng = shape(), np.random.default_rng(33)
    parameters = gpt.init_parameters(config, rng, spread=0.3)
    tokens = rng.integers(0, config.vocab_size, (2, config.block_size))
    before = gpt.logits(parameters, config, tokens)
    for t in range(config.block_size):
        changed = tokens.copy()
        changed[:, t] = (changed[:, t] + 1) % config.vocab_size
        after = gpt.logits(parameters, config, changed)
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert (after[:, t:] != before[:, t:]).any(axis=-1).all()


def test_untrained_loss_is_about_ln_of_vocabulary() -> None:
    config, rng = shape(vocab_size=97, n_embd=32, n_head=4), np.random.default_rng(34)
    parameters = gpt.init_parameters(config, rng)
    tokens, targets = batch_for(config, 8, rng)
    assert abs(float(gpt.loss(parameters, config, tokens, targets)) - np.log(97)) < 0.1


def test_loss_is_that_of_the_logits_and_rows_are_independent() -> None:
    config, rng = shape(), np.random.default_rng(35)
    parameters = gpt.init_parameters(config, rng, spread=0.3)
    tokens, targets = batch_for(config, 3, rng)
    loss, logits, _ = gpt.loss_and_gradients(parameters, config, tokens, targets)
    chosen = [
        -np.log(ops.softmax(logits)[b, t, targets[b, t]])
        for b, t in np.ndindex(*targets.shape)
        if targets[b, t] != -1
    ]
    np.testing.assert_allclose(loss, np.mean(chosen))
    alone = np.concatenate([gpt.logits(parameters, config, tokens[b : b + 1]) for b in range(3)])
    assert_close("logits row by row", alone, logits, 1e-13)
    ids = tokens[:, :2]
    assert_close("logits of a prefix", gpt.logits(parameters, config, ids), logits[:, :2], 1e-13)


def test_generation_repeats_a_learned_sequence() -> None:
    """A model that the reference trained on a cycle continues it, also past block_size."""
    config = shape(vocab_size=5, block_size=8, n_layer=1, n_head=2, n_embd=8)
    rng = np.random.default_rng(36)
    parameters = gpt.init_parameters(config, rng)
    moments = [{name: np.zeros_like(value) for name, value in parameters.items()} for _ in range(2)]
    cycle = np.array([(start + np.arange(9)) % 5 for start in range(5)])
    options = adamw.AdamWOptions(learning_rate=0.02)
    for step in range(1, 121):
        loss, _, gradients = gpt.loss_and_gradients(parameters, config, cycle[:, :-1], cycle[:, 1:])
        adamw.adamw_step(parameters, gradients, moments[0], moments[1], step, options)
    assert loss < 0.05
    assert gpt.generate(parameters, config, [3, 4], 12) == [(n % 5) for n in range(12)]


def test_adamw_against_a_step_by_hand() -> None:
    """After the first step m_hat is g and v_hat is g^2: parameters move by the learning rate."""
    parameters = {"matrix": np.array([[2.0]]), "bias": np.array([2.0])}
    gradients = {"matrix": np.array([[3.0]]), "bias": np.array([-3.0])}
    m = {name: np.zeros_like(value) for name, value in parameters.items()}
    v = {name: np.zeros_like(value) for name, value in parameters.items()}
    options = adamw.AdamWOptions(0.1, beta1=0.5, beta2=0.5, eps=0.0, weight_decay=0.5, max_norm=0.0)
    norm = adamw.adamw_step(parameters, gradients, m, v, 1, options)
    assert_close("norm", norm, np.sqrt(18.0), 1e-15)
    assert_close("matrix", parameters["matrix"], [[2.0 * 0.95 - 0.1]], 1e-15)
    assert_close("bias", parameters["bias"], [2.0 + 0.1], 1e-15)
    assert (m["matrix"].item(), v["matrix"].item()) == (1.5, 4.5)

    # Second step, gradient 0: m 0.75, m_hat = 0.75 / 0.75 = 1; v 2.25, v_hat = 2.25 / 0.75 = 3.
    adamw.adamw_step(parameters, {name: 0 * g for name, g in gradients.items()}, m, v, 2, options)
    assert_close("matrix, step 2", parameters["matrix"], [[1.8 * 0.95 - 0.1 / np.sqrt(3)]], 1e-15)
    assert_close("bias, step 2", parameters["bias"], [2.1 + 0.1 / np.sqrt(3)], 1e-15)


def test_adamw_eps_is_added_after_the_root() -> None:
    parameters, zero = {"b": np.array([0.0])}, {"b": np.array([0.0])}
    options = adamw.AdamWOptions(1.0, eps=3.0, max_norm=0.0)
    adamw.adamw_step(parameters, {"b": np.array([1.0])}, zero, {"b": np.zeros(1)}, 1, options)
    assert_close("b", parameters["b"], [-0.25], 1e-14)


@pytest.mark.parametrize(("max_norm", "scale"), [(2.5, 0.5), (5.0, 1.0), (50.0, 1.0), (0.0, 1.0)])
def test_clipping_scales_by_the_global_norm(max_norm: float, scale: float) -> None:
    parameters = {"a": np.zeros((1, 1)), "b": np.zeros(1)}
    gradients = {"a": np.array([[3.0]]), "b": np.array([4.0])}
    m = {name: np.zeros_like(value) for name, value in parameters.items()}
    v = {name: np.zeros_like(value) for name, value in parameters.items()}
    options = adamw.AdamWOptions(0.1, max_norm=max_norm)
    assert adamw.adamw_step(parameters, gradients, m, v, 1, options) == 5.0
    assert_close("m", m["a"], [[0.1 * 3.0 * scale]], 1e-14)
    assert_close("v", v["b"], [0.05 * (4.0 * scale) ** 2], 1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_norm_that_is_not_finite_changes_nothing(bad: float) -> None:
    parameters, m, v = {"b": np.ones(2)}, {"b": np.ones(2)}, {"b": np.ones(2)}
    options = adamw.AdamWOptions(0.1)
    assert not np.isfinite(
        adamw.adamw_step(parameters, {"b": np.array([1.0, bad])}, m, v, 1, options)
    )
    assert all((values["b"] == 1.0).all() for values in (parameters, m, v))


@pytest.mark.parametrize(
    ("limits", "is_updated"),
    [
        ({"skip_norm_above": 4.9}, False),
        ({"skip_norm_above": 5.0}, True),
        ({"skip_loss_above": 2.9}, False),
        ({"skip_loss_above": 3.0}, True),
        ({"skip_loss_above": 9.0, "skip_norm_above": 1.0}, False),
    ],
)
def test_a_step_above_a_limit_changes_nothing(limits: dict[str, float], is_updated: bool) -> None:
    parameters, m, v = {"b": np.ones(2)}, {"b": np.ones(2)}, {"b": np.ones(2)}
    options = adamw.AdamWOptions(0.1, **limits)
    gradient = np.array([3.0, 4.0])
    assert adamw.adamw_step(parameters, {"b": gradient}, m, v, 1, options, loss=3.0) == 5.0
    for values in (parameters, m, v):
        assert (values["b"] != 1.0).all() == is_updated


def test_the_comparison_itself() -> None:
    assert relative_error([1.0, -4.0], [1.0, -5.0]) == 0.2
    assert relative_error([0.5], [0.0]) == 0.5
    assert relative_error([np.nan], [1.0]) == np.inf
    assert relative_error([1.0], [np.nan]) == np.inf
    assert_close("a tensor", [1.0], [1.0], 0.0)
    assert MEASURED[-1].name == "a tensor" and "comparison_itself" in MEASURED[-1].test
    count = len(MEASURED)
    with pytest.raises(AssertionError, match=r"off: relative error 0\.1, tolerance 0\.05"):
        assert_close("off", [1.1], [1.0], 0.05)
    assert len(MEASURED) == count + 1
    MEASURED.pop()  # the error made on purpose is no measurement
    with pytest.raises(AssertionError, match="shape"):
        relative_error([1.0, 2.0], [1.0])
