"""What the report says in words: numbers of the plan and what became of them, settings, machine.

For page.py; all of it is plain text, nothing is markup yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from andrea.config import ModelConfig
from andrea.errors import AndreaError
from andrea.planning.sizes import num_parameters
from andrea.words import count, duration, plural, size

from .events import finite, whole
from .metrics import Metrics

Facts = list[tuple[str, str]]

_LABELS = {
    "n_layer": "layers",
    "n_head": "heads",
    "n_embd": "width",
    "block_size": "context",
    "vocab_size": "vocabulary",
    "mlp_dim": "MLP width",
    "isa": "instructions",
    "bytes": "size",
    "num_bytes": "size",
    "train_tokens": "training tokens",
    "unigram_entropy": "token frequencies",
    "eval_every": "evaluates every",
    "eval_windows": "evaluates on",
    "save_every": "saves every",
    "keep_last": "keeps",
    "min_ratio": "lowest rate",
    "max_norm": "clips gradient at",
    "outlier_z": "outliers",
    "max_skipped": "ends after",
    "seconds": "time",
}
_BYTES = ("bytes", "memory", "disk", "checkpoint_copy")
_STEPS = ("eval_every", "save_every", "warmup")
_LONGEST = 400
# What a number of these names means, where the number alone would not say it.
_MEANINGS: dict[str, Callable[[float], str]] = {
    "min_ratio": lambda share: f"{share:g} of the highest",
    "keep_last": lambda number: f"the newest {plural(int(number), 'checkpoint')}",
    "eval_windows": lambda number: f"{plural(int(number), 'context')} at most",
    "max_norm": lambda norm: f"{norm:g}" if norm else "never",
    "outlier_z": lambda z: f"beyond {z:g} robust deviations" if z else "not looked for",
    "max_skipped": lambda number: f"{plural(int(number), 'step')} in a row without an update",
    "early_stop": lambda number: (
        f"after {plural(int(number), 'evaluation')} above the best" if number else "never"
    ),
    "coherence_gate": lambda score: f"below {score:g} of 100" if score else "never",
    "unigram_entropy": lambda nats: f"{nats:.4g} nats per token",
}


@dataclass(frozen=True)
class Figure:
    """One of the large numbers at the top: what it is, the number, a remark."""

    label: str
    number: str
    remark: str = ""


def label(name: str) -> str:
    """A key of the log as words."""
    return _LABELS.get(name, name.replace("_", " "))


def text(name: str, value: Any) -> str:
    """A value of the log as words; its name tells the unit."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        if name == "repetition" and value.keys() >= _REPETITION:
            return _repetition(value)
        parts = [
            f"{label(str(key))} {text(f'{name}_{key}', one)}"
            for key, one in value.items()
            if key != "total"
        ]
        total = [text(f"{name}_total", value["total"])] if "total" in value else []
        return _short(": ".join([*total, ", ".join(parts)]))
    if isinstance(value, (list, tuple)):
        between = "; " if name == "notes" else ", "
        return _short(between.join(text(name, one) for one in value))
    number = finite(value)
    if number is None:
        return _short(str(value))
    if name in _MEANINGS:
        return _MEANINGS[name](number)
    if name in _BYTES or name.endswith("_bytes") or name.startswith(("memory_", "disk_")):
        return size(number)
    if name == "seconds" or name.endswith("_seconds"):
        return duration(number)
    if name in _STEPS:
        return plural(int(number), "step") if number else "never"
    if isinstance(value, int) and name != "seed":
        return f"{value:,}"
    return f"{number:.6g}" if isinstance(value, float) else str(value)


def facts(values: Mapping[str, Any]) -> Facts:
    """All values that say something, in their order."""
    return [
        (label(str(name)), text(str(name), value))
        for name, value in values.items()
        if value not in (None, "", [], {}, ())
        # Only that schedule has a last part.
        if name != "decay_share" or values.get("schedule") == "wsd"
    ]


_REPETITION = {"passages", "leaked", "documents", "repeated", "near_repeated"}


def _repetition(found: Mapping[str, Any]) -> str:
    number = {name: text(name, found[name]) for name in _REPETITION}
    told = (
        f"{number['leaked']} of {number['passages']} validation passages stand in the training text"
    )
    if found["documents"] == 1:
        return told
    return (
        f"{told}; of {number['documents']} documents {number['repeated']} equal an earlier one, "
        f"{number['near_repeated']} nearly"
    )


def parameters(metrics: Metrics) -> int | None:
    """Trained numbers of the model, where the log tells its shape."""
    try:
        return num_parameters(ModelConfig.from_dict(dict(metrics.model)))
    except (AndreaError, TypeError):
        return None


def tokens_per_step(metrics: Metrics) -> int | None:
    """batch_size x accumulate x block_size, where the log tells them."""
    sizes = (
        whole(metrics.config.get("batch_size")),
        whole(metrics.config.get("accumulate", 1)),
        whole(metrics.model.get("block_size")),
    )
    product = 1
    for one in sizes:
        if not one:
            return None
        product *= one
    return product


def recent(metrics: Metrics, name: str) -> float | None:
    """The mean of the last 3% of a curve, of 20 steps at least."""
    buckets = getattr(metrics, name).buckets
    chosen = buckets[-max(len(buckets) // 32, min(20, len(buckets)), 1) :]
    total = sum(bucket.total for bucket in chosen)
    return total / sum(bucket.count for bucket in chosen) if chosen else None


def progress(metrics: Metrics) -> float | None:
    """How much of the run is done, 0 to 1; None where its length is not known."""
    steps = whole(metrics.config.get("steps"))
    seconds = finite(metrics.config.get("seconds"))
    if steps:
        return min(metrics.step / steps, 1.0)
    if seconds:
        return min(metrics.total_seconds / seconds, 1.0)
    return None


def seconds_left(metrics: Metrics) -> float | None:
    """An estimate from the time that the steps of all sessions took."""
    done = progress(metrics)
    if not done or metrics.is_ended or metrics.total_seconds <= 0:
        return None
    return metrics.total_seconds * (1 / done - 1)


def figures(metrics: Metrics) -> list[Figure]:
    """The numbers that a glance should find."""
    found = []
    best, loss = metrics.best, recent(metrics, "loss")
    if best is not None:
        newest = metrics.validation.last
        now = "" if newest is None or newest == best.loss else f", now {newest:.3f}"
        at = f"nats per token, best at step {best.step:,}{now}"
        found.append(Figure("Validation loss", f"{best.loss:.3f}", at))
        if best.bits_per_byte is not None:
            bits = f"{best.bits_per_byte:.3f}"
            found.append(Figure("Bits per byte", bits, "of validation text, at the best step"))
    if loss is not None:
        found.append(Figure("Training loss", f"{loss:.3f}", "nats per token, recent steps"))
    speed, per_step = recent(metrics, "tokens_per_second"), tokens_per_step(metrics)
    if speed is not None:
        seen = f", {count(metrics.step * per_step)} seen" if per_step else ""
        found.append(Figure("Speed", count(round(speed)), f"tokens per second{seen}"))
    if metrics.sessions:
        left = seconds_left(metrics)
        remark = f"about {duration(left)} left" if left else f"for {plural(metrics.step, 'step')}"
        found.append(Figure("Time", duration(metrics.total_seconds), remark))
    return found


def outcomes(metrics: Metrics) -> list[tuple[str, str, str]]:
    """Rows of (what, planned, so far) for all that the plan names."""
    planned: dict[str, Any] = {
        name: metrics.config.get(name) for name in ("steps", "seconds")
    } | dict(metrics.plan)
    per_step = tokens_per_step(metrics)
    epoch = None
    if finite(planned.get("tokens")) and finite(planned.get("epochs")):
        epoch = planned["tokens"] / planned["epochs"]
    tokens = metrics.step * per_step if per_step else None
    saved = [one.size_bytes for one in metrics.checkpoints if one.size_bytes is not None]
    done: dict[str, Any] = {
        "steps": metrics.step,
        "seconds": metrics.total_seconds,
        "tokens": tokens,
        "epochs": tokens / epoch if tokens is not None and epoch else None,
        "tokens_per_second": recent(metrics, "tokens_per_second"),
        "checkpoint_bytes": saved[-1] if saved else None,
    }
    if metrics.plan.get("tokens_per_parameter") and finite(metrics.plan.get("parameters")):
        done["tokens_per_parameter"] = tokens and tokens / metrics.plan["parameters"]
    rows = []
    for name in dict.fromkeys([*done, *planned]):
        before, after = planned.get(name), done.get(name)
        if before is None and (after is None or name not in ("steps", "seconds", "tokens")):
            continue
        rows.append(
            (
                label(name),
                "" if before is None else _rounded(name, before),
                "" if after is None else _rounded(name, after),
            )
        )
    return rows


def moment(seconds: float | None) -> str:
    """A time as 29 Nov 2026, 22:15 UTC; empty for None."""
    if seconds is None:
        return ""
    try:
        when = datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{when.day} {when:%b %Y, %H:%M} UTC"


def _rounded(name: str, value: Any) -> str:
    number = finite(value)
    if number is not None and name in ("tokens", "tokens_per_second"):
        return count(round(number))
    if isinstance(value, float) and name in ("epochs", "tokens_per_parameter"):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return text(name, value)


def _short(words: str) -> str:
    return words if len(words) <= _LONGEST else words[: _LONGEST - 4] + " ..."
