"""Counts by kind: the engine's own tensors are the witness, of presets and of any dialect."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest

import andrea
from andrea import PRESETS, ConfigError, ModelConfig
from andrea.config import DIALECTS
from andrea.lessons import (
    Comparison,
    Count,
    changed_config,
    count_operations,
    count_parameters,
)
from andrea.lessons.counting import KINDS, kind_of
from andrea.planning.sizes import flops_formula, flops_per_token
from andrea.words import percent
from dialects import SWITCHES, config_of, is_valid

ON_CPU = {"device": "cpu", "precision": "fp32"}
# The engine begins each tensor at a cache line.
LINE = 64
# Of GPT-2's names, what each kind is called in them.
MARKS = {
    "embeddings": ("wte.", "wpe."),
    "attention": (".attn.",),
    "mlp": (".mlp.",),
    "norms": ("ln_",),
    "head": ("lm_head.",),
}


def preset(name: str, dialect: str | None = None, **changes: Any) -> ModelConfig:
    sizes = PRESETS[name]
    config = ModelConfig(**{**sizes, "vocab_size": sizes["vocab_size"] or 257, **changes})
    return changed_config(config, {}, dialect=dialect)


def counted(config: ModelConfig) -> Count:
    return count_parameters(config, device="cpu", precision="fp32")


def with_one_switch() -> list[ModelConfig]:
    """GPT-2's and microgpt's dialects, and both with one switch set otherwise."""
    found = []
    for settings in DIALECTS.values():
        found.append(config_of(settings))
        for name, values in SWITCHES.items():
            for value in values:
                changed = {**settings, name: value}
                if is_valid(changed) and config_of(changed) not in found:
                    found.append(config_of(changed))
    return found


def check_against_the_engine(config: ModelConfig) -> None:
    """Kind by kind, tensor by tensor, against a model."""
    count, model = counted(config), andrea.GPT(config, **ON_CPU)
    sizes = {name: math.prod(tensor.shape) for name, tensor in model.tensors().items()}
    assert count.parameters == sum(sizes.values()) == model.num_parameters
    for kind in count.kinds:
        marks = MARKS[kind.name]
        own = {name: size for name, size in sizes.items() if any(mark in name for mark in marks)}
        assert kind.parameters == sum(own.values()), kind.name
        assert kind.block == sum(size for name, size in own.items() if name.startswith("h.0."))
        assert {kind_of(name) for name in own} <= {kind.name}
    names = {
        row.name.replace("*", str(layer)) for row in count.tensors for layer in range(row.copies)
    }
    assert names == set(sizes)
    told = [row for kind in count.kinds for row in kind.tensors]
    assert sorted(row.name for row in told) == sorted(row.name for row in count.tensors)


# ---- presets


@pytest.mark.parametrize("dialect", [None, "gpt2", "microgpt"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_the_engines(name: str, dialect: str | None) -> None:
    """The small ones as they are; the large ones as deep as they are, but thin."""
    config = preset(name, dialect)
    if counted(config).parameters > 1_000_000:
        thin = {"vocab_size": 31, "block_size": 8, "n_head": 2, "n_embd": 8}
        config = changed_config(config, thin)
    check_against_the_engine(config)


@pytest.mark.parametrize("dialect", [None, "gpt2", "microgpt"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_takes_the_memory_of_its_tensors(name: str, dialect: str | None) -> None:
    """In full size, by the engine's plan: each tensor rounded up to whole cache lines."""
    count = counted(preset(name, dialect))
    expected = sum(
        row.copies * math.ceil(4 * math.prod(row.shape) / LINE) * LINE for row in count.tensors
    )
    assert count.training["parameters"] == count.training["gradients"] == expected
    assert count.training["moments"] == 2 * expected
    assert count.training["total"] == sum(
        amount for kind, amount in count.training.items() if kind != "total"
    )
    assert count.sampling["gradients"] == count.sampling["moments"] == 0


def test_the_familys_figures() -> None:
    """Those of the family's published checkpoint, and of the design's table of layouts."""
    count = counted(preset("andrea-120m"))
    assert (count.parameters, count.norms, count.head) == (92_331_264, 25, 6_488_832)
    amounts = {kind.name: (kind.parameters, kind.block) for kind in count.kinds}
    assert amounts["attention"] == (12 * 2_362_368, 2_362_368)
    assert amounts["mlp"] == (12 * 4_722_432, 4_722_432)
    assert amounts["embeddings"] == (6_488_832 + 786_432, 0) and amounts["head"] == (0, 0)
    assert count.block == 7_087_872
    ancestor = counted(preset("andrea-120m", "microgpt"))
    assert (ancestor.parameters, ancestor.norms) == (98_698_752, 25)
    assert counted(preset("gpt2")).parameters == 124_439_808


# ---- dialects


@pytest.mark.parametrize("config", with_one_switch(), ids=lambda config: repr(config.dialect()))
def test_any_switch_is_counted(config: ModelConfig) -> None:
    check_against_the_engine(config)
    values = {**config.to_full_dict(), "length": config.block_size}
    for kind in counted(config).kinds:
        assert evaluated(kind.formula, values) == kind.parameters, kind.formula
    work = count_operations(config)
    assert work.forward == flops_per_token(config, training=False)
    assert work.training == flops_per_token(config, training=True)
    for name, amount in work.kinds.items():
        assert evaluated(work.formulas[name], values) == amount, work.formulas[name]
    short = count_operations(config, 3)
    assert short.forward == flops_per_token(config, training=False, length=3)
    assert count_operations(config, 6).attention > short.attention and short.head == work.head


def evaluated(formula: str, values: dict[str, Any]) -> int:
    """What a formula in the configuration's words comes to; the empty one to nothing."""
    text = re.sub(r"[a-z]\w+", lambda name: str(int(values[name[0]])), formula)
    text = text.replace(" x ", " * ").replace("^", "**")
    # Names beside each other are multiplied.
    text = re.sub(r"(?<=[\d)]) (?=[\d(])", " * ", text)
    return int(eval(text or "0"))


def test_a_name_of_no_model_has_no_kind() -> None:
    with pytest.raises(KeyError):
        kind_of("transformer.rotary")
    assert {kind_of(f"h.10.{part}.bias") for part in ("ln_1", "ln_2")} == {"norms"}


# ---- changes


def test_the_usual_width_of_the_mlp_follows() -> None:
    config = preset("andrea-12m")
    assert changed_config(config, {"n_embd": 96}).mlp_dim == 384
    assert changed_config(config, {"activation": "swiglu"}).mlp_dim == 1024
    narrow = changed_config(config, {}, mlp_ratio=2)
    assert narrow == dataclasses.replace(config, mlp_dim=768)
    assert changed_config(narrow, {"n_embd": 96}).mlp_dim == 768, "another one stays"
    assert changed_config(narrow, {"n_embd": 96}, mlp_ratio=8 / 3).mlp_dim == 256
    assert changed_config(config, {}, mlp_ratio=4) == config


def test_a_dialect_takes_the_place_of_the_other() -> None:
    ancestor = preset("microgpt")
    changed = changed_config(ancestor, {"n_layer": 2, "activation": "gelu"}, dialect="gpt2")
    assert changed.dialect() == {} and changed.n_layer == 2
    back = changed_config(changed, {"n_layer": 1, "activation": "relu"}, dialect="microgpt")
    assert back == ancestor


@pytest.mark.parametrize(
    ("changes", "settings", "told"),
    [
        ({"n_head": 5}, {}, "n_head must divide n_embd"),
        ({"depth": 5}, {}, "unknown model setting 'depth'"),
        ({"n_embd": "wide"}, {"mlp_ratio": 2}, "n_embd must be an integer"),
        ({}, {"dialect": "latin"}, "no dialect is called 'latin'"),
        ({"mlp_dim": 5}, {"mlp_ratio": 2}, "give one"),
        ({}, {"mlp_ratio": 1e-9}, "mlp_ratio 1e-09 makes an MLP 3.84e-07 wide"),
        ({}, {"mlp_ratio": 1e300}, "must be between 1 and 2**31 - 1"),
        ({}, {"mlp_ratio": math.inf}, "must be between 1 and 2**31 - 1"),
        ({}, {"mlp_ratio": math.nan}, "must be between 1 and 2**31 - 1"),
        ({}, {"mlp_ratio": -1.0}, "must be between 1 and 2**31 - 1"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        changed_config(preset("andrea-12m"), changes, **settings)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_a_difference_is_that_of_the_numbers() -> None:
    before = counted(preset("andrea-12m"))
    after = counted(changed_config(before.config, {"tie_embeddings": False}, mlp_ratio=2))
    both = Comparison(before, after)
    assert both.settings == {"mlp_dim": (1536, 768), "tie_embeddings": (True, False)}
    told = both.to_dict()
    C, V, L = 384, 2305, 6
    # The MLP's matrices are C x 4 C, and its first bias is as wide.
    less = L * (2 * C * 2 * C + 2 * C)
    assert told["parameters"] == V * C - less == after.parameters - before.parameters
    assert told["kinds"]["mlp"]["parameters"] == -less
    assert told["kinds"]["mlp"]["block"] == told["block"] == -less // L
    assert told["kinds"]["head"]["parameters"] == V * C
    assert told["norms"]["number"] == told["kinds"]["attention"]["parameters"] == 0
    assert told["memory"]["training"]["parameters"] == 4 * told["parameters"], "whole lines here"
    assert told["memory"]["training"]["activations"] < 0
    assert told["flops_per_token"]["kinds"] == {
        "attention": 0,
        "mlp": -2 * L * 2 * C * 2 * C,
        "head": 0,
    }
    assert told["flops_per_token"]["training"] == 3 * told["flops_per_token"]["forward"]
    json.dumps(told)


# ---- plain data


def test_the_dictionary_is_whole() -> None:
    count = count_parameters(preset("microgpt"), 3, device="cpu", precision="fp32")
    facts = json.loads(json.dumps(count.to_dict()))
    assert list(facts["kinds"]) == list(KINDS)
    assert sum(kind["share"] for kind in facts["kinds"].values()) == pytest.approx(1)
    assert sum(row["share"] for row in facts["table"]) == pytest.approx(1)
    for name, kind in facts["kinds"].items():
        rows = [row for row in facts["table"] if row["kind"] == name]
        assert kind["parameters"] == sum(row["total"] for row in rows)
    assert facts["head"] == {"tied": False, "parameters": 257 * 16}
    assert (facts["batch_size"], facts["device"], facts["precision"]) == (3, "cpu", "fp32")
    assert facts["memory"]["training"] == andrea.engine_memory(count.config, 3, **ON_CPU)
    assert facts["flops_per_token"]["formula"] == flops_formula(count.config)


@pytest.mark.parametrize(
    ("share", "told"),
    [
        (0, "0%"),
        (1, "100.0%"),
        (0.61376, "61.4%"),
        (0.001, "0.1%"),
        (0.00041589, "0.042%"),
        (0.0000998, "0.01%"),
        (1 / 3e9, "0.000000033%"),
        (-0.5, "-50.0%"),
    ],
)
def test_percentages(share: float, told: str) -> None:
    assert percent(share) == told
