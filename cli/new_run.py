"""`andrea train TEXT`: from the options to a plan, a model and a run folder."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import Display
from .follow import Session, shell_path
from .plan_rows import machine_row, plan_rows
from .signals import StopSignals
from .texts import (
    TextRequest,
    absolute_sources,
    data_record,
    default_folder,
    prepare_text,
    text_rows,
)

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.planning.plan import Choices, Plan

# A step that takes longer is measured once.
_PROBE_SECONDS = 0.4

_CHOICES = (
    "preset",
    "n_layer",
    "n_head",
    "n_embd",
    "block_size",
    "batch_size",
    "accumulate",
    "steps",
    "seconds",
    "learning_rate",
    "warmup",
    "weight_decay",
    "eval_every",
    "save_every",
)


def start(options: Mapping[str, Any], display: Display, stop: StopSignals) -> int:
    """Plan and train a new run; returns the exit code.

    Raises:
        AndreaError: the text, the options or the machine do not allow it.
    """
    from andrea.model import GPT
    from andrea.planning.plan import Choices, preset_tokenizer
    from andrea.runs.folder import RunFolder

    request = TextRequest(
        absolute_sources(options["text"]),
        options["text_key"],
        options["encoding"],
        bool(options["skip_bad"]),
    )
    folder = _new_folder(options["out"], request)
    choices = Choices(seed=options["seed"] or 0, **{name: options[name] for name in _CHOICES})
    tokenizer, vocab_size = options["tokenizer"], options["vocab_size"]
    if tokenizer is None and vocab_size is None:
        tokenizer, vocab_size = preset_tokenizer(options["preset"])
    data = prepare_text(
        request,
        display,
        tokenizer=tokenizer or "auto",
        vocab_size=vocab_size,
        cache=options["cache"],
    )
    device, precision = options["device"] or "auto", options["precision"] or "auto"
    plan = _plan(choices, data, display, device=device, precision=precision)
    data.require(plan.model.block_size)
    prompt = options["sample_prompt"]
    data.tokenizer.encode(prompt or "")
    model = GPT(plan.model, device=device, precision=precision, seed=choices.seed)
    plan = _with_speed(plan, model, display)
    display.rows(
        [
            machine_row(model, device),
            *text_rows(request, data),
            *plan_rows(plan, datetime.datetime.now()),
            ("run", shell_path(folder)),
        ]
    )
    display.line()
    record = {
        **request.to_record(),
        **data_record(data),
        "device": device,
        "precision": model.precision,  # a resumed run goes on in it, wherever it is resumed
        "sample_prompt": prompt,
    }
    with RunFolder.create(
        folder, model=plan.model, train=plan.train, tokenizer=data.tokenizer, record=record
    ) as run:
        return Session(model, data, plan.train, run, run.state(), prompt, display, stop).follow()


def _new_folder(out: str | None, request: TextRequest) -> Path:
    from andrea.runs.folder import refuse_used

    if out is None:
        return default_folder(request.sources, Path("runs"))
    # RunFolder.create looks again; here it spares the preparation of a text for nothing.
    refuse_used(Path(out))
    return Path(out)


def _plan(
    choices: Choices, data: PreparedData, display: Display, *, device: str, precision: str
) -> Plan:
    from andrea.planning.machine import available_memory, measure_flops
    from andrea.planning.plan import needs_speed, plan

    speed = None
    if needs_speed(choices):
        display.activity("measuring this machine")
        speed = measure_flops(device=device, precision=precision)
    return plan(
        choices,
        vocab_size=data.tokenizer.vocab_size,
        train_tokens=len(data.train),
        flops_per_second=speed,
        memory=available_memory(device),
        device=device,
        precision=precision,
    )


def _with_speed(plan: Plan, model: Any, display: Display) -> Plan:
    from andrea.planning.machine import probe

    display.activity("measuring the speed of a step")
    return plan.with_speed(probe(model, plan.train, seconds=_PROBE_SECONDS))
