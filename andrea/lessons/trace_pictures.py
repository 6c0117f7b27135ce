"""Pictures of one token's way: whom each head looks at, how the stream grows, what a shorter model
would predict."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .lens import LogitLens
from .pictures import AMOUNTS, DASHES, GREY, PALETTE, Picture, best_ink, draw
from .trace import StreamNorms, TokenTrace
from .trace_start import mean_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# So many tokens' texts fit under a picture; of more, every second, third ...
_MOST_LABELS = 64
# Of more squares the picture is an image: an SVG would take half a megabyte.
_MOST_SQUARES = 512
# Texts that people wrote are no formulas, whatever dollars stand in them.
_PLAIN: dict[str, Any] = {"parse_math": False}


def draw_attention(trace: TokenTrace, labels: Sequence[str]) -> Picture:
    """Heads by tokens: the weight that each head of the block gives to each token it sees.

    Args:
        trace: of `trace_token`.
        labels: the text of each token, as of `token_labels`.

    Raises:
        LibraryError: matplotlib is not installed.
    """
    weights = trace.attention.weights
    n_head, seen = weights.shape
    step = -(-seen // _MOST_LABELS)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        # Not imshow: browsers blur the pixels of an image.
        mesh = axes.pcolormesh(
            weights, cmap=AMOUNTS, vmin=0.0, rasterized=weights.size > _MOST_SQUARES, linewidth=0
        )
        axes.invert_yaxis()
        _ticks(axes.yaxis, range(n_head), [str(head) for head in range(n_head)])
        places = range((seen - 1) % step, seen, step)
        names = [f"{place} {_shortened(labels[place])}" for place in places]
        _ticks(axes.xaxis, places, names, rotation=90)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("token that is looked at, by its place in the text")
        axes.set_ylabel("head")
        label = _shortened(labels[trace.position])
        title = f"Block {trace.block}, token {trace.position} {label}: attention weights"
        axes.set_title(title, **_PLAIN)
        figure.colorbar(mesh, ax=axes, label="weight (each head's sum to 1)", pad=0.01)

    width = min(max(3.0 + 0.26 * seen, 6.0), 16.0)
    return draw(paint, width=width, height=1.9 + 0.24 * n_head)


def draw_stream(norms: StreamNorms, position: int, label: str) -> Picture:
    """Lengths of the residual stream at a token and of what each block adds, and their angles.

    Args:
        norms: of `stream_norms`.
        position: of the token, from 0.
        label: its text.

    Raises:
        LibraryError: matplotlib is not installed.
    """
    n_layer = len(norms.middle)
    between = np.arange(n_layer)

    def paint(figure: Figure) -> None:
        lengths, angles = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        stream = np.empty(2 * n_layer + 1)
        stream[::2], stream[1::2] = norms.stream[:, position], norms.middle[:, position]
        for row, (attention, mlp) in (
            (lengths, (norms.attention, norms.mlp)),
            (angles, (degrees(norms.attention_cosine), degrees(norms.mlp_cosine))),
        ):
            row.bar(between + 0.25, attention[:, position], 0.42, color=PALETTE[1])
            row.bar(between + 0.75, mlp[:, position], 0.42, color=PALETTE[2], hatch="//")
        lengths.plot(np.arange(2 * n_layer + 1) / 2, stream, color=PALETTE[0], marker="o", ms=3)
        handles = [*lengths.lines, *lengths.containers]
        lengths.legend(handles, ["the stream", "attention's output", "the MLP's output"])
        lengths.set_ylabel("length (square root of\nthe sum of squares)")
        title = f"The residual stream at token {position} {_shortened(label)}"
        lengths.set_title(title, **_PLAIN)
        angles.axhline(90, color=GREY, linewidth=1, linestyle=DASHES[1])
        angles.set_ylim(0, 180)
        angles.set_yticks([0, 45, 90, 135, 180])
        angles.set_ylabel("angle to the stream\n(degrees)")
        angles.set_xlabel("depth (blocks passed)")
        _ticks(angles.xaxis, range(0, n_layer + 1, -(-n_layer // 16)))
        for row in (lengths, angles):
            row.grid(axis="y")

    return draw(paint, height=5.2)


def draw_lens(
    lens: LogitLens,
    row: int,
    vocab_size: int,
    label: str,
    name_of: Callable[[int], str],
) -> Picture:
    """What the model would predict if it stopped after each block: the likeliest tokens, and how
    sure and how right it would be.

    Args:
        lens: of `logit_lens`.
        row: which of its positions.
        vocab_size: for the loss of a guess.
        label: the token's text.
        name_of: the text of a token id.

    Raises:
        LibraryError: matplotlib is not installed.
    """
    depths, top = len(lens.tokens), min(5, lens.tokens.shape[-1])

    def paint(figure: Figure) -> None:
        curves, table = figure.subplots(1, 2, width_ratios=(3, 4))
        place = np.arange(depths)
        mean = mean_loss(lens)
        lines = [("entropy of the prediction", lens.entropy[:, row])]
        if lens.targets[row] >= 0:
            lines.append(("loss of the next token", lens.loss[:, row]))
        if np.isfinite(mean).all():
            lines.append(("mean loss of the text", mean))
        for number, (name, values) in enumerate(lines):
            colour, dashes = PALETTE[number], DASHES[number]
            curves.plot(place, values, color=colour, linestyle=dashes, marker="o", ms=3, label=name)
        guess = f"ln {vocab_size:,}: all tokens alike"
        curves.axhline(np.log(vocab_size), color=GREY, linestyle=DASHES[3], label=guess)
        curves.set_ylim(bottom=0)
        curves.set_ylabel("nats")
        curves.set_xlabel("depth (blocks passed)")
        # Below: within the axes it would stand on one of the lines.
        figure.legend(loc="outside lower left", ncols=4, fontsize=9)
        curves.grid(axis="y")
        _ticks(curves.xaxis, range(0, depths, -(-depths // 16)))
        title = f"After token {lens.positions[row]} {_shortened(label)}"
        curves.set_title(title, **_PLAIN)

        shares = lens.probabilities[:, row, :top]
        mesh = table.pcolormesh(shares, cmap=AMOUNTS, vmin=0.0, vmax=1.0, linewidth=0)
        for depth in range(depths):
            for rank in range(top):
                ink = best_ink(_colour(mesh, shares[depth, rank]))
                name = _shortened(name_of(int(lens.tokens[depth, row, rank])))
                text = f"{name} {_share(shares[depth, rank])}"
                middle = {"ha": "center", "va": "center", "fontsize": 8, "clip_on": True}
                table.text(rank + 0.5, depth + 0.5, text, color=ink, **middle, **_PLAIN)
        _ticks(table.xaxis, range(top), [str(rank + 1) for rank in range(top)])
        _ticks(table.yaxis, range(depths), ["0", *(str(depth) for depth in range(1, depths))])
        table.spines[:].set_visible(False)
        table.set_xlabel("the likeliest next tokens, in order")
        table.set_ylabel("depth (blocks passed)")
        figure.colorbar(mesh, ax=table, label="probability", pad=0.01)

    return draw(paint, width=11.0, height=max(3.7, 1.5 + 0.26 * depths))


def write_pictures(folder: Path, pictures: dict[str, Picture]) -> list[Path]:
    """Write each picture as NAME.svg in a folder, over those that are there; returns the paths.

    Raises:
        OSError: a file cannot be written.
    """
    paths = []
    with warnings.catch_warnings():
        # A character that matplotlib's font lacks: an SVG's reader has others.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        for name, picture in pictures.items():
            paths.append(folder / f"{name}.svg")
            picture.write(paths[-1])
    return paths


def degrees(cosine: Any) -> Any:
    """The angle of a cosine, in degrees."""
    return np.degrees(np.arccos(cosine))


def _shortened(label: str) -> str:
    return label if len(label) <= 12 else f"{label[:11]}\u2026"


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def _ticks(
    axis: Any, places: Sequence[int], labels: Sequence[str] | None = None, **style: Any
) -> None:
    """Ticks; with labels in the middle of squares, else at the places."""
    if labels is None:
        axis.set_ticks(list(places))
    else:
        axis.set_ticks([place + 0.5 for place in places], labels, **_PLAIN, **style)
        axis.set_tick_params(length=0)


def _colour(mesh: Any, value: float) -> str:
    from matplotlib.colors import to_hex

    return str(to_hex(mesh.cmap(mesh.norm(value))))
