"""ModelConfig: what it refuses, what it writes and reads again, and the presets it is built for.

The engine is the witness of every arithmetic: a model of the configuration is made and asked.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import andrea
from andrea import PRESETS, ConfigError, ModelConfig
from andrea.config import CHOICES, DIALECT_SETTINGS, DIALECTS
from andrea.planning.dialects import (
    chosen_dialect,
    count_norms,
    describe_dialect,
    dialect_name,
    dialect_settings,
    preset_dialect,
)
from andrea.planning.sizes import (
    flops_formula,
    flops_per_token,
    memory_plan,
    num_parameters,
    parameter_table,
)

SIZES = {"vocab_size": 13, "block_size": 7, "n_layer": 2, "n_head": 2, "n_embd": 12}
FLAGS = tuple(
    field.name for field in dataclasses.fields(ModelConfig) if isinstance(field.default, bool)
)


def config_of(**dialect: Any) -> ModelConfig:
    return ModelConfig(**{**SIZES, **dialect})


def is_valid(dialect: dict[str, Any]) -> bool:
    try:
        config_of(**dialect)
    except ConfigError:
        return False
    return True


def is_read_as(config: ModelConfig, values: dict[str, Any]) -> bool:
    try:
        return ModelConfig.from_dict(values) == config
    except ConfigError:
        return False


ANY_DIALECT = st.fixed_dictionaries(
    {
        **{name: st.sampled_from(values) for name, values in CHOICES.items()},
        **{name: st.booleans() for name in FLAGS},
        "mlp_dim": st.sampled_from([0, 5, 48]),
        "init_std": st.sampled_from([0.02, 0.08, 1]),
        "n_layer": st.integers(1, 3),
    }
).filter(is_valid)


# ---- what it writes


def test_a_gpt2_says_its_sizes_alone() -> None:
    assert config_of().to_dict() == SIZES and config_of().dialect() == {}
    assert config_of(mlp_dim=48, init_std=0.02, norm="layernorm").to_dict() == SIZES
    full = config_of().to_full_dict()
    assert tuple(full) == (*SIZES, *DIALECT_SETTINGS) and full["mlp_dim"] == 48


def test_the_rest_is_said_where_it_is_not_gpt2s() -> None:
    config = config_of(activation="swiglu", residual=False)
    assert config.to_dict() == {**SIZES, "residual": False, "activation": "swiglu"}
    wide = config_of(activation="swiglu", mlp_dim=48)
    assert wide.dialect() == {"mlp_dim": 48, "activation": "swiglu"}, "48 is usual of GELU alone"


@settings(max_examples=100, deadline=None)
@given(dialect=ANY_DIALECT)
def test_what_is_written_is_read_again(dialect: dict[str, Any]) -> None:
    config = config_of(**dialect)
    for written in (config.to_dict(), config.to_full_dict()):
        again = ModelConfig.from_dict(json.loads(json.dumps(written)))
        assert again == config and again.to_dict() == config.to_dict()
    short = config.to_dict()
    for name in config.dialect():
        without = {key: value for key, value in short.items() if key != name}
        assert not is_read_as(config, without), f"{name} need not have been written"


@settings(max_examples=30, deadline=None)
@given(dialect=ANY_DIALECT)
def test_what_is_printed_is_python(dialect: dict[str, Any]) -> None:
    config = config_of(**dialect)
    assert eval(repr(config)) == config


def test_a_gpt2_is_printed_in_short() -> None:
    expected = "ModelConfig(vocab_size=13, block_size=7, n_layer=2, n_head=2, n_embd=12"
    assert repr(config_of()) == expected + ")"
    assert repr(config_of(norm="rmsnorm")) == expected + ", norm='rmsnorm')"


def test_equal_numbers_are_equal_data() -> None:
    assert json.dumps(config_of(init_std=1).to_dict()) == json.dumps(
        config_of(init_std=1.0).to_dict()
    )


# ---- what it refuses


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"norm": "batchnorm"}, "norm must be one of layernorm, rmsnorm, got 'batchnorm'"),
        ({"norm": None}, "norm must be one of layernorm, rmsnorm, got None"),
        ({"norm": ["rmsnorm"]}, "norm must be one of"),
        ({"norm_position": "both"}, "norm_position must be one of pre, post, none, got 'both'"),
        ({"activation": "GELU"}, "activation must be one of gelu, gelu_erf, relu, relu2, swiglu"),
        ({"residual": 1}, "residual must be True or False, got 1"),
        ({"tie_embeddings": "no"}, "tie_embeddings must be True or False, got 'no'"),
        ({"mlp_dim": -1}, "mlp_dim must be between 0 and 2"),
        ({"mlp_dim": 2**31}, "mlp_dim must be between 0 and 2"),
        ({"mlp_dim": 4.0}, "mlp_dim must be an integer, got 4.0"),
        ({"mlp_dim": True}, "mlp_dim must be an integer, got True"),
        ({"init_std": 0}, "init_std must be between 1e-30 and 100, got 0"),
        ({"init_std": -0.02}, "init_std must be between"),
        ({"init_std": math.nan}, "init_std must be between 1e-30 and 100, got nan"),
        ({"init_std": math.inf}, "init_std must be between 1e-30 and 100, got inf"),
        ({"init_std": 1e-60}, "init_std must be between"),
        ({"init_std": "0.02"}, "init_std must be a number, got '0.02'"),
        ({"init_std": True}, "init_std must be a number, got True"),
        ({"n_head": 5}, "n_head must divide n_embd: n_embd is 12, n_head is 5"),
        ({"n_embd": 0}, "n_embd must be between 1 and 2"),
        ({"n_head": 1, "n_embd": 2**29}, "n_embd is 536870912, too large for the usual mlp_dim"),
        ({"n_head": 1, "n_embd": 2**31 - 1, "activation": "swiglu"}, "too large for the usual mlp"),
        (
            {"norm_position": "none", "final_norm": False, "norm": "rmsnorm"},
            "norm is 'rmsnorm', but the model has no norm",
        ),
        (
            {"norm_position": "none", "final_norm": False, "norm_affine": False},
            "norm_affine is False, but the model has no norm",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(**wrong)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_the_widest_are_refused_by_their_memory_in_one_line() -> None:
    for config in (
        ModelConfig(9, 9, 1, 1, 2**29 - 1),
        ModelConfig(9, 9, 1, 1, 2**31 - 1, mlp_dim=2**31 - 1, activation="swiglu"),
    ):
        assert ModelConfig.from_dict(config.to_full_dict()) == config
        with pytest.raises(andrea.AndreaError) as caught:
            andrea.GPT(config, device="cpu", precision="fp32")
        assert "\n" not in str(caught.value)


def test_a_model_without_norms_is_a_model() -> None:
    config = config_of(norm_position="none", final_norm=False)
    assert config.num_norms == 0 and "ln_" not in " ".join(andrea.GPT(config).tensors())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({**SIZES, "biases": True}, "unknown model setting 'biases'; known: vocab_size, "),
        ({"vocab_size": 3}, "model setting 'block_size' is missing"),
        ([1, 2], "model settings must be named values, got [1, 2]"),
        ("x" * 1000, "model settings must be named values, got 'xx"),
    ],
)
def test_data_that_is_no_model_is_refused(values: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(values)
    assert told in str(caught.value) and len(str(caught.value)) < 400


# ---- what follows from it, by the engine's word


@settings(max_examples=120, deadline=None)
@given(dialect=ANY_DIALECT)
def test_the_table_is_the_engines_in_every_dialect(dialect: dict[str, Any]) -> None:
    config = config_of(**dialect)
    model = andrea.GPT(config, device="cpu", precision="fp32")
    table: list[tuple[str, tuple[int, ...]]] = []
    rows = parameter_table(config)
    first = next(place for place, row in enumerate(rows) if row.name.startswith("h.*"))
    blocks = [row for row in rows if row.name.startswith("h.*")]
    table += [(row.name, row.shape) for row in rows[:first]]
    for layer in range(config.n_layer):
        table += [(row.name.replace("*", str(layer)), row.shape) for row in blocks]
    table += [(row.name, row.shape) for row in rows[first + len(blocks) :]]
    tensors = [(name, tensor.shape) for name, tensor in model.tensors().items()]
    assert table == tensors, "names, shapes and order"
    assert num_parameters(config) == model.num_parameters
    assert all(row.copies == (config.n_layer if row in blocks else 1) for row in rows)

    names = {**config.to_full_dict(), "": 1}
    for row in rows:
        dimensions = []
        for word in row.formula.split(" x "):
            *factor, name = word.split(" ")
            dimensions.append(math.prod(map(int, factor)) * names[name])
        assert tuple(dimensions) == row.shape, row.formula

    # Every norm has its statistics, whether it has parameters or not.
    model.forward([[1, 2, 3]], [[2, 3, 4]])
    kept = [name for name in model.activations() if name.endswith(".rstd")]
    assert len(kept) == config.num_norms
    assert memory_plan(config, 2, device="cpu", precision="fp32")["total"] > 0


@settings(max_examples=100, deadline=None)
@given(dialect=ANY_DIALECT)
def test_operations_are_two_per_weight_of_a_matrix(dialect: dict[str, Any]) -> None:
    """The tables are looked up, not multiplied; the head is multiplied, tied or not."""
    config = config_of(**dialect)
    matrices = sum(
        row.total
        for row in parameter_table(config)
        if len(row.shape) == 2 and row.name not in ("wte.weight", "wpe.weight", "lm_head.weight")
    )
    matrices += config.vocab_size * config.n_embd
    attention = 2 * config.n_layer * config.block_size * config.n_embd
    assert flops_per_token(config, training=False) == 2 * matrices + attention
    assert flops_per_token(config, training=True) == 3 * (2 * matrices + attention)

    formula = flops_formula(config).partition("forward: ")[2].partition(";")[0]
    for name, value in {**config.to_full_dict(), "length": config.block_size}.items():
        formula = formula.replace(name, str(value))
    formula = formula.replace(" x ", " * ").replace("^", "**")
    # Names beside each other are multiplied.
    formula = re.sub(r"(?<=[\d)]) (?=[\d(])", " * ", formula)
    assert eval(formula) == 2 * matrices + attention, formula


def test_the_usual_width_of_the_mlp() -> None:
    assert config_of().mlp_dim == config_of(activation="relu2").hidden_dim == 48
    for n_embd, expected in ((64, 192), (96, 256), (128, 384), (384, 1024), (768, 2048)):
        config = config_of(n_embd=n_embd, activation="swiglu")
        assert config.mlp_dim == expected and config.hidden_dim == 2 * expected
        assert 0 <= expected - 8 * n_embd / 3 < 64 and expected % 64 == 0
    assert config_of(activation="swiglu", mlp_dim=5).hidden_dim == 10


# ---- presets and named dialects

# The design's table of layouts: parameters of the 120M shape.
LAYOUTS: list[tuple[dict[str, Any], int]] = [
    ({}, 92_331_264),
    ({"attn_bias": False}, 92_294_400),
    (DIALECTS["microgpt"], 98_698_752),
    ({"tie_embeddings": False, "attn_bias": False, "mlp_bias": False}, 98_737_152),
    ({"tie_embeddings": False}, 98_820_096),
]


@pytest.mark.parametrize(("dialect", "count"), LAYOUTS, ids=lambda value: str(value)[:20])
def test_the_layouts_of_the_120m_shape(dialect: dict[str, Any], count: int) -> None:
    assert num_parameters(ModelConfig(**PRESETS["andrea-120m"], **dialect)) == count


def test_known_models_have_their_known_counts() -> None:
    small = ModelConfig(**PRESETS["andrea-12m"], **DIALECTS["microgpt"])
    assert num_parameters(small) == 12_780_288
    # GPT-2's smallest, as Hugging Face and llm.c count it; microgpt's as it prints it for names:
    # 26 letters and the marker between them.
    assert num_parameters(ModelConfig(**PRESETS["gpt2"])) == 124_439_808
    assert num_parameters(ModelConfig(**{**PRESETS["microgpt"], "vocab_size": 27})) == 4192


def test_the_number_of_norms() -> None:
    deep = {"n_layer": 12}
    assert config_of(**deep).num_norms == 25
    assert (
        count_norms(config_of(**deep)) == "25 (layer norm): 2 x 12 in the blocks, 1 before the head"
    )
    assert config_of(**deep, **DIALECTS["microgpt"]).num_norms == 25
    assert config_of(**deep, embedding_norm=True, norm_position="post").num_norms == 26
    ends = config_of(**deep, embedding_norm=True, norm_position="none", norm="rmsnorm")
    assert count_norms(ends) == "2 (RMSNorm): 1 after the embeddings, 1 before the head"
    assert count_norms(config_of(norm_position="none", final_norm=False)) == "none"


def test_microgpt_learns(seed: int = 3) -> None:
    """Its dialect at its own sizes: the loss of an untrained model, and a lower one soon."""
    config = ModelConfig(**{**PRESETS["microgpt"], "vocab_size": 27})
    model = andrea.GPT(config, device="cpu", precision="fp32", seed=seed)
    tokens = [[(3 * place) % 27 for place in range(16)]] * 4
    targets = [[*row[1:], row[0]] for row in tokens]
    first = model.train_step(tokens, targets, learning_rate=1e-2)
    assert first == pytest.approx(math.log(27), abs=0.3)
    for _ in range(50):
        last = model.train_step(tokens, targets, learning_rate=1e-2)
    assert last < 0.2


def test_a_named_dialect_and_what_wins_over_it() -> None:
    assert chosen_dialect(None, None, {}) == {}
    assert chosen_dialect("andrea-12m", None, {"norm": None}) == {}
    assert (
        chosen_dialect("microgpt", None, {}) == DIALECTS["microgpt"] == preset_dialect("microgpt")
    )
    assert chosen_dialect("microgpt", "gpt2", {}) == {}
    chosen = chosen_dialect("andrea-12m", "microgpt", {"activation": "swiglu", "attn_bias": True})
    assert chosen == {**DIALECTS["microgpt"], "activation": "swiglu", "attn_bias": True}
    with pytest.raises(ConfigError, match="no dialect is called 'x'; there are gpt2, microgpt"):
        dialect_settings("x")
    with pytest.raises(ConfigError, match="no preset is called 'x'; there are andrea-nano, "):
        chosen_dialect("x", None, {})


def test_dialects_by_name() -> None:
    assert dialect_name(config_of().dialect()) == "gpt2"
    assert dialect_name(config_of(mlp_dim=5).dialect()) == "gpt2"
    assert dialect_name(config_of(**DIALECTS["microgpt"], mlp_dim=5).dialect()) == "microgpt"
    assert dialect_name(config_of(norm="rmsnorm").dialect()) is None


def test_a_dialect_in_words() -> None:
    assert describe_dialect(config_of()) == ""
    assert describe_dialect(config_of(**DIALECTS["microgpt"])) == (
        "microgpt: RMSNorm without gain, a norm after the embeddings, no norm before the head, "
        "ReLU, no biases, untied head, initial deviation 0.08, projections that start unscaled"
    )
    assert describe_dialect(config_of(norm_affine=False)) == "layer norm without gain and bias"


@settings(max_examples=100, deadline=None)
@given(one=ANY_DIALECT, other=ANY_DIALECT)
def test_different_dialects_are_different_words(one: dict[str, Any], other: dict[str, Any]) -> None:
    left, right = config_of(**one), config_of(**other)
    is_same = left.dialect() == right.dialect()
    assert (describe_dialect(left) == describe_dialect(right)) == is_same


def test_every_setting_changes_the_words() -> None:
    """One by one, as two dialects drawn at random rarely differ in one setting only."""
    others: dict[str, Any] = {name: values[1:] for name, values in CHOICES.items()}
    defaults = config_of().to_full_dict()
    others |= {name: (not defaults[name],) for name in FLAGS}
    others |= {"mlp_dim": (5, 6), "init_std": (0.5, 1.0)}
    assert set(others) == set(DIALECT_SETTINGS)
    words = {
        describe_dialect(config_of(**{name: value}))
        for name, values in others.items()
        for value in values
    }
    assert "" not in words and len(words) == sum(map(len, others.values()))
