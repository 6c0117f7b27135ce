"""Single experiments: what is particular to them, on numbers that are known."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping

import numpy as np
import pytest

from andrea.data import EvaluationWindows
from andrea.lessons.experiments import Experiment, Results, Run, build
from andrea.lessons.experiments.activation import form_difference
from andrea.lessons.experiments.curves import activation_curve
from andrea.lessons.experiments.depth import measure, probe
from andrea.lessons.experiments.norm import highest_that_trains
from andrea.lessons.experiments.scaling import fit, predict
from andrea.planning.sizes import num_parameters
from extras import needs
from reference import activations as reference
from small_runs import small_data, small_model
from test_experiments_runner import VOCAB_SIZE, results_of, shrunk

GUESS, FREQUENCIES = math.log(257), 3.3


def made_up(experiment: Experiment, losses: Mapping[str, list[float | None]]) -> Results:
    """Results with these losses, seed by seed; None: it diverged; variants not named get 2."""
    runs = []
    for variant in experiment.variants:
        for seed, loss in enumerate(losses.get(variant.name, [2.0, 2.0, 2.0])):
            depth = variant.model.n_layer
            at_end = () if loss is None else ((variant.steps, loss),)
            run = Run(
                variant.name,
                seed,
                (3.0,) * variant.steps,
                (1.0,) * variant.steps,
                at_end,
                {0: (1.0,) * depth, variant.steps - 1: (1.0,) * depth},
                (1.0,) * (depth + 1),
                "it was made up" if loss is None else None,
                GUESS,
                FREQUENCIES,
            )
            runs.append(run)
    return Results(experiment, tuple(runs), (0, 1, 2), small_data(), "no device")


def outcomes(results: Results, word: str) -> str:
    return next(one.verdict.outcome for one in results.judged if word in one.contrast.claim)


# ---- residual


@pytest.mark.parametrize(
    ("deep", "outcome"),
    [
        ([2.5, 2.52, 2.48], "holds"),
        ([2.0, 2.01, 1.99], "does not hold"),
        ([2.0, 2.5, 1.9], "undecided"),
        ([None, None, None], "holds"),
    ],
)
def test_the_verdict_on_skip_connections_follows_the_losses(
    deep: list[float | None], outcome: str
) -> None:
    results = made_up(build("residual", "quick", 257), {"12 blocks, without": deep})
    assert outcomes(results, "At 12 blocks the loss") == outcome
    # All gradients are equal in these runs, so that the whole claim cannot hold.
    assert outcomes(results, "Before training") == results.outcome == "does not hold"


# ---- norm


def norm_losses(limit: Mapping[str, float]) -> dict[str, list[float | None]]:
    """Runs that learn up to a learning rate, for each place of the norms."""
    losses: dict[str, list[float | None]] = {}
    for variant in build("norm", "quick", 257).variants:
        rate, group = variant.factors["learning rate"], variant.factors["norms"]
        learns = rate <= limit[variant.factors["position"]]
        failed = [3.25, FREQUENCIES, None if variant.factors["position"] == "none" else 3.4]
        losses[variant.name] = [2.0, 2.01, 1.99] if learns else failed
        if group == "post, no warm-up":
            losses[variant.name] = failed
    return losses


def test_the_largest_rate_that_trains() -> None:
    experiment = build("norm", "quick", 257)
    results = made_up(experiment, norm_losses({"pre": 1.0, "post": 0.004, "none": 0.001}))
    rates = [0.001, 0.004, 0.016, 0.064]
    for runs in results.by_seed().values():
        assert highest_that_trains(runs, rates, ("pre", False)) == 4
        assert highest_that_trains(runs, rates, ("post", True)) == 2
        assert highest_that_trains(runs, rates, ("post", False)) == 0
        assert highest_that_trains(runs, rates, ("none", False)) == 1
        # One that fails below another that trains was too low, not too high.
        slow = runs | {"none, no warm-up, 0.001": runs["post, no warm-up, 0.001"]}
        slow |= {"none, no warm-up, 0.004": runs["pre, no warm-up, 0.004"]}
        assert highest_that_trains(slow, rates, ("none", False)) == 2
    assert results.outcome == "holds"
    table = dict(results.tables()[1].rows)
    assert table["pre, warm-up"] == "0.064 or more, 0.064 or more, 0.064 or more"
    assert table["post, no warm-up"] == "none, none, none"
    assert results.to_dict()["data"]["highest_learning_rate"]["none, warm-up"]["1"] == 0.001


def test_the_claim_on_norms_fails_where_all_train_alike() -> None:
    losses = norm_losses({"pre": 0.016, "post": 0.016, "none": 0.016})
    for rate in ("0.001", "0.004", "0.016"):
        losses[f"post, no warm-up, {rate}"] = [2.0, 2.01, 1.99]
    results = made_up(build("norm", "quick", 257), losses)
    assert outcomes(results, "for post-norm") == "does not hold"
    assert outcomes(results, "for no norms") == "does not hold"
    assert outcomes(results, "warm-up lowers the loss") == "does not hold"


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_where_all_learning_rates_do_or_none_does_the_limits_are_open(limit: float) -> None:
    losses = norm_losses({"pre": limit, "post": limit, "none": limit})
    losses |= {name: losses[name.replace("post", "pre")] for name in losses if "post" in name}
    results = made_up(build("norm", "quick", 257), losses)
    assert outcomes(results, "for post-norm") == outcomes(results, "for no norms") == "undecided"


def test_a_seed_whose_limits_are_open_leaves_the_claim_open() -> None:
    losses = norm_losses({"pre": 1.0, "post": 0.016, "none": 1.0})
    for rate in ("0.001", "0.004", "0.016"):
        losses[f"post, no warm-up, {rate}"] = [2.0, 2.01, 1.99]
    highest = "post, no warm-up, 0.064"
    assert outcomes(made_up(build("norm", "quick", 257), losses), "for post-norm") == "holds"
    # The first seed trains everywhere with either: the others' answer is not chosen by chance.
    results = made_up(build("norm", "quick", 257), losses | {highest: [2.0, 3.4, 3.4]})
    judged = next(one for one in results.judged if "for post-norm" in one.contrast.claim)
    assert judged.verdict.outcome == "undecided"
    assert judged.verdict.why.endswith("; but 1 seed of 3 cannot tell")


# ---- activation


@pytest.mark.parametrize("name", ["gelu", "gelu_erf", "relu", "relu2", "swiglu"])
def test_curves_are_those_of_the_functions(name: str) -> None:
    """The engine's, in fp32, beside the reference in float64."""
    x = np.linspace(-6, 6, 241).astype(np.float32).astype(np.float64)
    curve = activation_curve(name, x)
    # Row by row, since a gated one takes the other half of a row for what its gate lets through.
    rows = np.stack([x, np.ones_like(x)], axis=1) if name == "swiglu" else x[:, None]
    value = reference.forward(name, rows)[:, 0]
    slope = reference.backward(name, np.ones((len(x), 1)), rows)[:, 0]
    assert curve.x == pytest.approx(x)
    assert curve.value == pytest.approx(value, rel=1e-6, abs=1e-6)
    assert curve.derivative == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_the_two_forms_of_gelu_differ_as_is_known() -> None:
    found = form_difference()
    x = np.linspace(-8, 8, 1601)
    tanh = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    exact = 0.5 * x * (1 + np.array([math.erf(one / math.sqrt(2)) for one in x]))
    most = np.abs(tanh - exact).max()
    assert found["largest_difference"] == pytest.approx(most, abs=2e-6)
    assert abs(found["at"]) == pytest.approx(abs(x[np.abs(tanh - exact).argmax()]), abs=0.05)
    assert 0 < found["largest_difference_of_derivatives"] < 2e-3


def test_activations_are_compared_at_equal_parameters() -> None:
    for vocab_size in (65, 257, 8000):
        sizes = [
            num_parameters(one.model) for one in build("activation", "quick", vocab_size).variants
        ]
        assert max(sizes) / min(sizes) < 1.01


# ---- mlp-ratio


@pytest.mark.parametrize("vocab_size", [65, 257, 8000])
def test_ratios_are_compared_at_equal_parameters_and_at_equal_width(vocab_size: int) -> None:
    variants = build("mlp-ratio", "quick", vocab_size).variants
    by_kind = {
        kind: [one for one in variants if one.factors["equal"] == kind]
        for kind in ("parameters", "width")
    }
    sizes = [num_parameters(one.model) for one in by_kind["parameters"]]
    assert max(sizes) / min(sizes) < 1.04
    assert {one.model.n_embd for one in by_kind["width"]} == {64}
    for one in variants:
        assert one.model.mlp_dim == one.factors["ratio"] * one.model.n_embd


# ---- scaling


def lawful(law: tuple[float, float, float], off: float = 0.0) -> dict[str, list[float | None]]:
    """Losses by a law for every variant; that of the largest is off by so much."""
    variants = build("scaling", "quick", 257).variants
    losses: dict[str, list[float | None]] = {}
    for variant in variants:
        loss = predict(law, variant.factors["parameters in blocks"], variant.factors["tokens"])
        loss += off if variant is variants[-1] else 0.0
        losses[variant.name] = [loss, loss * 1.002, loss * 0.998, loss]
    return losses


LAW = (2.4, 0.05, 0.08)


def test_a_law_is_found_again() -> None:
    points = [(n, d, predict(LAW, n, d)) for n in (1e4, 2e4, 5e4) for d in (1e5, 3e5)]
    assert predict(LAW, 1e4, 1e5) == pytest.approx(math.exp(2.4) * 1e4**-0.05 * 1e5**-0.08)
    assert fit(points) == pytest.approx(LAW)


@pytest.mark.parametrize(("off", "outcome"), [(0.0, "holds"), (0.2, "does not hold")])
def test_the_next_size_is_as_told_or_not(off: float, outcome: str) -> None:
    results = made_up(build("scaling", "quick", 257), lawful(LAW, off))
    assert outcomes(results, "tells the loss of the next size") == outcome
    assert outcomes(results, "the loss falls by") == "holds"
    assert results.to_dict()["data"]["laws"]["0"]["beta"] == pytest.approx(0.08)
    rows = {row[0]: row[1:] for row in results.tables()[1].rows}
    assert rows["alpha, exponent of parameters"][0] == "0.0500"
    expected = predict(LAW, *(results.experiment.variants[-1].factors[name] for name in PLACE))
    assert rows["loss of width 64, predicted"][0] == f"{expected:.4f}"


PLACE = ("parameters in blocks", "tokens")


def test_a_law_of_no_slope_is_told_as_none() -> None:
    results = made_up(build("scaling", "quick", 257), lawful((1.0, 0.0, 0.0)))
    assert outcomes(results, "the loss falls by") == "does not hold"


# ---- depth


def test_the_loss_without_a_block_is_that_of_a_model_that_has_it_not() -> None:
    sizes = {"block_size": 8, "n_head": 2, "n_embd": 8}
    whole = small_model(seed=3, n_layer=3, init_std=0.5, **sizes)
    found = measure(whole, small_data())["without"]
    windows = EvaluationWindows(small_data().validation, 8, 8, 96)
    weights = whole.read()
    for removed in range(3):
        left = [block for block in range(3) if block != removed]
        short = small_model(n_layer=2, **sizes)
        kept = {name: values for name, values in weights.items() if not name.startswith("h.")}
        for place, block in enumerate(left):
            for name, values in weights.items():
                if name.startswith(f"h.{block}."):
                    kept[name.replace(f"h.{block}.", f"h.{place}.", 1)] = values
        short.write(kept)
        rise = windows.mean_loss(short.forward) - windows.mean_loss(whole.forward)
        assert found[removed] == pytest.approx(rise, abs=2e-5) and abs(rise) > 1e-3
    # The model is as it was.
    assert all(np.array_equal(values, weights[name]) for name, values in whole.read().items())


def test_a_probe_tells_what_least_squares_tell() -> None:
    random = np.random.default_rng(5)
    y = random.integers(0, 5, 300).astype(np.int32)
    x = np.eye(5)[y] @ random.normal(size=(5, 6)) + 0.9 * random.normal(size=(300, 6))
    ones = np.column_stack([x, np.ones(300)])
    weights = np.linalg.lstsq(ones[:200], np.eye(5)[y[:200]], rcond=None)[0]
    expected = np.mean((ones[200:] @ weights).argmax(axis=1) == y[200:])
    assert probe(x[:200], y[:200], x[200:], y[200:], 5) == pytest.approx(expected, abs=0.011)
    assert 0.5 < expected < 0.99


def test_before_the_first_block_the_current_token_is_what_a_probe_can_tell() -> None:
    model = small_model(n_layer=2, block_size=16, n_embd=32, n_head=2)
    found = measure(model, small_data(train_share=0.3))
    assert len(found["current"]) == 3 and found["current"][0] > 0.9 > found["previous"][0]


@pytest.mark.parametrize(
    ("costs", "outcome"), [((0.5, 0.1, 0.2), "holds"), ((0.5, 0.001, 0.2), "does not hold")]
)
def test_a_block_that_is_not_needed_is_told(costs: tuple[float, ...], outcome: str) -> None:
    results = made_up(build("depth", "quick", 257), {})
    shares = {"previous": (0.3,) * 3, "current": (0.9, 0.9, 0.5), "next": (0.2, 0.3, 0.5)}
    runs = [dataclasses.replace(run, after={"without": costs, **shares}) for run in results.runs]
    results = dataclasses.replace(results, runs=tuple(runs))
    assert outcomes(results, "Each block is needed") == results.outcome == outcome
    assert outcomes(results, "next token more often") == "holds"


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_seed_without_a_finite_loss_does_not_tell(broken: float) -> None:
    """A model without a block may give no loss; the others' numbers are judged all the same."""
    results = made_up(build("depth", "quick", 257), {})
    costs = (0.5, 0.1, *(0.2,) * 6)
    fine = {"without": costs, **{name: (0.3,) * 9 for name in ("previous", "current", "next")}}
    bad = fine | {"without": (*costs[:7], broken)}
    runs = [dataclasses.replace(run, after=bad if run.seed else fine) for run in results.runs]
    results = dataclasses.replace(results, runs=tuple(runs))
    needed = next(one for one in results.judged if "Each block is needed" in one.contrast.claim)
    assert needed.effect is not None and needed.effect.values == (0.1,)
    assert outcomes(results, "the current token less often") == "does not hold"
    assert [row[1] for row in results.tables()[1].rows][1:4] == ["0.500", "0.100", "0.200"]
    json.dumps(results.to_dict(), allow_nan=False)


# ---- all of them


@needs("matplotlib", extra="plots")
@pytest.mark.parametrize("name", ["norm", "activation", "mlp-ratio", "depth", "scaling"])
def test_tables_and_pictures_of_a_tiny_run(name: str) -> None:
    experiment = build(name, "quick", VOCAB_SIZE, steps=2)
    if name not in ("activation", "scaling"):
        experiment = shrunk(experiment)
    kept = dataclasses.replace(experiment, variants=experiment.variants[:7])
    results = results_of(kept, (0,))
    assert len(results.table().rows) == len(kept.variants)
    for table in results.tables():
        assert all(len(row) == len(table.header) for row in table.rows)
    for drawing in kept.drawings:
        svg = drawing.draw(results).svg()
        assert svg.count("<text") > 6 and "$" not in svg, drawing.name
