"""The picture of a count: what share of a model's parameters each kind has, as bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from andrea.words import count as brief
from andrea.words import percent

from .counting import KINDS, Count
from .pictures import PALETTE, Picture, best_ink, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR = 0.6
# What a character of a share needs of the longest bar; a part that is narrower has no room for it.
_CHARACTER = 0.015


def draw_shares(counts: Mapping[str, Count]) -> Picture:
    """A bar for each model, by the name it has here, made of its kinds of parameters.

    Raises:
        LibraryError: matplotlib is not installed.
    """
    return draw(lambda figure: _paint(figure, counts), width=8.0, height=1.6 + 0.8 * len(counts))


def _paint(figure: Figure, counts: Mapping[str, Count]) -> None:
    from matplotlib.ticker import FuncFormatter

    axes = figure.subplots()
    longest = max(count.parameters for count in counts.values())
    starts = [0] * len(counts)
    for number, (name, colour) in enumerate(zip(KINDS, PALETTE, strict=False)):
        shares = []
        for place, count in enumerate(counts.values()):
            amount = count.kinds[number].parameters
            share = percent(count.share(amount))
            axes.barh(place, amount, left=starts[place], height=_BAR, color=colour)
            if amount >= _CHARACTER * (len(share) + 1) * longest:
                middle = starts[place] + amount / 2
                ink = best_ink(colour)
                axes.text(middle, place, share, ha="center", va="center", color=ink)
            starts[place] += amount
            shares.append(share)
        label = f"{name.replace('mlp', 'MLP')} " + " → ".join(shares)
        axes.plot([], [], "s", color=colour, markersize=9, label=label)
    for place, end in enumerate(starts):
        axes.annotate(
            f"{end:,}", (end, place), xytext=(6, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(counts)), list(counts))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * longest)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: brief(value).replace(".0", "")))
    axes.set_xlabel("parameters")
    figure.legend(loc="outside lower center", ncols=3)
