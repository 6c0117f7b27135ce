"""Plans: arithmetic equal to the engine's, what the user fixed kept, and sizes that fit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import andrea
from andrea import PRESETS, ModelConfig
from andrea.config import DIALECTS
from andrea.errors import ConfigError
from andrea.planning.machine import available_memory, measure_flops, probe
from andrea.planning.memory import Room, TooLarge
from andrea.planning.plan import DEFAULT_SECONDS, Choices, Plan, needs_speed, plan, preset_tokenizer
from andrea.planning.shapes import check_choices
from andrea.planning.sizes import flops_per_token, memory_plan, num_parameters, parameter_table
from small_runs import small_config, small_model, state_bytes

ANDREA_120M = ModelConfig(**PRESETS["andrea-120m"])


def planned(
    *, vocab_size: int = 66, train_tokens: int = 1_000_000, flops: float | None = 8e10, **fixed: Any
) -> Plan:
    return plan(
        Choices(**fixed), vocab_size=vocab_size, train_tokens=train_tokens, flops_per_second=flops
    )


# ---- arithmetic


@pytest.mark.parametrize(
    "sizes",
    [
        (11, 8, 2, 2, 16),
        (66, 128, 4, 4, 128),
        (257, 1, 1, 1, 3),
        (1000, 64, 3, 5, 40),
    ],
)
def test_the_table_is_the_engines(sizes: tuple[int, ...]) -> None:
    config = ModelConfig(*sizes)
    model = andrea.GPT(config)
    expected = {name: view.shape for name, view in model.parameters().items()}
    shapes: dict[str, tuple[int, ...]] = {}
    for row in parameter_table(config):
        assert row.total == row.copies * row.count == row.copies * math.prod(row.shape)
        for layer in range(row.copies):
            shapes[row.name.replace("*", str(layer))] = row.shape
    assert shapes == expected
    assert num_parameters(config) == model.num_parameters


def test_the_formulas_say_the_shapes() -> None:
    config = ModelConfig(vocab_size=101, block_size=37, n_layer=3, n_head=2, n_embd=10)
    names = {**config.to_dict(), "": 1}
    for row in parameter_table(config):
        dimensions = []
        for word in row.formula.split(" x "):
            *factor, name = word.split(" ")
            dimensions.append(math.prod(map(int, factor)) * names[name])
        assert tuple(dimensions) == row.shape, row.formula


def test_the_familys_figures() -> None:
    rows = parameter_table(ANDREA_120M)
    assert num_parameters(ANDREA_120M) == 92_331_264
    assert sum(row.count for row in rows if row.name.startswith("h.*")) == 7_087_872
    assert sum(row.count for row in rows if ".attn." in row.name) == 2_362_368
    assert sum(row.count for row in rows if ".mlp." in row.name) == 4_722_432
    totals = {row.name: row.total for row in rows}
    assert totals["wte.weight"] == 6_488_832 and totals["wpe.weight"] == 786_432


def test_operations_per_token() -> None:
    """Against the products of one sequence, counted one by one."""
    T, C, V, L = 6, 8, 11, 2
    config = ModelConfig(vocab_size=V, block_size=T, n_layer=L, n_head=2, n_embd=C)
    products = L * (T * C * 3 * C + T * C * C + 2 * T * C * 4 * C) + T * C * V
    # Attention: a query sees T / 2 keys on average, for the scores and again for the values.
    products += L * 2 * T * (T // 2) * C
    assert flops_per_token(config, training=False) * T == 2 * products
    assert flops_per_token(config, training=True) == 3 * flops_per_token(config, training=False)
    short = flops_per_token(config, training=False, length=2)
    assert short == flops_per_token(dataclasses.replace(config, block_size=2), training=False)
    # The usual estimate, 6 per parameter, is near for a large model with a short context.
    near = 6 * num_parameters(ANDREA_120M)
    assert flops_per_token(ANDREA_120M, training=True, length=64) == pytest.approx(near, rel=0.02)


def test_memory_is_the_engines() -> None:
    config = ModelConfig(66, 128, 4, 4, 128)
    memory = memory_plan(config, 16)
    assert memory["total"] == sum(size for kind, size in memory.items() if kind != "total")
    padding = 64 * len(small_model().parameters()) * 4
    assert 0 <= memory["parameters"] - 4 * num_parameters(config) < padding
    assert memory["moments"] == 2 * memory["gradients"] == 2 * memory["parameters"]
    assert memory_plan(config, 32)["activations"] > 1.9 * memory["activations"]
    for use, share in (("forward", 0.8), ("decoding", 0.5)):
        alone = memory_plan(config, 16, use=use)
        assert alone["gradients"] == alone["moments"] == 0
        assert alone["total"] < share * memory["total"]


# ---- choices are kept


@pytest.mark.parametrize(
    "fixed",
    [
        {"n_layer": 3},
        {"n_head": 3},
        {"n_embd": 96},
        {"n_embd": 96, "n_head": 6},
        {"block_size": 100},
        {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 4},
    ],
)
def test_a_fixed_shape_is_kept(fixed: dict[str, int]) -> None:
    model = planned(**fixed).model.to_dict()
    assert {name: model[name] for name in fixed} == fixed


@pytest.mark.parametrize(
    "fixed",
    [
        {"batch_size": 7},
        {"accumulate": 3},
        {"batch_size": 5, "accumulate": 2},
        {"steps": 123},
        {"seconds": 77.0},
        {"learning_rate": 0.5},
        {"warmup": 0},
        {"weight_decay": 0.0},
        {"seed": 9},
        {"eval_every": 0},
        {"save_every": 3},
        {"schedule": "wsd", "decay_share": 0.5, "min_ratio": 0.0},
        {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "max_norm": 0.0},
        {"keep_last": 5, "eval_windows": 3, "early_stop": 2, "coherence_gate": 30.0},
        {"outlier_z": 0.0, "skip_outliers": True, "max_skipped": 3},
    ],
)
def test_fixed_training_settings_are_kept(fixed: dict[str, Any]) -> None:
    train = planned(**fixed).with_speed(0.01).train.to_dict()
    assert {name: train[name] for name in fixed} == fixed


@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets_keep_their_shape(preset: str) -> None:
    result = planned(preset=preset, vocab_size=500)
    expected = {**PRESETS[preset], "vocab_size": 500}
    assert result.model.to_dict() == expected
    deeper = planned(preset=preset, vocab_size=500, n_layer=2, block_size=32)
    assert deeper.model.to_dict() == {**expected, "n_layer": 2, "block_size": 32}


def test_a_dialect_is_kept_by_every_shape() -> None:
    chosen = {"dialect": "microgpt", "activation": "swiglu", "attn_bias": True}
    expected = {**DIALECTS["microgpt"], "activation": "swiglu", "attn_bias": True}
    del expected["attn_bias"]  # that is GPT-2's
    for seconds in (1.0, 3e3, 1e7):
        model = planned(seconds=seconds, train_tokens=10**9, **chosen).model
        assert model.dialect() == expected
        assert model.mlp_dim % 64 == 0 and 0 <= model.mlp_dim - 8 * model.n_embd / 3 < 64
    of_the_preset = planned(preset="microgpt", tie_embeddings=True, mlp_dim=5).model
    assert of_the_preset.tie_embeddings and of_the_preset.norm == "rmsnorm"
    assert of_the_preset.mlp_dim == 5
    assert planned(preset="microgpt", dialect="gpt2").model.dialect() == {}


def test_a_model_with_more_work_per_token_gets_fewer_tokens() -> None:
    """Of the same shape and time: the plan counts the dialect's own operations and parameters."""
    fixed = {"n_layer": 8, "n_embd": 512, "block_size": 256, "seconds": 3e6, "train_tokens": 10**9}
    usual, wide = planned(**fixed), planned(**fixed, mlp_dim=64 * 512)
    assert wide.flops_per_token > 4 * usual.flops_per_token
    assert wide.parameters > 4 * usual.parameters
    assert wide.train.batch_size < usual.train.batch_size
    assert wide.memory["parameters"] > 4 * usual.memory["parameters"]


def test_choices_that_no_model_can_have_are_refused_before_the_text() -> None:
    check_choices(Choices(preset="microgpt", n_layer=3))
    for fixed in ({"n_embd": 10, "n_head": 3}, {"norm_position": "up"}, {"block_size": 0}):
        with pytest.raises(ConfigError):
            check_choices(Choices(**fixed))


def test_a_presets_tokenizer() -> None:
    assert preset_tokenizer("gpt2") == ("bpe", 50257)
    assert preset_tokenizer("microgpt") == ("auto", None)
    assert preset_tokenizer(None) == ("auto", None)
    assert preset_tokenizer("andrea-nano") == ("auto", None)
    assert preset_tokenizer("andrea-120m") == ("bpe", 8449)
    with pytest.raises(ConfigError, match="'gigantic'; there are andrea-nano, "):
        preset_tokenizer("gigantic")


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"preset": "gigantic"}, "no preset is called 'gigantic'"),
        ({"n_layer": 0}, "n_layer must be"),
        ({"n_head": 0}, "n_head must be"),
        ({"n_head": -2}, "n_head must be"),
        ({"n_embd": 0}, "n_embd must be"),
        ({"n_embd": 100, "n_head": 3}, "n_head must divide n_embd"),
        ({"block_size": 0}, "block_size must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"accumulate": 0}, "accumulate must be"),
        ({"steps": 0}, "steps must be"),
        ({"seconds": -1.0}, "seconds must be"),
        ({"steps": 5, "seconds": 5.0}, "steps and seconds contradict each other"),
        ({"tokens": 5, "epochs": 5.0}, "tokens and epochs contradict each other"),
        ({"tokens": 0}, "tokens must be above 0"),
        ({"epochs": math.inf}, "epochs must be above 0"),
        ({"schedule": "sine"}, "schedule must be one of"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"warmup": -1}, "warmup must be"),
    ],
)
def test_contradictions_are_told(fixed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        planned(**fixed)
    assert "\n" not in str(caught.value)


# ---- what is chosen


def test_left_alone_it_trains_five_minutes() -> None:
    result = planned()
    assert result.train.seconds == DEFAULT_SECONDS == 300.0
    assert result.train.steps is None


def test_more_time_never_makes_a_smaller_model() -> None:
    sizes = [planned(seconds=60.0 * 4**n, train_tokens=10**9).parameters for n in range(9)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 100 * sizes[0]


def test_the_text_bounds_the_model() -> None:
    day = 86400.0
    sizes = [planned(seconds=day, train_tokens=10**n).parameters for n in range(3, 10)]
    assert sizes == sorted(sizes)
    for exponent, size in enumerate(sizes, 3):
        smallest = planned(seconds=1.0, train_tokens=10**exponent).parameters
        assert size <= max(2 * 10**exponent, smallest)


def test_wider_models_learn_slower_and_look_further() -> None:
    plans = [planned(n_embd=width, n_layer=2) for width in (64, 128, 256, 512, 768)]
    rates = [result.train.learning_rate for result in plans]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1]
    assert plans[-1].train.learning_rate == pytest.approx(6e-4)
    contexts = [result.model.block_size for result in plans]
    assert contexts == sorted(contexts) and contexts[0] < contexts[-1]


@settings(max_examples=60, deadline=None)
@given(
    train_tokens=st.integers(2, 10**10),
    vocab_size=st.integers(2, 60_000),
    seconds=st.floats(1.0, 1e6),
    flops=st.one_of(st.none(), st.floats(1e8, 1e15)),
)
def test_any_text_gets_a_plan_it_can_feed(
    train_tokens: int, vocab_size: int, seconds: float, flops: float | None
) -> None:
    result = planned(train_tokens=train_tokens, vocab_size=vocab_size, seconds=seconds, flops=flops)
    model, train = result.model, result.train
    assert model.block_size + 1 <= train_tokens
    assert model.vocab_size == vocab_size
    assert model.head_dim in (32, 64) and model.n_embd % 64 == 0
    assert train.batch_size * model.block_size <= max(train_tokens, model.block_size)


def test_runs_by_steps_do_not_depend_on_the_machine() -> None:
    """Equal commands must give equal bytes, and the plan is recorded in the checkpoint."""
    slow = planned(steps=400, flops=1e9)
    fast = planned(steps=400, flops=None)
    assert slow.with_speed(3.0).train == fast.with_speed(0.001).train == fast.train
    assert slow.model == fast.model
    assert not needs_speed(Choices(steps=400))
    assert needs_speed(Choices()) and needs_speed(Choices(n_layer=2, n_embd=64))
    assert not needs_speed(Choices(preset="andrea-nano", batch_size=4))


def test_little_memory_means_smaller_parts_of_the_same_step() -> None:
    fixed = Choices(n_layer=4, n_embd=256, block_size=256, steps=100)
    text = {"vocab_size": 66, "train_tokens": 10**7}
    roomy = plan(fixed, **text, memory=10**11)
    needed = roomy.memory["total"]
    tight = plan(fixed, **text, memory=int(needed * 1.3))
    assert tight.memory["total"] < 0.7 * 1.3 * needed
    assert tight.train.accumulate > 1
    assert tight.train.tokens_per_step(256) == roomy.train.tokens_per_step(256)
    assert any("to fit in memory" in note for note in tight.notes)
    alone = plan(Choices(steps=100), **text, memory=2 * 10**7)
    assert alone.memory["total"] <= 2 * 10**7


@pytest.mark.parametrize(
    ("batch_size", "most", "parts"),
    [(24, 20, 12), (24, 5, 4), (36, 17, 12), (2**31 - 1, 10**6, 1), (2**40, 2**20, 2**20)],
)
def test_a_step_is_parted_evenly_whatever_its_size(
    batch_size: int, most: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest divisor that fits, of a prime 1, found without trying all numbers below."""
    monkeypatch.setattr(Room, "fits", lambda room, model, size, share: size <= most)
    found = Room(10**9).smaller_batch(small_model().config, batch_size, 3)
    assert found == {"batch_size": parts, "accumulate": 3 * (batch_size // parts)}


def test_a_model_that_cannot_fit_is_refused_with_both_figures() -> None:
    figures = r"takes 2\.0 GB \(moments 739 MB, .*\), 1\.0 GB are free"
    with pytest.raises(TooLarge, match=figures) as caught:
        plan(
            Choices(preset="andrea-120m", batch_size=1),
            vocab_size=8449,
            train_tokens=10**7,
            memory=10**9,
        )
    assert "\n" not in str(caught.value)


def test_speed_tells_time_and_tokens() -> None:
    result = planned(steps=1000, batch_size=8, n_layer=2, n_embd=64, block_size=64)
    assert result.tokens == 1000 * 8 * 64
    assert result.epochs == pytest.approx(0.512)
    assert result.seconds is None and result.tokens_per_second is None
    known = result.with_speed(0.05)
    assert known.tokens_per_second == pytest.approx(8 * 64 / 0.05)
    assert known.seconds is not None and 50 <= known.seconds <= 60
    timed = planned(seconds=600.0)
    assert timed.steps is None and timed.tokens is None
    assert timed.with_speed(0.05).steps == pytest.approx(600 / 0.05, rel=0.1)
    assert timed.with_speed(1e9).steps == 1


def test_many_epochs_are_told() -> None:
    timed = planned(train_tokens=20_000, seconds=600.0).with_speed(0.01)
    told = f"text: each token will be seen about {timed.epochs:,.0f} times, and more text would"
    assert "," in told.partition(" times")[0] and any(note.startswith(told) for note in timed.notes)
    assert not any("more text" in note for note in planned(train_tokens=10**9).with_speed(9).notes)


@pytest.mark.parametrize("seconds_per_step", [0.001, 1.0, 100.0])
def test_long_runs_show_something_every_ten_minutes(seconds_per_step: float) -> None:
    train = planned(seconds=86400.0, flops=1e12).with_speed(seconds_per_step).train
    assert 1 <= train.eval_every * seconds_per_step <= max(600.0, seconds_per_step)
    assert train.save_every == train.eval_every


# ---- the machine


def test_a_probe_leaves_a_new_model_as_it_was() -> None:
    config = small_config(seed=6, accumulate=3)
    model, untouched = small_model(seed=6), small_model(seed=6)
    seconds = probe(model, config, seconds=0.05)
    assert 0 < seconds < 1
    assert state_bytes(model) == state_bytes(untouched)
    assert model.step_count == 0
    assert not any(gradient.any() for gradient in model.gradients().values())


def test_measured_speed_is_that_of_a_computer() -> None:
    assert 1e8 < measure_flops(seconds=0.2) < 1e15


def test_available_memory_is_a_sensible_figure() -> None:
    memory = available_memory()
    assert memory is None or 10**7 < memory < 10**14


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea.planning import machine

    monkeypatch.setattr(machine, "_system_memory", lambda: 8 * 10**9)
    monkeypatch.setattr(machine, "_cgroup_memory", lambda: 10**9)
    assert available_memory() == 10**9
    monkeypatch.setattr(machine, "_cgroup_memory", lambda: None)
    assert available_memory() == 8 * 10**9
    monkeypatch.setattr(machine, "_process_limit", lambda: 7)
    assert available_memory() == 7


def test_a_gpus_free_memory_counts_for_runs_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from andrea import _library
    from andrea.planning import machine

    info = dataclasses.replace(
        andrea.cuda_info(), usable=True, memory_total=9 * 10**9, memory_free=5 * 10**9
    )
    monkeypatch.setattr(_library, "cuda_info", lambda: info)
    monkeypatch.setattr(machine, "_system_memory", lambda: 8 * 10**9)
    monkeypatch.setattr(machine, "_cgroup_memory", lambda: None)
    for device in ("cuda", "cuda:1", "auto"):
        assert machine.is_gpu(device) and available_memory(device) == 5 * 10**9
    assert not machine.is_gpu("cpu") and available_memory("cpu") == 8 * 10**9
    info = dataclasses.replace(info, usable=False)
    assert not machine.is_gpu("auto") and available_memory("auto") == 8 * 10**9


def test_memory_is_planned_for_the_device_and_precision_of_the_run() -> None:
    totals = {}
    for precision in ("fp32", "bf16"):
        made = plan(
            Choices(n_layer=4, n_embd=128, block_size=64, batch_size=16, steps=10),
            vocab_size=66,
            train_tokens=10**6,
            device="cpu",
            precision=precision,
        )
        totals[precision] = made.memory["activations"]
        expected = memory_plan(made.model, 16, device="cpu", precision=precision)
        taken = {kind: size for kind, size in made.memory.items() if kind != "samples"}
        assert taken == {**expected, "total": expected["total"] + made.memory["samples"]}
    assert totals["bf16"] < 0.8 * totals["fp32"]
