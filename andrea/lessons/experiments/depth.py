"""What each block of a trained model is for: what is lost without it, what its stream holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from andrea.data import EvaluationWindows
from andrea.lessons.pictures import GREY, PALETTE, Picture
from andrea.lessons.trace_forward import ForwardPass
from andrea.words import decimal

from .drawings import drawing, legend, line, loss_curves
from .experiment import Contrast, Drawing, Experiment, OfSeed, Table, Variant
from .results import Results
from .settings import is_quick, small_model, training
from .statistics import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from andrea.data import PreparedData
    from andrea.model import GPT

_DEPTH = {True: 8, False: 12}
_STEPS = {True: 600, False: 4000}
_NATS, _POINTS = 0.02, 0.05
# What the trained model is measured with: sequences to learn a probe from, and to try it on.
_WINDOWS, _LEARNED = 96, 64
_BATCH = 8
# Of the probes: a millionth of the mean square of the stream, so that all equations can be solved.
_RIDGE = 1e-6
_PROJECTIONS = ("attn.c_proj.weight", "attn.c_proj.bias", "mlp.c_proj.weight", "mlp.c_proj.bias")
_PROBES = ("previous", "current", "next")


def depth(mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """One model: its loss without each of its blocks, and linear probes of its stream."""
    quick = is_quick(mode)
    blocks = _DEPTH[quick]
    model = small_model(vocab_size, n_layer=blocks)
    variant = Variant(
        f"{blocks} blocks", model, training(steps or _STEPS[quick]), {"blocks": blocks}
    )
    name = variant.name
    return Experiment(
        name="depth",
        title=f"What {blocks} blocks are for",
        claim=(
            "Every block adds something: early ones see to the text as it stands, late ones to "
            "what comes next."
        ),
        variants=(variant,),
        contrasts=(
            Contrast(
                f"Each block is needed: without it, and nothing else changed, the loss is higher "
                f"by at least {_NATS} nats",
                _of(name, "without", min),
                _NATS,
            ),
            Contrast(
                f"The first block is needed more than the others in the mean, by at least {_NATS} "
                "nats",
                _of(name, "without", lambda costs: costs[0] - float(np.mean(costs[1:]))),
                _NATS,
            ),
            Contrast(
                f"After the last block, a linear probe tells the current token less often than "
                f"after the first: by at least {100 * _POINTS:.0f} of 100",
                _of(name, "current", lambda shares: shares[1] - shares[-1]),
                _POINTS,
                unit="",
            ),
            Contrast(
                f"After the last block, a linear probe tells the next token more often than after "
                f"the first: by at least {100 * _POINTS:.0f} of 100",
                _of(name, "next", lambda shares: shares[-1] - shares[1]),
                _POINTS,
                unit="",
            ),
        ),
        seeds=5,
        mode=mode,
        drawings=(
            Drawing("without", "What the loss rises by without one of the blocks.", _costs),
            Drawing("probes", "What a linear probe reads from the stream after each block.", _read),
            loss_curves("loss", lambda variant: True),
        ),
        tables=lambda results: (_by_block(results),),
        after=measure,
        notes=(
            "A block is taken out by setting to 0 what its two projections add to the stream; the "
            "others are not trained again.",
            f"A probe is a ridge regression from the stream to the token, learned from {_LEARNED} "
            f"sequences of the validation text and tried on {_WINDOWS - _LEARNED} others: how "
            "often its largest output is the token.",
        ),
    )


def _of(
    variant: str, name: str, number: Callable[[tuple[float, ...]], float]
) -> Callable[[OfSeed], float]:
    def value(runs: OfSeed) -> float:
        numbers = runs[variant].after[name]
        # The least of numbers, one of which is none, would depend on their order.
        if not all(map(math.isfinite, numbers)):
            raise KeyError(name)
        return number(numbers)

    return value


def measure(model: GPT, data: PreparedData) -> dict[str, tuple[float, ...]]:
    """What the loss rises by without each block, (n_layer,), as "without"; and by "previous",
    "current" and "next", how often a probe tells that token, after 0, 1, ... blocks
    (n_layer + 1,)."""
    windows = EvaluationWindows(data.validation, _BATCH, model.config.block_size, _WINDOWS)
    whole = windows.mean_loss(model.forward)
    found = {"without": tuple(_without(model, windows, whole))}
    return {**found, **_probes(model, windows)}


def _without(model: GPT, windows: EvaluationWindows, whole: float) -> list[float]:
    costs = []
    tensors = model.tensors()
    for block in range(model.config.n_layer):
        names = [f"h.{block}.{part}" for part in _PROJECTIONS if f"h.{block}.{part}" in tensors]
        kept = {name: tensors[name].read().copy() for name in names}
        model.write({name: np.zeros_like(values) for name, values in kept.items()})
        costs.append(windows.mean_loss(model.forward) - whole)
        model.write(kept)
    return costs


def _probes(model: GPT, windows: EvaluationWindows) -> dict[str, tuple[float, ...]]:
    """Shares of positions; a text that is too short for two kinds of sequences has none."""
    rows = [
        (inputs, targets)
        for batch in windows.batches()
        for inputs, targets in zip(*batch, strict=True)
        if targets[-1] >= 0  # whole ones
    ]
    learned = len(rows) * _LEARNED // _WINDOWS
    if not 0 < learned < len(rows) or model.config.block_size < 2:
        return {}
    depths = model.config.n_layer + 1
    streams: list[list[NDArray[np.float64]]] = [[] for _ in range(depths)]
    for inputs, _ in rows:
        forward = ForwardPass(model, inputs)
        for place in range(depths):
            # The first token has no previous one.
            streams[place].append(forward.stream(place)[1:])
        del forward
    tokens = {
        "previous": [inputs[:-1] for inputs, _ in rows],
        "current": [inputs[1:] for inputs, _ in rows],
        "next": [targets[1:] for _, targets in rows],
    }
    return {
        name: tuple(_accuracy(stream, tokens[name], learned, model) for stream in streams)
        for name in _PROBES
    }


def _accuracy(
    stream: list[NDArray[np.float64]], tokens: list[NDArray[np.int32]], learned: int, model: GPT
) -> float:
    x, y = np.concatenate(stream), np.concatenate(tokens)
    cut = sum(map(len, tokens[:learned]))
    return probe(x[:cut], y[:cut], x[cut:], y[cut:], model.config.vocab_size)


def probe(
    x: NDArray[np.float64],
    y: NDArray[np.int32],
    try_x: NDArray[np.float64],
    try_y: NDArray[np.int32],
    vocab_size: int,
) -> float:
    """How often a linear map with a bias, fitted to tell tokens y (N,) from rows x (N, C) by least
    squares, tells those of other rows: a share."""
    x, try_x = _with_one(x), _with_one(try_x)
    # Sums of rows by token are the product with one-hot targets.
    sums = np.zeros((vocab_size, x.shape[1]))
    np.add.at(sums, y, x)
    squares = x.T @ x
    ridge = _RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares))
    weights = np.linalg.solve(squares + ridge, sums.T)
    return float(np.mean((try_x @ weights).argmax(axis=1) == try_y))


def _with_one(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """A column of ones, for the probe's bias."""
    return np.column_stack([rows, np.ones(len(rows))])


def _columns(results: Results, name: str) -> list[list[float]]:
    """Numbers by place: those of all seeds."""
    rows = [run.after[name] for run in results.runs if name in run.after]
    rows = [row for row in rows if all(map(math.isfinite, row))]
    return [list(column) for column in zip(*rows, strict=True)]


def _by_block(results: Results) -> Table:
    costs = _columns(results, "without")
    probes = {name: _columns(results, name) for name in _PROBES}
    depths = results.experiment.variants[0].model.n_layer + 1
    rows = []
    for place in range(depths):
        cost = "" if place == 0 or not costs else _mean(costs[place - 1], 3)
        shares = [_mean(probes[name][place], 3) if probes[name] else "" for name in _PROBES]
        rows.append((str(place) if place else "before all", cost, *shares))
    return Table(
        "Block by block",
        ("block", "loss without it, more", *(f"probe: {name} token" for name in _PROBES)),
        tuple(rows),
    )


def _mean(values: list[float], digits: int) -> str:
    found = summary(values)
    spread = "" if found.sd is None else f" ± {found.sd:.{digits}f}"
    return f"{decimal(found.mean, digits)}{spread}"


def _costs(results: Results) -> Picture:
    def on(figure: Figure) -> None:
        axes = figure.subplots()
        costs = _columns(results, "without")
        if costs:
            blocks = range(1, len(costs) + 1)
            means = [sum(one) / len(one) for one in costs]
            spread = [
                [mean - min(one) for mean, one in zip(means, costs, strict=True)],
                [max(one) - mean for mean, one in zip(means, costs, strict=True)],
            ]
            axes.bar(blocks, means, 0.7, color=PALETTE[0], yerr=spread, ecolor=GREY, capsize=3)
            axes.set_xticks(list(blocks))
        axes.set_xlabel("block that is taken out")
        axes.set_ylabel("rise of the loss (nats per token)")
        axes.grid(axis="y")

    return drawing(on)


def _read(results: Results) -> Picture:
    def on(figure: Figure) -> None:
        axes = figure.subplots()
        for number, name in enumerate(_PROBES):
            shares = _columns(results, name)
            if shares:
                percent = [[100 * value for value in one] for one in shares]
                line(axes, number, range(len(shares)), percent, f"{name} token")
        axes.set_ylim(0, 100)
        axes.set_xlabel("depth (blocks passed)")
        axes.set_ylabel("tokens told rightly (%)")
        axes.grid(axis="y")
        legend(axes)

    return drawing(on)
