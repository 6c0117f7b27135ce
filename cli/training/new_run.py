"""`andrea train TEXT`: from the options to a plan, a model and a run folder."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..dialect_options import given_switches
from ..screen.display import Display
from ..texts import (
    TextRequest,
    absolute_sources,
    data_record,
    default_folder,
    prepare_text,
    text_rows,
)
from . import about_run, config_file
from .changes import seconds_until
from .follow import Session, shell_path
from .init_from import Weights, open_weights
from .plan_rows import machine_row, plan_rows
from .resources import Resources
from .settings import refusal
from .signals import StopSignals

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.planning.choices import Choices
    from andrea.planning.plan import Plan

# A step that takes longer is measured once.
_PROBE_SECONDS = 0.4


def start(options: Mapping[str, Any], display: Display, stop: StopSignals) -> int:
    """Plan and train a new run; returns the exit code.

    Raises:
        AndreaError: the text, the options or the machine do not allow it.
    """
    request = TextRequest(
        absolute_sources(options["text"]),
        options["text_key"],
        options["encoding"],
        bool(options["skip_bad"]),
    )
    folder = _new_folder(options["out"], request)
    if options["init_from"] is None:
        return _start(options, display, stop, request, folder, None)
    with open_weights(options, display) as weights:
        return _start(options, display, stop, request, folder, weights)


def _start(
    options: Mapping[str, Any],
    display: Display,
    stop: StopSignals,
    request: TextRequest,
    folder: Path,
    weights: Weights | None,
) -> int:
    from andrea.model import GPT
    from andrea.planning.shapes import check_choices
    from andrea.runs.folder import RunFolder

    choices = _choices(options, weights)
    check_choices(choices)
    data = _prepare(options, request, display, weights)
    device, precision = options["device"] or "auto", options["precision"] or "auto"
    if options["until"] is not None:
        choices = dataclasses.replace(choices, seconds=seconds_until(options["until"]))
    plan = _plan(choices, data, display, device=device, precision=precision)
    data.require(plan.model.block_size)
    prompt = options["sample_prompt"]
    data.tokenizer.encode(prompt or "")
    resources = Resources.of(
        plan.model, plan.train, plan.memory, device=device, folder=folder, data=data
    )
    resources.refuse_full_disk()
    with resources.explained():
        model = GPT(plan.model, device=device, precision=precision, seed=choices.seed)
        plan = _with_speed(plan, model, display)
        # The speed is measured with steps, which change weights.
        if weights is not None:
            weights.opened.load(model)
        resources = dataclasses.replace(resources, steps=plan.steps)
        display.rows(
            [
                machine_row(model, device),
                *text_rows(request, data),
                *plan_rows(plan, resources, datetime.datetime.now()),
                *(
                    []
                    if weights is None
                    else [("weights", weights.describe(plan.model.block_size))]
                ),
                ("run", shell_path(folder)),
            ]
        )
        display.line()
        record = {
            **request.to_record(),
            **data_record(data),
            "device": device,
            "precision": model.precision,  # a resumed run goes on in it, wherever it is resumed
            **{name: options[name] for name in ("report", "sample_tokens", "tensorboard")},
            "sample_prompt": prompt,
            "init_from": None if weights is None else weights.path,
        }
        about = {
            "environment": about_run.environment(model),
            "plan": about_run.planned(plan, resources),
            "data": about_run.text_summary(request, data),
        }
        train = _until(options["until"], plan.train)
        with RunFolder.create(
            folder,
            model=plan.model,
            train=train,
            tokenizer=data.tokenizer,
            record=record,
            about=about,
        ) as run:
            config_file.write(run, data.tokenizer, model.description, options)
            return Session(model, data, train, run, run.state(), prompt, display, stop).follow()


def _new_folder(out: str | None, request: TextRequest) -> Path:
    from andrea.runs.folder import refuse_used

    if out is None:
        return default_folder(request.sources, Path("runs"))
    # RunFolder.create looks again; here it spares the preparation of a text for nothing.
    refuse_used(Path(out))
    return Path(out)


def _prepare(
    options: Mapping[str, Any], request: TextRequest, display: Display, weights: Weights | None
) -> PreparedData:
    from andrea.planning.plan import preset_tokenizer

    cache = options["cache"]
    if weights is not None:
        return prepare_text(request, display, tokenizer=weights.tokenizer, cache=cache)
    tokenizer, vocab_size = options["tokenizer"], options["vocab_size"]
    if tokenizer is None and vocab_size is None:
        tokenizer, vocab_size = preset_tokenizer(options["preset"])
    return prepare_text(
        request, display, tokenizer=tokenizer or "auto", vocab_size=vocab_size, cache=cache
    )


def _choices(options: Mapping[str, Any], weights: Weights | None) -> Choices:
    """What is fixed: by the options, --until aside, and by weights that are there."""
    from andrea.planning.choices import Choices

    names = {field.name for field in dataclasses.fields(Choices)} & set(options)
    fixed = {name: options[name] for name in names} | given_switches(options)
    fixed["seed"] = options["seed"] or 0
    if weights is not None:
        fixed |= weights.shape(options["block_size"])
        fixed |= {"preset": None, "dialect": None, "is_tuning": True}
    return Choices(**fixed)


def _until(moment: float | None, train: Any) -> Any:
    """The settings with the time that is left until then, now that the run begins."""
    if moment is None:
        return train
    return dataclasses.replace(train, seconds=round(seconds_until(moment), 3))


def _plan(
    choices: Choices, data: PreparedData, display: Display, *, device: str, precision: str
) -> Plan:
    from andrea.planning.machine import available_memory, measure_flops
    from andrea.planning.memory import TooLarge
    from andrea.planning.plan import needs_speed, plan

    speed = None
    if needs_speed(choices):
        display.activity("measuring this machine")
        speed = measure_flops(device=device, precision=precision)
    try:
        return plan(
            choices,
            vocab_size=data.tokenizer.vocab_size,
            train_tokens=len(data.train),
            flops_per_second=speed,
            memory=available_memory(device),
            device=device,
            precision=precision,
        )
    except TooLarge as error:
        raise refusal(error, error.changes) from error


def _with_speed(plan: Plan, model: Any, display: Display) -> Plan:
    from andrea.planning.machine import probe

    display.activity("measuring the speed of a step")
    return plan.with_speed(probe(model, plan.train, seconds=_PROBE_SECONDS))
