"""Loss over size and over the amount of text: a power law, and whether it tells the next size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from andrea.config import ModelConfig
from andrea.lessons.pictures import GREY, PALETTE, Picture
from andrea.planning.sizes import num_parameters
from andrea.words import count

from .drawings import drawing, legend, line, loss_curves
from .experiment import Contrast, Drawing, Experiment, OfSeed, Table, Variant, lower_loss
from .results import Results
from .run import Run
from .settings import is_quick, small_model, training
from .statistics import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTHS = {True: (16, 24, 32, 48), False: (32, 48, 64, 96, 128)}
# The next size, which the law has not seen, and the one after, which nobody has.
_NEXT = {True: 64, False: 192}
_AFTER = {True: 96, False: 256}
_STEPS = {True: (150, 300, 600), False: (1000, 2000, 4000)}
_DEPTH = {True: 4, False: 6}
# Two heads divide all widths.
_HEADS = 2
_NATS = 0.05


def scaling(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """Models of several widths, each trained for several lengths, and a larger one for a check."""
    quick = is_quick(mode)
    lengths = _STEPS[quick] if steps is None else (steps, 2 * steps, 4 * steps)
    widths, larger = _WIDTHS[quick], _NEXT[quick]
    sizes = {width: _model(vocab_size, width, quick) for width in (*widths, larger)}
    variants = tuple(
        _variant(sizes[width], length)
        for width in (*widths, larger)
        for length in (lengths if width != larger else lengths[-1:])
    )
    known = variants[:-1]
    smallest, largest = _name(sizes[widths[0]], lengths[-1]), _name(sizes[widths[-1]], lengths[-1])
    shortest, longest = (_name(sizes[widths[-1]], length) for length in (lengths[0], lengths[-1]))
    beyond = _model(vocab_size, _AFTER[quick], quick)
    return Experiment(
        name="scaling",
        title="Loss over size and over the amount of training",
        claim=(
            "More parameters and more training lower the loss by a power law: what small models "
            "give, on a logarithmic scale a straight line, tells what the next size will give."
        ),
        variants=variants,
        contrasts=(
            Contrast(
                f"From {count(size_of(sizes[widths[0]]))} to {count(size_of(sizes[widths[-1]]))} "
                f"parameters in blocks, the loss falls by at least {_NATS} nats",
                lower_loss(largest, smallest),
                _NATS,
            ),
            Contrast(
                f"From {lengths[0]:,} to {lengths[-1]:,} steps, the loss of the largest of them "
                f"falls by at least {_NATS} nats",
                lower_loss(longest, shortest),
                _NATS,
            ),
            Contrast(
                f"The law that the smaller ones give tells the loss of the next size, "
                f"{count(size_of(sizes[larger]))} parameters in blocks, to within {_NATS} nats",
                _miss(known, variants[-1]),
                _NATS,
                alike=True,
            ),
        ),
        seeds=4 if quick else 5,
        mode=mode,
        gradient_steps=(0.0, 1.0),
        drawings=(
            _over_size(known, variants[-1], lengths),
            loss_curves("loss", lambda one: one.factors["steps"] == lengths[-1]),
        ),
        tables=lambda results: (_laws(results, known, variants[-1], beyond),),
        data=lambda results: {"laws": _fits(results, known)},
        notes=(
            "The law is ln loss = a - alpha ln(parameters in blocks) - beta ln(tokens), fitted by "
            "least squares to all but the largest model, for each seed alone. It has no loss that "
            "remains, so it holds for a range of sizes, not for all.",
            "The learning rate falls with the square root of the width, and every length of "
            "training has a schedule of its own.",
        ),
    )


def _model(vocab_size: int, width: int, quick: bool) -> ModelConfig:
    return small_model(vocab_size, n_layer=_DEPTH[quick], n_embd=width, n_head=_HEADS)


def _variant(model: ModelConfig, steps: int) -> Variant:
    rate = round(2e-3 * math.sqrt(64 / model.n_embd), 6)
    train = training(steps, learning_rate=rate)
    factors = {
        "width": model.n_embd,
        "parameters in blocks": size_of(model),
        "steps": steps,
        "tokens": steps * train.tokens_per_step(model.block_size),
    }
    return Variant(_name(model, steps), model, train, factors)


def _name(model: ModelConfig, steps: int) -> str:
    return f"width {model.n_embd}, {steps:,} steps"


def size_of(model: ModelConfig) -> int:
    """Parameters without the tables of embeddings (Kaplan et al. 2020 count so)."""
    return num_parameters(model) - (model.vocab_size + model.block_size) * model.n_embd


def fit(points: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    """a, alpha and beta of ln loss = a - alpha ln N - beta ln D, from (N, D, loss): least squares.

    N: parameters; D: tokens.
    """
    table = np.log(np.array(points, dtype=np.float64))
    inputs = np.column_stack([np.ones(len(table)), -table[:, 0], -table[:, 1]])
    a, alpha, beta = np.linalg.lstsq(inputs, table[:, 2], rcond=None)[0]
    return float(a), float(alpha), float(beta)


def predict(law: tuple[float, float, float], parameters: float, tokens: float) -> float:
    """The loss by the law."""
    a, alpha, beta = law
    return math.exp(a - alpha * math.log(parameters) - beta * math.log(tokens))


def _place(variant: Variant) -> tuple[float, float]:
    return variant.factors["parameters in blocks"], variant.factors["tokens"]


def _law(runs: Mapping[str, Run], known: tuple[Variant, ...]) -> tuple[float, float, float]:
    """KeyError where a run is not done."""
    return fit([(*_place(one), runs[one.name].score) for one in known])


def _miss(known: tuple[Variant, ...], larger: Variant) -> Callable[[OfSeed], float]:
    return lambda runs: predict(_law(runs, known), *_place(larger)) - runs[larger.name].score


def _fits(results: Results, known: tuple[Variant, ...]) -> dict[str, dict[str, float]]:
    found = {}
    for seed, runs in results.by_seed().items():
        try:
            law = _law(runs, known)
        except KeyError:
            continue
        found[str(seed)] = dict(zip(("a", "alpha", "beta"), law, strict=True))
    return found


def _laws(
    results: Results, known: tuple[Variant, ...], larger: Variant, beyond: ModelConfig
) -> Table:
    """What the law says, over the seeds: mean and standard deviation."""
    rows: list[tuple[str, ...]] = []

    def add(name: str, values: list[float]) -> None:
        if values:
            found = summary(values)
            spread = "" if found.sd is None else f"{found.sd:.4f}"
            rows.append((name, f"{found.mean:.4f}", spread))

    fits = _fits(results, known).values()
    add("alpha, exponent of parameters", [one["alpha"] for one in fits])
    add("beta, exponent of tokens", [one["beta"] for one in fits])
    add(
        f"loss of width {larger.model.n_embd}, predicted",
        [predict((one["a"], one["alpha"], one["beta"]), *_place(larger)) for one in fits],
    )
    add(f"loss of width {larger.model.n_embd}, measured", [one.score for one in results.of(larger)])
    tokens = larger.factors["tokens"]
    everything = _fits(results, (*known, larger)).values()
    add(
        f"loss of width {beyond.n_embd}, predicted from all",
        [
            predict((one["a"], one["alpha"], one["beta"]), size_of(beyond), tokens)
            for one in everything
        ],
    )
    return Table("The power law", ("", "mean", "± sd"), tuple(rows))


def _over_size(known: tuple[Variant, ...], larger: Variant, lengths: tuple[int, ...]) -> Drawing:
    def paint(results: Results) -> Picture:
        def on(figure: Figure) -> None:
            axes = figure.subplots()
            fits = list(_fits(results, known).values())
            mean = [sum(one[name] for one in fits) for name in ("a", "alpha", "beta")]
            for number, steps in enumerate(lengths):
                chosen = [one for one in known if one.factors["steps"] == steps]
                chosen = [one for one in chosen if results.of(one)]
                if not chosen:
                    continue
                x = [_place(one)[0] for one in chosen]
                scores = [[run.score for run in results.of(one)] for one in chosen]
                line(axes, number, x, scores, f"{steps:,} steps")
                if fits:
                    law = (mean[0] / len(fits), mean[1] / len(fits), mean[2] / len(fits))
                    ends = [x[0], _place(larger)[0]]
                    told = [predict(law, end, _place(chosen[0])[1]) for end in ends]
                    axes.plot(ends, told, color=GREY, linewidth=1)
            if results.of(larger):
                scores = [[run.score for run in results.of(larger)]]
                place, colour = _place(larger)[0], PALETTE[(len(lengths) - 1) % len(PALETTE)]
                label = f"{lengths[-1]:,} steps, not fitted"
                axes.plot(place, np.mean(scores), "D", color=colour, label=label)
            axes.set_xscale("log")
            axes.set_yscale("log")
            ticks = sorted({_place(one)[0] for one in (*known, larger)})
            axes.set_xticks(ticks, [count(tick) for tick in ticks])
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
            axes.yaxis.set_minor_formatter(lambda value, _: f"{value:.2g}")
            axes.xaxis.minorticks_off()
            axes.set_xlabel("parameters in blocks")
            axes.set_ylabel("validation loss (nats per token)")
            axes.grid(axis="y", which="both")
            legend(axes)

        return drawing(on)

    return Drawing("loss-over-size", "Loss after training, and the law (grey lines).", paint)
