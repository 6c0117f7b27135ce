"""An experiment's page: one HTML file that needs nothing else, in the style of a run's report.

Pictures are images within the page, so that the style of one cannot reach another; the page may
load nothing and runs no script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from string import Template

from andrea.words import count, plural, size

from .experiment import Drawing, Table
from .results import Judged, Results
from .statistics import FAILS, HOLDS, LEVEL, UNDECIDED

_STATES = {HOLDS: "done", FAILS: "broken", UNDECIDED: "open"}
_CLASSES = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "undecided"}

# What the short titles of columns mean.
_KEYS = {
    "± sd": "± sd is the standard deviation over the seeds",
    "first/last": "first/last is the first block's gradient norm over the last one's",
    "10^": "10^ is a power of ten: -3 is a thousandth, 0 as much",
    "failed": "failed is a share of the runs",
}

# The grey of a picture's words suits any page; on a dark one the page's own is better read.
_DARK_INK = (
    "<style>@media screen and (prefers-color-scheme: dark) "
    "{ text { fill: #a39e94 !important } }</style>"
)

Pictures = Sequence[tuple[Drawing, str]]
"""Drawings with their SVG."""


def render(results: Results, pictures: Pictures, missing: str = "") -> str:
    """The page as HTML; missing: why there are no pictures."""
    experiment = results.experiment
    style = _read("andrea.reporting") + _read(__package__)
    outcome = results.outcome
    return Template(files(__package__).joinpath("page.html").read_text("utf-8")).substitute(
        policy=(
            f"default-src 'none'; style-src '{_hash(style)}'; img-src data:; "
            "base-uri 'none'; form-action 'none'"
        ),
        title=escape(f"{experiment.name} · {outcome}"),
        style=style,
        name=escape(experiment.name),
        heading=escape(experiment.title),
        state=_STATES[outcome],
        status=escape(headline(results)),
        summary=escape(about(results)),
        claim=escape(experiment.claim),
        claims="\n".join(map(_claim, results.judged)),
        noise=escape(noise(results)),
        pictures=_pictures(pictures, missing),
        tables=_tables(results),
        facts="\n".join(_cards(results)),
    )


def headline(results: Results) -> str:
    """The verdict in a line: "Does not hold at this size: 2 of 4 parts hold"."""
    decisive = [one for one in results.judged if one.contrast.decides]
    parts = sum(one.verdict.outcome == HOLDS for one in decisive)
    if not decisive:
        told = "Nothing to decide in all; each difference has its own verdict"
    else:
        told = f"{results.outcome.capitalize()} at this size"
        if len(decisive) > 1:
            told += f": {parts} of {len(decisive)} parts hold"
    return told if results.is_complete else f"{told} (ended early)"


def about(results: Results) -> str:
    """How much was done, in a line."""
    experiment = results.experiment
    done = len({run.seed for run in results.runs})
    seeds = plural(len(results.seeds), "seed")
    if done < len(results.seeds):
        seeds = f"{done} of {seeds}"
    steps = sorted({variant.steps for variant in experiment.variants})
    each = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    return (
        f"{plural(len(experiment.variants), 'variant')} x {seeds}, {each} steps each, "
        f"{experiment.mode} mode"
    )


def noise(results: Results) -> str:
    """What the intervals tell and what they don't."""
    return (
        f"Intervals are of {LEVEL:.0%}, by Student's t over the differences within seeds: all "
        "variants of a seed see the same data in the same order. They tell how far the luck of "
        "first weights and data order goes, not what another text, size or length of training "
        "would give. d is the mean difference over its standard deviation (Cohen's d of pairs). A "
        "run that diverged counts as guessing."
    )


def keys(results: Results) -> str:
    """What the titles of the first table's columns mean, in a sentence; "" where they are words."""
    titles = " ".join(results.table().header)
    told = "; ".join(meaning for short, meaning in _KEYS.items() if short in titles)
    return f"{told}." if told else ""


@cache
def _read(package: str) -> str:
    return files(package).joinpath("page.css").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _claim(one: Judged) -> str:
    outcome = one.verdict.outcome
    return (
        f'<li class="{_CLASSES[outcome]}"><p>{escape(one.contrast.claim)}: '
        f'<span class="outcome">{outcome}</span></p>'
        f'<p class="why">{escape(one.verdict.why)}</p></li>'
    )


def _pictures(pictures: Pictures, missing: str) -> str:
    if not pictures:
        return f'<p class="quiet block">No pictures: {escape(missing)}.</p>' if missing else ""
    return f'<section class="pictures">{"".join(_picture(*one) for one in pictures)}</section>'


def _picture(drawing: Drawing, svg: str) -> str:
    inked = svg.replace(">", ">" + _DARK_INK, 1)
    data = base64.b64encode(inked.encode("utf-8")).decode("ascii")
    caption = escape(drawing.caption)
    return (
        f'<figure class="card"><figcaption>{caption}</figcaption>'
        f'<div class="scroll" tabindex="0"><img alt="{caption}" '
        f'src="data:image/svg+xml;base64,{data}"></div></figure>\n'
    )


def _tables(results: Results) -> str:
    first, *others = results.tables()
    return "\n".join([_table(first, keys(results)), *map(_table, others)])


def _table(table: Table, below: str = "") -> str:
    head = "".join(
        f'<th scope="col"{_number(place, table)}>{escape(title)}</th>'
        for place, title in enumerate(table.header)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(cell)}</th>'
            if place == 0
            else f"<td{_number(place, table)}>{escape(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in table.rows
    )
    told = f'<p class="quiet small keys">{escape(below)}</p>' if below else ""
    return (
        f'<section class="block"><h2>{escape(table.title)}</h2><div class="card">'
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{told}</div></section>"
    )


def _number(place: int, table: Table) -> str:
    return ' class="number"' if place >= table.left else ""


def _cards(results: Results) -> list[str]:
    experiment, text = results.experiment, results.text
    first = experiment.variants[0]
    model, train = first.model, first.train
    sizes = model.to_dict().items()
    facts = {
        "Text": [
            ("amount", f"{size(text.num_bytes)}, {len(text.train):,} tokens to learn from"),
            ("validation", f"{len(text.validation):,} tokens"),
            ("tokenizer", text.tokenizer.describe()),
        ],
        "Training": [
            ("device", results.device),
            ("seeds", ", ".join(map(str, results.seeds))),
            ("a step", f"{count(train.tokens_per_step(model.block_size))} tokens"),
            ("first variant", ", ".join(f"{name} {_value(told)}" for name, told in sizes)),
            ("its training", f"learning rate {train.learning_rate:g}, warm-up {train.warmup}"),
        ],
    }
    cards = []
    for title, pairs in facts.items():
        items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(told)}</dd>" for name, told in pairs)
        cards.append(
            f'<section class="card"><h2>{title}</h2><dl class="facts">{items}</dl></section>'
        )
    if experiment.notes:
        notes = "".join(f"<p>{escape(note)}</p>" for note in experiment.notes)
        cards.append(f'<section class="card notes"><h2>Notes</h2>{notes}</section>')
    return cards


def _value(told: object) -> str:
    if isinstance(told, bool):
        return "on" if told else "off"
    return f"{told:,}" if isinstance(told, int) else f"{told}"
