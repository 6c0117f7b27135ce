"""A run's report: one HTML page that needs nothing else, from what the run has told.

Every word of it that comes from a run is escaped; the page may load nothing and run no script but
its own, which its policy names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from andrea.words import count, duration, plural, size

from . import facts as words
from .curve import Curve
from .metrics import Metrics, Sample

_SCRIPTS = ("scale.js", "chart.js", "samples.js", "page.js")
_CURVES = (
    "loss",
    "validation",
    "bits_per_byte",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "seconds",
)
_DIGITS = 6


def render(metrics: Metrics, name: str, *, live: bool = False, reload_seconds: float = 30) -> str:
    """The report as HTML; `name` is its heading.

    live: the run goes on and the file is written again, so the page reads itself again every
    reload_seconds.
    """
    style, script = _read("page.css"), _script()
    live = live and not metrics.is_ended
    state, status = _status(metrics, live)
    return Template(_read("page.html")).substitute(
        policy=(
            f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
            "base-uri 'none'; form-action 'none'"
        ),
        title=escape(f"{name} · {status}"),
        style=style,
        name=escape(name),
        state=state,
        status=escape(status),
        summary=escape(_summary(metrics)),
        progress=_progress(metrics, live),
        figures=_figures(metrics, live),
        samples=_samples(metrics),
        facts=_cards(metrics),
        notices=_notices(metrics),
        checkpoints=_checkpoints(metrics),
        footer=_footer(metrics),
        data=_data(metrics, live, reload_seconds),
        script=script,
    )


@cache
def _read(name: str) -> str:
    return files("andrea.reporting").joinpath(name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    body = "".join(_read(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _status(metrics: Metrics, live: bool) -> tuple[str, str]:
    """A class name and the words for how the run stands."""
    heard = words.moment(metrics.heard)
    at = f", {heard}" if heard else ""
    if live:
        done = words.progress(metrics)
        share = f", {done:.0%} done" if done is not None else ""
        return "live", f"Training{share}"
    if not metrics.is_ended:
        return "open", f"At step {metrics.step:,}{at}"
    reason = metrics.sessions[-1].reason
    if reason is None or reason == "complete":
        return "done", f"Finished{at}"
    state = "open" if reason.startswith("stopped by") else "broken"
    return state, f"{reason[:1].upper()}{reason[1:]}{at}"


def _summary(metrics: Metrics) -> str:
    parts = []
    parameters = words.parameters(metrics)
    if parameters is not None:
        parts.append(f"{count(parameters)} parameters")
    if metrics.began is not None:
        parts.append(f"begun {words.moment(metrics.began)}")
    if len(metrics.sessions) > 1:
        times = len(metrics.sessions) - 1
        parts.append("resumed once" if times == 1 else f"resumed {times:,} times")
    return " · ".join(parts)


def _progress(metrics: Metrics, live: bool) -> str:
    done = words.progress(metrics)
    if not live or done is None:
        return ""
    return (
        f'<progress class="progress" max="1" value="{done:.4f}" aria-label="Done">'
        f"{done:.0%}</progress>"
    )


def _figures(metrics: Metrics, live: bool) -> str:
    if not metrics.step:
        told = "The first step is being taken." if live else "No step has been logged."
        return f'<p class="summary">{told}</p>'
    tiles = "".join(
        f"<div><dt>{escape(one.label)}</dt><dd>{escape(one.number)}</dd>"
        f'<dd class="note">{escape(one.remark)}</dd></div>'
        for one in words.figures(metrics)
    )
    return f'<dl class="figures">{tiles}</dl>'


def _samples(metrics: Metrics) -> str:
    if not metrics.samples:
        return ""
    newest = metrics.samples[-1]
    prompt = f" after “{newest.prompt}”" if newest.prompt and newest.prompt.strip() else ""
    last = len(metrics.samples) - 1
    return f"""<section class="block" id="samples">
<h2>What it writes{escape(prompt)}</h2>
<div class="card">
<div class="reel" hidden>
<button type="button" aria-label="Earlier sample">←</button>
<input type="range" min="0" max="{last}" value="{last}" step="1" aria-label="Sample">
<button type="button" aria-label="Later sample">→</button>
<button type="button">Play</button>
</div>
<div class="pages">
<div>
<p class="told"><b>step {newest.step:,}</b></p>
{_sample_text(newest, "Sample text")}
</div>
{_first_sample(metrics)}
</div>
</div>
</section>"""


def _sample_text(sample: Sample, label: str) -> str:
    text = escape(sample.text.lstrip("\n"))
    return f'<p class="sample" tabindex="0" aria-label="{label}">{text}</p>'


def _first_sample(metrics: Metrics) -> str:
    if len(metrics.samples) < 2:
        return ""
    first = metrics.samples[0]
    told = f'<p class="told"><span>how it began, at step {first.step:,}</span></p>'
    return f'<div class="first">{told}{_sample_text(first, "First sample")}</div>'


def _plan(metrics: Metrics) -> str:
    rows = words.outcomes(metrics)
    if not rows:
        return ""
    so_far = "Outcome" if metrics.is_ended else "So far"
    body = "".join(_plan_row(*row) for row in rows)
    return _card(
        "Plan and outcome",
        f'<table class="plan"><thead><tr><th scope="col"><span class="hidden">What</span></th>'
        f'<th scope="col">Planned</th><th scope="col">{so_far}</th></tr></thead>'
        f"<tbody>{body}</tbody></table>",
    )


def _plan_row(what: str, planned: str, done: str) -> str:
    head = f'<tr><th scope="row">{escape(what)}</th>'
    if not done:
        return f'{head}<td colspan="2">{escape(planned)}</td></tr>'
    return f"{head}<td>{escape(planned)}</td><td>{escape(done)}</td></tr>"


def _cards(metrics: Metrics) -> str:
    cards = [_plan(metrics)]
    for title, values in (
        ("Model", metrics.model),
        ("Data", metrics.data),
        ("Machine", metrics.environment),
        ("Training", metrics.config),
    ):
        pairs = words.facts(values)
        if not pairs:
            continue
        items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs)
        cards.append(_card(title, f'<dl class="facts">{items}</dl>'))
    return "\n".join(card for card in cards if card)


def _notices(metrics: Metrics) -> str:
    if not metrics.notices:
        return ""
    total = sum(metrics.notice_counts.values())
    kinds = ", ".join(
        f"{escape(kind)} {number:,}" for kind, number in metrics.notice_counts.items() if number
    )
    shown = metrics.notices
    told = f"the newest {len(shown)} of {total:,}" if total > len(shown) else f"{total:,}"
    body = "".join(
        f'<tr><td class="number">{one.step:,}</td><td class="kind">{escape(one.kind)}</td>'
        f"<td>{escape(one.text)}</td></tr>"
        for one in reversed(shown)
    )
    table = (
        '<table><thead><tr><th scope="col" class="number">Step</th><th scope="col">Kind</th>'
        f'<th scope="col">What was seen</th></tr></thead><tbody>{body}</tbody></table>'
    )
    if len(shown) > 8:
        table = f"<details><summary>Show {told}</summary>{table}</details>"
    return _block("Notices", f'<p class="told">{kinds}</p>{table}')


def _checkpoints(metrics: Metrics) -> str:
    if not metrics.checkpoints:
        sessions = _sessions(metrics)
        return _block("Sessions", sessions) if sessions else ""
    body = "".join(
        f'<tr><td class="number">{one.step:,}</td><td>{escape(one.name)}</td>'
        f'<td class="number">{"" if one.size_bytes is None else size(one.size_bytes)}</td>'
        f'<td class="number">{"" if one.seconds is None else duration(one.seconds)}</td></tr>'
        for one in reversed(metrics.checkpoints)
    )
    table = (
        '<table><thead><tr><th scope="col" class="number">Step</th><th scope="col">File</th>'
        '<th scope="col" class="number">Size</th><th scope="col" class="number">Written in</th>'
        f"</tr></thead><tbody>{body}</tbody></table>"
    )
    newest = metrics.checkpoints[-1]
    told = f"{plural(metrics.checkpoint_count, 'time')}, last at step {newest.step:,}"
    details = f"<details><summary>Saved {told}</summary>{table}</details>"
    return _block("Checkpoints", details + _sessions(metrics))


def _sessions(metrics: Metrics) -> str:
    if len(metrics.sessions) < 2:
        return ""
    body = "".join(
        f"<tr><td>{escape(words.moment(one.began))}</td>"
        f'<td class="number">{one.first_step:,}</td><td class="number">{one.last_step:,}</td>'
        f'<td class="number">{duration(one.seconds)}</td><td>{escape(_end(one.ended, one.reason))}'
        "</td></tr>"
        for one in metrics.sessions
    )
    return (
        f"<details><summary>Trained in {plural(len(metrics.sessions), 'session')}</summary>"
        '<table><thead><tr><th scope="col">Begun</th><th scope="col" class="number">From step</th>'
        '<th scope="col" class="number">To step</th><th scope="col" class="number">Time</th>'
        f'<th scope="col">Ended</th></tr></thead><tbody>{body}</tbody></table></details>'
    )


def _end(ended: bool, reason: str | None) -> str:
    return (reason or "complete") if ended else "not told"


def _card(title: str, content: str) -> str:
    return f'<section class="card"><h2>{title}</h2>{content}</section>'


def _block(title: str, content: str) -> str:
    return f'<section class="block"><h2>{title}</h2><div class="card">{content}</div></section>'


def _footer(metrics: Metrics) -> str:
    at = words.moment(metrics.heard)
    until = f" until {at}" if at else ""
    return escape(
        f"Written by andrea from log.jsonl{until}. This page is complete in itself: it loads "
        "nothing from anywhere."
    )


def _data(metrics: Metrics, live: bool, reload_seconds: float) -> str:
    """What the scripts draw, as JSON that cannot end the element it stands in."""
    coherence = Curve()
    for sample in metrics.samples:
        if sample.coherence is not None:
            coherence.add(sample.step, sample.coherence)
    curves = {name: _points(getattr(metrics, name)) for name in _CURVES}
    best = metrics.best
    data = {
        "id": metrics.run_id or "",
        "live": live,
        "generated": round(time.time()),
        "reload": reload_seconds,
        "tokensPerStep": words.tokens_per_step(metrics),
        "curves": curves | {"coherence": _points(coherence)},
        "best": best and {"step": best.step, "y": best.loss},
        "events": sorted({*metrics.skipped_steps, *metrics.outlier_steps}),
        "sessions": [session.first_step for session in metrics.sessions[1:]],
        "samples": [vars(sample) for sample in metrics.samples],
    }
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _points(curve: Curve) -> dict[str, list[float]]:
    buckets = curve.buckets
    return {
        "step": [(bucket.first + bucket.last) // 2 for bucket in buckets],
        "mean": _numbers(bucket.mean for bucket in buckets),
        "low": _numbers(bucket.low for bucket in buckets),
        "high": _numbers(bucket.high for bucket in buckets),
        "count": [bucket.count for bucket in buckets],
    }


def _numbers(values: Iterable[float]) -> list[Any]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
