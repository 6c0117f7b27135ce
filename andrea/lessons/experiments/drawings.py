"""Pictures that several experiments have: losses and gradients of their variants.

Lines are means over seeds, areas reach from the lowest to the highest seed.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from andrea.lessons.pictures import DASHES, GREY, PALETTE, Picture, draw

from .experiment import Drawing, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from .results import Results

Chosen = Callable[[Variant], bool]

# Inches: so that two stand beside each other on a page, and words are legible on a telephone.
WIDTH, HEIGHT = 4.7, 3.1
# Points of a curve's name; inches of its characters, of its line and of each more that it is broken
# into, and of the curve and the gaps beside it.
_SMALL, _CHARACTER, _LINE, _BROKEN, _BESIDE = 9, 0.066, 0.205, 0.146, 0.62
# Gradients below this are nothing to float32; a logarithmic axis needs a number.
_LEAST = 1e-45
_FEW_STEPS = 10
# Over so many powers of ten the axis names whole ones: 0.01, and not 0.0032.
_DECADES = 3.0


def drawing(paint: Callable[[Figure], None]) -> Picture:
    """A picture of the size that a page has room for.

    Raises:
        LibraryError: matplotlib is not installed.
    """
    return draw(paint, width=WIDTH, height=HEIGHT)


def line(
    axes: Axes, number: int, x: Sequence[float], values: Sequence[Sequence[float]], label: str
) -> None:
    """A curve over x: the mean of each point's values, and the area between least and largest."""
    colour = PALETTE[number % len(PALETTE)]
    dashes = DASHES[(number + number // len(PALETTE)) % len(DASHES)]
    means = [math.fsum(point) / len(point) for point in values]
    axes.plot(x, means, color=colour, linestyle=dashes, marker="o", ms=3, label=label)
    low, high = [min(point) for point in values], [max(point) for point in values]
    axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def legend(axes: Axes) -> None:
    """The names of the curves below the axes, where they hide nothing; so the picture grows."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    # A name that is wider than the picture is broken.
    room = WIDTH - _BESIDE
    names = [textwrap.wrap(label, int(room / _CHARACTER)) for label in labels]
    columns = int(
        WIDTH / (_BESIDE + _CHARACTER * max(len(line) for name in names for line in name))
    )
    columns = min(max(columns, 1), len(names))
    figure: Any = axes.figure
    height = _LINE + _BROKEN * (max(map(len, names)) - 1)
    figure.set_size_inches(WIDTH, HEIGHT + height * math.ceil(len(names) / columns))
    style: dict[str, Any] = {"fontsize": _SMALL, "handlelength": 2.6, "ncols": columns}
    figure.legend(handles, map("\n".join, names), loc="outside lower center", **style)


def baseline(axes: Axes, results: Results) -> None:
    """The loss of knowing nothing but each token's frequency."""
    level = results.text.unigram_entropy
    if level is not None:
        label = "token frequencies alone"
        axes.axhline(level, color=GREY, linestyle=DASHES[3], linewidth=1, label=label)


def loss_curves(name: str, where: Chosen, caption: str = "") -> Drawing:
    """Validation losses of some variants while they are trained."""

    def paint(results: Results) -> Picture:
        def on(figure: Figure) -> None:
            axes = figure.subplots()
            for number, variant in enumerate(filter(where, results.experiment.variants)):
                points: dict[int, list[float]] = {}
                for run in results.of(variant):
                    for step, loss in run.validation:
                        points.setdefault(step, []).append(loss)
                if points:
                    steps = sorted(points)
                    line(axes, number, steps, [points[step] for step in steps], variant.name)
            baseline(axes, results)
            if max(axes.get_xlim()) < _FEW_STEPS:
                _whole_numbers(axes.xaxis)  # no half steps
            axes.set_xlabel("steps of training")
            axes.set_ylabel("validation loss (nats per token)")
            axes.grid(axis="y")
            legend(axes)

        return drawing(on)

    return Drawing(name, caption or "Validation loss during training.", paint)


def loss_over(
    factor: str,
    series: str,
    *,
    name: str = "loss-over",
    label: str = "",
    logarithmic: bool = True,
    where: Chosen = lambda variant: True,
) -> Drawing:
    """The loss in the end over one factor of the variants, a curve for each value of another."""

    def paint(results: Results) -> Picture:
        def on(figure: Figure) -> None:
            axes = figure.subplots()
            chosen = [one for one in results.experiment.variants if where(one)]
            for number, value in enumerate(_values(chosen, series)):
                points = {
                    one.factors[factor]: [run.score for run in results.of(one)]
                    for one in chosen
                    if one.factors[series] == value and results.of(one)
                }
                if points:
                    line(axes, number, list(points), list(points.values()), f"{series}: {value}")
            baseline(axes, results)
            if logarithmic:
                axes.set_xscale("log")
            ticks = list(_values(chosen, factor))
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.set_xlabel(label or factor)
            axes.set_ylabel("validation loss (nats per token)")
            axes.grid(axis="y")
            legend(axes)

        return drawing(on)

    return Drawing(name, f"Loss after training, by {factor} and {series}.", paint)


def gradient_profile(name: str, share: float, series: str, where: Chosen) -> Drawing:
    """The gradient's norm in each block after a share of the training, as logarithm."""
    when = {0.0: "before training", 1.0: "at the end of training"}.get(
        share, f"after {share:.0%} of the training"
    )

    def paint(results: Results) -> Picture:
        def on(figure: Figure) -> None:
            axes = figure.subplots()
            for number, variant in enumerate(filter(where, results.experiment.variants)):
                step = min(round(share * (variant.steps - 1)), variant.steps - 1)
                runs = [run.gradients.get(step) for run in results.of(variant)]
                norms = [norms for norms in runs if norms and all(map(math.isfinite, norms))]
                if norms:
                    blocks = range(1, variant.model.n_layer + 1)
                    powers = np.log10(np.maximum(np.array(norms), _LEAST))
                    line(axes, number, blocks, powers.T.tolist(), variant.name)
            low, high = axes.get_ylim()
            if high - low >= _DECADES:
                _whole_numbers(axes.yaxis)
            elif len(ticks := _ticks_of_1_2_5(low, high)) >= 3:
                axes.set_yticks(ticks)
            axes.yaxis.set_major_formatter(lambda power, _: f"{10.0**power:.2g}")
            _whole_numbers(axes.xaxis)
            axes.set_xlabel("block, counted from the embeddings")
            axes.set_ylabel("gradient norm (nats per unit)")
            axes.grid(axis="y")
            legend(axes)

        return drawing(on)

    return Drawing(name, f"The gradient in each block {when}, by {series}.", paint)


def stream_profile(name: str, series: str, where: Chosen) -> Drawing:
    """How large the residual stream is after each block, before training."""

    def paint(results: Results) -> Picture:
        def on(figure: Figure) -> None:
            axes = figure.subplots()
            for number, variant in enumerate(filter(where, results.experiment.variants)):
                sizes = [run.stream for run in results.of(variant) if run.stream]
                if sizes:
                    depths = range(len(sizes[0]))
                    line(axes, number, depths, list(zip(*sizes, strict=True)), variant.name)
            _whole_numbers(axes.xaxis)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("depth (blocks passed)")
            axes.set_ylabel("root mean square of the stream")
            axes.grid(axis="y")
            legend(axes)

        return drawing(on)

    return Drawing(name, f"The residual stream before training, by {series}.", paint)


def pictures(results: Results) -> Iterator[tuple[Drawing, Picture]]:
    """All pictures of an experiment.

    Raises:
        LibraryError: matplotlib is not installed.
    """
    if results.runs:
        for one in results.experiment.drawings:
            yield one, one.draw(results)


def _values(variants: Iterable[Variant], factor: str) -> list[Any]:
    """The values of a factor, each once, in the order of the variants."""
    return list(dict.fromkeys(variant.factors[factor] for variant in variants))


def _ticks_of_1_2_5(low: float, high: float) -> list[float]:
    """The logarithms between two of 1, 2 and 5 with any power of ten."""
    powers = range(math.floor(low), math.ceil(high))
    ticks = [power + math.log10(digit) for power in powers for digit in (1, 2, 5)]
    return [tick for tick in (*ticks, math.ceil(high)) if low <= tick <= high]


def _whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
