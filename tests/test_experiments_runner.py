"""Experiments on tiny models: what is measured, that it repeats, and verdicts from its numbers."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

import andrea
from andrea.data import BatchSampler, EvaluationWindows
from andrea.errors import ArgumentError, ConfigError
from andrea.lessons.experiments import NAMES, Experiment, Results, Run, Runner, Variant, build
from andrea.lessons.experiments.custom import custom, parse_vary
from andrea.lessons.experiments.experiment import Contrast, lower_loss
from andrea.lessons.experiments.run import first_over_last, stream_growth
from andrea.lessons.experiments.runner import block_gradient_norms
from andrea.lessons.experiments.settings import training
from small_runs import small_data

VOCAB_SIZE = small_data().tokenizer.vocab_size
TINY = {"block_size": 8, "n_head": 2, "n_embd": 8}


def shrunk(experiment: Experiment) -> Experiment:
    """The same experiment on models of a few thousand parameters."""
    variants = tuple(
        dataclasses.replace(
            variant,
            model=dataclasses.replace(variant.model, **TINY, mlp_dim=16),
            train=dataclasses.replace(variant.train, batch_size=4, eval_windows=8),
        )
        for variant in experiment.variants
    )
    return dataclasses.replace(experiment, variants=variants)


def results_of(experiment: Experiment, seeds: tuple[int, ...] = (0, 1)) -> Results:
    runner = Runner(experiment, small_data(), seeds=seeds, device="cpu")
    for _ in runner.progress():
        pass
    return runner.results()


@pytest.fixture(scope="module")
def residual() -> Results:
    return results_of(shrunk(build("residual", "quick", VOCAB_SIZE, steps=12)), (0, 1, 2))


def test_a_verdict_comes_from_the_runs_own_numbers(residual: Results) -> None:
    """Computed again from results.json alone: differences of losses, and what they decide."""
    found = json.loads(json.dumps(residual.to_dict(), allow_nan=False))
    scores = {(run["variant"], run["seed"]): run["score"] for run in found["runs"]}
    claim = next(one for one in found["claims"] if "At 12 blocks the loss" in one["claim"])
    effects = [
        scores["12 blocks, without", seed] - scores["12 blocks, with", seed] for seed in range(3)
    ]
    assert claim["effect"]["values"] == pytest.approx(effects)
    half = 4.302653 * np.std(effects, ddof=1) / math.sqrt(3)
    low, high = np.mean(effects) - half, np.mean(effects) + half
    assert claim["effect"]["interval"] == pytest.approx([low, high])
    expected = "holds" if low >= 0.1 else "does not hold" if high < 0.1 else "undecided"
    assert claim["outcome"] == expected
    outcomes = {one["outcome"] for one in found["claims"]}
    worst = next(one for one in ("does not hold", "undecided", "holds") if one in outcomes)
    assert (found["outcome"], found["complete"]) == (worst, True)


def test_the_same_seeds_give_the_same_numbers(residual: Results) -> None:
    """With any number of threads."""
    threads = andrea.get_num_threads()
    andrea.set_num_threads(threads % 2 + 1)
    try:
        again = results_of(shrunk(build("residual", "quick", VOCAB_SIZE, steps=12)), (0, 1, 2))
    finally:
        andrea.set_num_threads(threads)
    assert again.runs == residual.runs
    first, second = (one.to_dict() for one in (residual, again))
    assert first.pop("device") != second.pop("device")  # it tells the threads
    assert first == second


def test_without_skip_connections_the_stream_is_not_carried(residual: Results) -> None:
    """Of variants that differ in skip connections alone, those without start otherwise."""
    by_name = residual.by_seed()[0]
    for depth in (2, 6, 12):
        skip, none = by_name[f"{depth} blocks, with"], by_name[f"{depth} blocks, without"]
        assert len(skip.stream) == depth + 1 and skip.stream[0] == none.stream[0]
        assert stream_growth(skip) != stream_growth(none)
        assert all(len(norms) == depth for norms in skip.gradients.values())
        assert sorted(skip.gradients) == [0, 6, 11]


def test_a_run_is_what_training_by_hand_gives() -> None:
    """Losses, gradient norms of blocks, the stream and validation, beside the calls of GPT."""
    experiment = shrunk(custom("quick", VOCAB_SIZE, {"n_layer": (2, 3)}, steps=5))
    run = results_of(experiment, (4,)).runs[1]
    variant, data = experiment.variants[1], small_data()
    model = andrea.GPT(variant.model, device="cpu", precision="fp32", seed=4)
    batches = BatchSampler(data.train, 4, 8, seed=4)
    losses, norms = [], []
    for step in range(5):
        inputs, targets = batches.batch(step)
        losses.append(model.forward(inputs, targets))
        if step == 0:
            first = model.activations()["h.0.input"][0].astype(np.float64)
            assert run.stream[0] == pytest.approx(math.sqrt(np.square(first).mean()), rel=1e-6)
            del first
        model.backward()
        if step in run.gradients:
            expected = [
                math.sqrt(
                    sum(
                        np.square(tensor.astype(np.float64)).sum()
                        for name, tensor in model.gradients().items()
                        if name.startswith(f"h.{block}.")
                    )
                )
                for block in range(3)
            ]
            assert run.gradients[step] == pytest.approx(expected)
            assert block_gradient_norms(model) == pytest.approx(expected)
        # 5 steps have no warm-up, and a cosine from the peak to a tenth of it.
        share = 0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * step / 5))
        norms.append(model.step(2e-3 * share, beta2=0.99))
    assert run.losses == pytest.approx(losses)
    assert run.norms == pytest.approx(norms)
    windows = EvaluationWindows(data.validation, 4, 8, 8)
    assert run.loss == pytest.approx(windows.mean_loss(model.forward))
    assert run.validation[-1] == (5, run.loss)


def test_variants_of_a_seed_see_the_same_data() -> None:
    """Two variants that are equal but for their names have equal runs."""
    one = shrunk(custom("quick", VOCAB_SIZE, {"n_layer": (1, 2)}, steps=4))
    first = one.variants[0]
    twins = dataclasses.replace(
        one,
        variants=(first, dataclasses.replace(first, name="twin")),
        contrasts=(Contrast("alike", lower_loss("twin", first.name), 1e-6, alike=True),),
    )
    results = results_of(twins, (0, 1))
    for seed in (0, 1):
        runs = results.by_seed()[seed]
        assert runs["twin"].losses == runs[first.name].losses
    assert results.runs[0].losses != results.runs[2].losses  # of another seed
    assert results.outcome == "holds"


def test_a_run_that_diverges_is_stopped_and_counts_as_guessing() -> None:
    values = {"learning_rate": (0.003, 1000.0), "max_norm": (0,), "norm_position": ("none",)}
    experiment = custom("quick", VOCAB_SIZE, {**values, "final_norm": (False,)}, steps=40)
    results = results_of(shrunk(experiment))
    fine, wild = experiment.variants
    assert (results.diverged(fine), results.diverged(wild)) == (0, 2)
    for run in results.of(wild):
        assert run.diverged is not None and run.steps < 40 and run.loss is None
        assert run.score == math.log(VOCAB_SIZE)
    row = next(row for row in results.table().rows if row[0] == wild.name)
    assert row[-1] == "2 of 2"
    json.dumps(results.to_dict(), allow_nan=False)


def test_what_is_done_when_it_is_ended_early_is_told() -> None:
    experiment = shrunk(build("residual", "quick", VOCAB_SIZE, steps=2))
    runner = Runner(experiment, small_data(), seeds=(0, 1), device="cpu")
    assert runner.results().outcome == "undecided"  # nothing is measured yet
    for progress in runner.progress():
        if progress.seed == 1 and progress.finished is not None:
            break
    results = runner.results()
    assert not results.is_complete and len(results.runs) == 7
    # Of the second seed, one variant alone is there: its pairs are not.
    effects = [one.effect for one in results.judged]
    assert [effect and len(effect.values) for effect in effects] == [1] * len(effects)
    assert json.loads(json.dumps(results.to_dict()))["complete"] is False


def test_progress_is_by_work_and_ends_at_1() -> None:
    experiment = shrunk(custom("quick", VOCAB_SIZE, {"n_layer": (1, 4)}, steps=2))
    reports = list(Runner(experiment, small_data(), seeds=(0,), device="cpu").progress())
    shares = [report.fraction for report in reports]
    assert shares == sorted(shares) and shares[-1] == 1.0 and shares[1] < 0.4
    assert [report.finished is not None for report in reports] == [False, True] * 2


@pytest.mark.parametrize("mode", ["quick", "full"])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "custom"])
def test_every_experiment_is_whole(name: str, mode: str) -> None:
    """Its contrasts name variants that are there, and models can be made of its sizes."""
    experiment = build(name, mode, 257)
    assert experiment.name == name and experiment.mode == mode
    runs = {
        variant.name: Run(
            variant.name,
            0,
            (3.0,),
            (1.0,),
            # The limits of norms are known if some learning rates train and others don't.
            ((variant.steps, 3.3 if variant.name.startswith(("post", "none")) else 2.0),),
            {0: (1.0,) * variant.model.n_layer, variant.steps - 1: (1.0,) * variant.model.n_layer},
            (1.0,) * (variant.model.n_layer + 1),
            None,
            math.log(257),
            3.3,
            {name: (0.5,) * (variant.model.n_layer + 1) for name in ("without", "current", "next")},
        )
        for variant in experiment.variants
    }
    for contrast in experiment.contrasts:
        assert math.isfinite(contrast.value(runs)), contrast.claim


def test_a_gradient_of_0_counts_as_the_least_number() -> None:
    run = Run("", 0, (1.0,), (1.0,), (), {0: (0.0, 1.0), 9: (1e-3, 1.0)}, (), None, 5.0, 3.0)
    assert first_over_last(run) == pytest.approx(-44.85, abs=0.01)
    assert first_over_last(run, at_end=True) == pytest.approx(-3)
    broken = dataclasses.replace(run, gradients={0: (math.nan, 1.0)})
    assert first_over_last(broken) is None


def test_what_may_be_varied() -> None:
    assert parse_vary("n-layer = 2, 4") == ("n_layer", (2, 4))
    assert parse_vary("residual=yes,off") == ("residual", (True, False))
    assert parse_vary("learning_rate=1e-3") == ("learning_rate", (1e-3,))
    assert parse_vary("activation=relu,gelu") == ("activation", ("relu", "gelu"))
    for text, word in {
        "n_layer": "names no values",
        "n_layer=": "names no values",
        "n_layer=2,,4": "names no values",
        "vocab_size=2,3": "can't be varied",
        "n_layer=2,2": "twice",
    }.items():
        with pytest.raises(ArgumentError, match=word):
            parse_vary(text)


def test_a_custom_experiment_is_every_combination() -> None:
    vary = {"n_layer": (1, 2), "mlp_ratio": (2,), "learning_rate": (1e-3, 2e-3), "steps": (7,)}
    experiment = custom("quick", 65, vary)
    assert [variant.name for variant in experiment.variants] == [
        f"n_layer {n}, learning_rate {rate}" for n in (1, 2) for rate in (0.001, 0.002)
    ]
    assert {variant.model.mlp_dim for variant in experiment.variants} == {128}
    assert {variant.steps for variant in experiment.variants} == {7}
    assert [variant.train.learning_rate for variant in experiment.variants] == [1e-3, 2e-3] * 2
    assert len(experiment.contrasts) == 3


@pytest.mark.parametrize(
    ("vary", "error"),
    [
        ({"n_layer": (2,)}, ArgumentError),
        ({"n_layer": tuple(range(1, 100))}, ArgumentError),
        ({"n_layer": (2, "many")}, ConfigError),
        ({"mlp_ratio": (2, "wide")}, ConfigError),
        ({"steps": (2, 0.5)}, ConfigError),
        ({"learning_rate": (1e-3, -1)}, ConfigError),
        ({"mlp_ratio": (1, 2), "mlp_dim": (64,)}, ConfigError),
    ],
)
def test_what_makes_no_custom_experiment(vary: dict[str, tuple[object, ...]], error: type) -> None:
    with pytest.raises(error) as told:
        custom("quick", 65, vary)  # type: ignore[arg-type]
    assert "\n" not in str(told.value)


def test_what_makes_no_experiment() -> None:
    with pytest.raises(ArgumentError, match="no experiment is called"):
        build("perpetual-motion", "quick", 65)
    with pytest.raises(ArgumentError, match="mode must be one of"):
        build("residual", "slow", 65)
    variant = build("residual", "quick", 65).variants[0]
    with pytest.raises(ArgumentError, match="by steps"):
        Variant("timed", variant.model, dataclasses.replace(training(3), steps=None, seconds=3), {})
    with pytest.raises(ArgumentError, match="names of their own"):
        dataclasses.replace(build("residual", "quick", 65), variants=(variant, variant))
    with pytest.raises(ArgumentError, match="different seeds"):
        Runner(build("residual", "quick", VOCAB_SIZE), small_data(), seeds=(1, 1))
