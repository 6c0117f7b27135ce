"""Every claim of every experiment, judged on runs whose effect is known: its sign, size, verdict.

The runs are made from the claims' words: `Case.runs` says what has to be measured if the effect is
so large, and knows nothing of how the experiment computes it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from andrea.lessons.experiments import NAMES, Contrast, Experiment, Results, Run, Variant, build
from andrea.lessons.experiments.custom import custom
from andrea.lessons.experiments.statistics import FAILS, HOLDS, UNDECIDED
from small_runs import small_data

VOCAB_SIZE = 257
FREQUENCIES = 3.3
Changes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """A claim, by words that it alone has; and what its runs measure where the effect is so large:
    by the variant's name what differs from runs that are all alike. counted: in whole numbers."""

    words: str
    runs: Callable[[Experiment, float], Changes]
    counted: bool = False


def loss(value: float) -> dict[str, Any]:
    return {"validation": ((1, value),)}


def lower(better: str, than: str) -> Callable[[Experiment, float], Changes]:
    """The loss of one variant is below that of another."""
    return lambda _, effect: {better: loss(2.0 - effect / 2), than: loss(2.0 + effect / 2)}


# ---- residual and residual-init: of the deepest and the shallowest model


def depths(experiment: Experiment) -> tuple[int, int]:
    all_depths = [variant.model.n_layer for variant in experiment.variants]
    return min(all_depths), max(all_depths)


def deepest(
    word: str, changes: Callable[[Variant, float], Mapping[str, Any]]
) -> Callable[[Experiment, float], Changes]:
    def runs(experiment: Experiment, effect: float) -> Changes:
        name = f"{depths(experiment)[1]} blocks, {word}"
        return {name: changes(experiment.variant(name), effect)}

    return runs


def first_gradient(at_end: bool) -> Callable[[Variant, float], Mapping[str, Any]]:
    """That of the first block is so many powers of ten above that of the others."""

    def changes(variant: Variant, effect: float) -> Mapping[str, Any]:
        rest = (1.0,) * (variant.model.n_layer - 1)
        usual, other = (1.0, *rest), (10**effect, *rest)
        return {"gradients": {0: usual, variant.steps - 1: other} if at_end else {0: other}}

    return changes


def gain_of_the_deepest(experiment: Experiment, effect: float) -> Changes:
    few, many = depths(experiment)
    without = {f"{few} blocks, without": 2.25, f"{many} blocks, without": 2.25 + effect}
    return {name: loss(value) for name, value in without.items()}


def larger_stream(variant: Variant, effect: float) -> Mapping[str, Any]:
    """Behind its blocks, by so many hundredths: what it is of all others."""
    return {"stream": (0.5,) * variant.model.n_layer + (0.5 * (1 + effect / 100),)}


# ---- norm: of all learning rates


def with_norms(
    group: str, changes: Callable[[int, Variant], Mapping[str, Any]], experiment: Experiment
) -> Changes:
    """What differs in the runs of a group: by the number of the learning rate, from 1."""
    chosen = [one for one in experiment.variants if one.factors["norms"] == group]
    chosen.sort(key=lambda one: float(one.factors["learning rate"]))
    return {one.name: changes(number, one) for number, one in enumerate(chosen, 1)}


def limit(group: str, highest: float, experiment: Experiment) -> Changes:
    """Beyond the highest learning rate that trains, a run learns token frequencies at most."""
    return with_norms(
        group, lambda number, _: loss(2.0 if number <= highest else FREQUENCIES), experiment
    )


def more_rates_than(other: str) -> Callable[[Experiment, float], Changes]:
    def runs(experiment: Experiment, effect: float) -> Changes:
        return {
            **limit("pre, no warm-up", 2 + effect, experiment),
            **limit(f"{other}, no warm-up", 2, experiment),
        }

    return runs


def warmed(experiment: Experiment, effect: float) -> Changes:
    """Without warm-up post-norm is worse by 0.2 and the effect, pre-norm by 0.2."""
    losses = {"pre": 2.2, "post": 2.2 + effect}
    found: dict[str, Mapping[str, Any]] = {}
    for position, value in losses.items():
        sides = {number: loss(value + (0.1 if number % 2 else -0.1)) for number in range(1, 9)}
        group = f"{position}, no warm-up"
        found |= with_norms(group, lambda number, _, sides=sides: sides[number], experiment)
    return found


def growing_gradient(experiment: Experiment, effect: float) -> Changes:
    return with_norms(
        "post, warm-up",
        lambda _, one: {"gradients": {0: (1.0,) * (one.model.n_layer - 1) + (10**effect,)}},
        experiment,
    )


# ---- depth: of the only variant


def after(
    name: str, numbers: Callable[[int, float], list[float]]
) -> Callable[[Experiment, float], Changes]:
    """Numbers by the block, from the first on; of probes by the depth, from before the first."""

    def runs(experiment: Experiment, effect: float) -> Changes:
        (variant,) = experiment.variants
        found = {name: tuple(numbers(variant.model.n_layer, effect))}
        return {variant.name: {"after": found}}

    return runs


# ---- scaling


def by_size(experiment: Experiment, width: int, steps: int) -> str:
    """Counted from the smallest width and the fewest steps; -1 is the most that is fitted."""
    fitted = experiment.variants[:-1]
    widths = sorted({one.factors["width"] for one in fitted})
    lengths = sorted({one.factors["steps"] for one in fitted})
    return next(
        one.name
        for one in fitted
        if (one.factors["width"], one.factors["steps"]) == (widths[width], lengths[steps])
    )


def beside_the_law(experiment: Experiment, effect: float) -> Changes:
    """The largest model's loss is below what the power law of the others tells."""
    found = {}
    for one in experiment.variants:
        size, tokens = one.factors["parameters in blocks"], one.factors["tokens"]
        found[one.name] = loss(5 * size**-0.04 * tokens**-0.03)
    largest = experiment.variants[-1].name
    told: float = found[largest]["validation"][0][1]
    return {**found, largest: loss(told - effect)}


BASE = "ratio 4, equal parameters"
CASES: dict[str, list[Case]] = {
    "residual": [
        Case("Before training", deepest("with", first_gradient(at_end=False))),
        Case("at the end of training", deepest("with", first_gradient(at_end=True))),
        Case("the loss with skip", deepest("without", lambda _, effect: loss(2.0 + effect))),
        Case("gain grows", gain_of_the_deepest),
        Case("no worse than", deepest("with", lambda _, effect: loss(2.0 - effect))),
    ],
    "residual-init": [
        Case("unscaled blocks make the stream grow", deepest("unscaled", larger_stream)),
        Case("scaled blocks as over", deepest("scaled", larger_stream)),
        Case("the loss is lower", deepest("scaled", lambda _, effect: loss(2.0 - effect))),
    ],
    "norm": [
        Case("for pre-norm than for post-norm", more_rates_than("post"), counted=True),
        Case("for pre-norm than for no norms", more_rates_than("none"), counted=True),
        Case("warm-up lowers the loss of post-norm", warmed),
        Case("gradient grows towards the last block", growing_gradient),
    ],
    "activation": [
        Case("with gelu is lower than with relu ", lower("gelu", "relu")),
        Case("gelu (tanh form) and gelu_erf differ", lower("gelu", "gelu_erf")),
        Case("with swiglu is lower than with gelu ", lower("swiglu", "gelu")),
        Case("with relu2 is lower than with relu ", lower("relu2", "relu")),
    ],
    "mlp-ratio": [
        *(
            Case(f"no worse than {ratio} ", lower(BASE, f"ratio {ratio}, equal parameters"))
            for ratio in (1, 2, 8)
        ),
        Case("ratio 4 has a loss lower than 1 ", lower(BASE, "ratio 1, equal width")),
        Case("ratio 8 has a loss lower than 4 ", lower("ratio 8, equal width", BASE)),
    ],
    "depth": [
        Case("Each block is needed", after("without", lambda n, e: [e + 1] * (n - 1) + [e])),
        Case(
            "first block is needed more", after("without", lambda n, e: [e - 3] + [-3.0] * (n - 1))
        ),
        Case("tells the current token", after("current", lambda n, e: [9, e] + [0.0] * (n - 1))),
        Case("tells the next token", after("next", lambda n, e: [9, 0.0] + [e] * (n - 1))),
    ],
    "scaling": [
        Case(
            "parameters in blocks, the loss falls",
            lambda one, effect: {by_size(one, 0, -1): loss(2.0 + effect)},
        ),
        Case(
            "the loss of the largest of them falls",
            lambda one, effect: {by_size(one, -1, 0): loss(2.0 + effect)},
        ),
        Case("tells the loss of the next size", beside_the_law),
    ],
    "custom": [Case("n_layer 4: a loss lower", lower("n_layer 4", "n_layer 2"))],
}


@cache
def experiment_of(name: str, mode: str = "quick") -> Experiment:
    if name == "custom":
        return custom(mode, VOCAB_SIZE, {"n_layer": (2, 4)})
    return build(name, mode, VOCAB_SIZE)


def contrast_of(experiment: Experiment, case: Case) -> Contrast:
    (found,) = (one for one in experiment.contrasts if case.words in one.claim)
    return found


def seed_of(experiment: Experiment, seed: int, changes: Changes) -> list[Run]:
    """The runs of a seed: all alike, but for the changes."""
    assert set(changes) <= {variant.name for variant in experiment.variants}
    runs = []
    for variant in experiment.variants:
        blocks = variant.model.n_layer
        usual = Run(
            variant=variant.name,
            seed=seed,
            losses=(3.0,),
            norms=(1.0,),
            validation=((1, 2.0),),
            gradients={0: (1.0,) * blocks, variant.steps - 1: (1.0,) * blocks},
            stream=(0.5,) * (blocks + 1),
            diverged=None,
            guess=math.log(VOCAB_SIZE),
            frequencies=FREQUENCIES,
        )
        runs.append(dataclasses.replace(usual, **changes.get(variant.name, {})))
    return runs


ALL = [
    pytest.param(name, case, id=f"{name}: {case.words.strip()}")
    for name, cases in CASES.items()
    for case in cases
]


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_every_claim_has_a_case(mode: str) -> None:
    assert set(CASES) == set(NAMES)
    for name, cases in CASES.items():
        experiment = experiment_of(name, mode)
        found = [contrast_of(experiment, case).claim for case in cases]
        assert sorted(found) == sorted(one.claim for one in experiment.contrasts)


def in_words(bound: float, unit: str) -> str:
    """How a claim names its bound."""
    return {
        " nats": f"{abs(bound):g} nats",
        "%": f"{bound:g}%",
        " powers of ten": f"at least {10**bound:.3g} times",
        " steps of them": "at least one higher",
        "": f"{100 * bound:g} of 100",  # a share of tokens
    }[unit]


@pytest.mark.parametrize(("name", "case"), ALL)
def test_a_claim_says_how_it_is_judged(name: str, case: Case) -> None:
    """Its bound, and whether it is of an effect, of no harm or of no difference."""
    contrast = contrast_of(experiment_of(name), case)
    assert in_words(contrast.bound, contrast.unit) in contrast.claim
    no_harm = "no worse" in contrast.claim and "by more than" in contrast.claim
    no_difference = "at most" in contrast.claim or "to within" in contrast.claim
    assert (no_harm, no_difference) == (contrast.bound < 0, contrast.alike)
    assert no_harm or no_difference or "at least" in contrast.claim


@pytest.mark.parametrize("mode", ["quick", "full"])
@pytest.mark.parametrize(("name", "case"), ALL)
def test_an_effect_has_the_claims_sign_and_size(name: str, case: Case, mode: str) -> None:
    experiment = experiment_of(name, mode)
    contrast = contrast_of(experiment, case)
    for effect in (2.0, 1.0, 0.0, -1.0) if case.counted else (0.3, 0.04, 0.0, -0.2):
        runs = seed_of(experiment, 0, case.runs(experiment, effect))
        value = contrast.value({run.variant: run for run in runs})
        assert value == pytest.approx(effect, abs=1e-9), f"{contrast.claim}: {effect}"


def verdicts(bound: float, alike: bool, counted: bool) -> list[tuple[str, list[float]]]:
    """Outcomes, and effects of three seeds that have to lead to them."""
    if counted:
        return [
            (HOLDS, [bound] * 3),
            (HOLDS, [bound + 1] * 3),
            (FAILS, [bound - 1] * 3),
            (FAILS, [-bound] * 3),
            (UNDECIDED, [bound - 1, bound, bound + 1]),
            (UNDECIDED, [bound, bound, bound - 1]),
            (UNDECIDED, [bound + 1]),  # of one seed alone
        ]
    size = abs(bound)

    def around(centre: float, spread: float = 0.1) -> list[float]:
        # The interval of three seeds is 2.48 times their spread to each side.
        return [centre - spread * size, centre, centre + spread * size]

    if alike:
        return [
            *((HOLDS, around(centre * size)) for centre in (0.0, 0.7, -0.7)),
            *((FAILS, around(centre * size)) for centre in (1.3, -1.3, 8.0, -8.0)),
            *((UNDECIDED, around(centre * size)) for centre in (0.9, -0.9, 1.1, -1.1)),
            (UNDECIDED, around(0.0, 0.5)),
            (UNDECIDED, [0.0]),
        ]
    return [
        *((HOLDS, around(bound + above * size)) for above in (0.3, 5.0)),
        *((FAILS, around(bound - below * size)) for below in (0.3, 2.0, 5.0)),
        *((UNDECIDED, around(bound + off * size)) for off in (0.2, 0.0, -0.2)),
        (UNDECIDED, around(bound + 2 * size, 1.0)),
        (UNDECIDED, [bound + 9 * size]),
    ]


@pytest.mark.parametrize(("name", "case"), ALL)
def test_the_verdict_is_that_of_the_effects(name: str, case: Case) -> None:
    """Holds, fails and stays open where it has to, from the runs to the outcome."""
    experiment = experiment_of(name)
    contrast = contrast_of(experiment, case)
    alone = dataclasses.replace(
        experiment, contrasts=(dataclasses.replace(contrast, decides=True),)
    )
    for outcome, effects in verdicts(contrast.bound, contrast.alike, case.counted):
        runs = [
            run
            for seed, effect in enumerate(effects)
            for run in seed_of(experiment, seed, case.runs(experiment, effect))
        ]
        results = Results(alone, tuple(runs), tuple(range(len(effects))), small_data(), "none")
        (judged,) = results.judged
        assert judged.verdict.outcome == results.outcome == outcome, (effects, judged.verdict.why)
        assert judged.effect is not None
        assert judged.effect.values == pytest.approx(effects, abs=1e-9)
