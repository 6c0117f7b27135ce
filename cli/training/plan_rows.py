"""The plan of a run in words: machine, model, memory, work and time."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from ..screen.display import Rows, note_row
from ..screen.formats import count, duration, plural, size

if TYPE_CHECKING:
    from andrea.config import ModelConfig
    from andrea.model import GPT
    from andrea.planning.plan import Plan

    from .resources import Resources

_INSTRUCTION_SETS = {"avx2": "AVX2", "avx512": "AVX-512", "avx512bf16": "AVX-512 BF16"}


def machine_row(model: GPT, asked: str) -> tuple[str, str]:
    """Device, precision, threads and instruction set in one line; and where the choice was left to
    Andrea (`asked` is "auto") and fell on the CPU, why."""
    import andrea

    if model.device != "cpu":
        return "machine", f"{model.device}: {model.description}"
    engine = andrea.engine_info()
    isa = str(engine["isa"])
    parts = [
        model.device,
        model.precision,
        plural(engine["threads"], "thread"),
        f"{_INSTRUCTION_SETS.get(isa, isa)} instructions",
    ]
    why = f"; no GPU: {brief(engine['no_gpu'])}" if asked == "auto" and engine["no_gpu"] else ""
    return "machine", ", ".join(parts) + why


def brief(reason: str) -> str:
    """The first part of a sentence that goes on with advice."""
    return reason.partition(";")[0].partition(" (")[0]


def shape(config: ModelConfig) -> str:
    """The sizes of a model in words."""
    return (
        f"{plural(config.n_layer, 'layer')}, {plural(config.n_head, 'head')}, "
        f"{config.n_embd} wide, context {config.block_size:,}, vocabulary {config.vocab_size:,}"
    )


def model_rows(config: ModelConfig, parameters: int) -> Rows:
    """What a model is, and what of it is not GPT-2's."""
    from andrea.planning.dialects import describe_dialect

    dialect = describe_dialect(config)
    return [
        ("model", f"{shape(config)}: {parameters:,} parameters"),
        *([("dialect", dialect)] if dialect else []),
    ]


def memory_text(memory: dict[str, int]) -> str:
    """The total and its parts, small ones together."""
    total = memory["total"]
    large = {
        kind: amount
        for kind, amount in memory.items()
        if kind != "total" and amount >= 0.01 * total
    }
    parts = [f"{kind} {size(amount)}" for kind, amount in large.items()]
    rest = total - sum(large.values())
    if rest > 0:
        parts.append(f"the rest {size(rest)}")
    return f"{size(total)}: {', '.join(parts)}"


def finish_time(seconds: float, now: datetime.datetime) -> str:
    """The clock time some seconds from now, with the date when it is another day."""
    try:
        end = now + datetime.timedelta(seconds=seconds)
    except OverflowError:
        return "after the year 9999"
    if end.year != now.year:
        return end.strftime("%a %d %b %Y %H:%M")
    return end.strftime("%H:%M" if end.date() == now.date() else "%a %d %b %H:%M")


def _how_long(seconds: float, now: datetime.datetime) -> str:
    if seconds < 1:
        return "less than a second"
    return f"about {duration(seconds)}, until {finish_time(seconds, now)}"


def resource_rows(resources: Resources) -> Rows:
    """What a run takes of memory and disk."""
    disk, memory = resources.disk, memory_text(resources.memory)
    copy = f"; {size(resources.copy)} more to write checkpoints" if resources.copy else ""
    files = f"{plural(disk.files, 'checkpoint')} of {size(disk.checkpoint)} at most"
    free = "" if disk.free is None else f"; {size(disk.free)} are free"
    rows = [("memory", memory + copy), ("disk", files + free)]
    if not resources.copy:
        rows.append(
            (
                "saving",
                "training waits while a checkpoint is written: memory has no room for a copy of "
                "the state",
            )
        )
    return rows


def plan_rows(plan: Plan, resources: Resources, now: datetime.datetime) -> Rows:
    """What a new run will be and take."""
    train = plan.train
    block = f"{train.batch_size} x {plan.model.block_size:,} tokens"
    if train.accumulate > 1:
        block = f"{train.accumulate} x {block}"
    rows = [
        *model_rows(plan.model, plan.parameters),
        *resource_rows(resources),
    ]
    if plan.seconds_per_step is None:
        amount = f"{train.steps:,} steps" if train.steps else duration(train.seconds or 0)
        rows.append(("training", f"{amount}, {block} a step"))
    else:
        about = "" if train.steps else "about "
        rows.append(
            (
                "training",
                f"{about}{plan.steps:,} steps of {block}: {count(plan.tokens or 0)} tokens, "
                f"{_few(plan.epochs or 0)} epochs, "
                f"{_few((plan.tokens or 0) / plan.parameters)} tokens per parameter",
            )
        )
        rows.append(
            (
                "time",
                f"{count(plan.tokens_per_second or 0)} tokens/s: "
                f"{_how_long(plan.seconds or 0, now)}",
            )
        )
    return [*rows, *map(note_row, plan.notes)]


def _few(number: float) -> str:
    """A ratio with as many digits as it deserves."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"
