"""`andrea train --resume RUN`: a recorded run goes on with its text, its settings and its state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Failure
from ..recorded import check_record
from ..screen.display import Display
from ..screen.formats import duration
from ..texts import TextRequest, data_record, prepare_text, text_rows
from . import about_run, config_file
from .changes import Changes, rate_change, refuse_new_shape
from .follow import Session, go_on, resume_command, shell_path
from .plan_rows import machine_row, model_rows, resource_rows
from .resources import Resources
from .settings import refusal
from .signals import StopSignals

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.runs.folder import RunFolder
    from andrea.training import TrainConfig, TrainState


def start(options: Mapping[str, Any], display: Display, stop: StopSignals) -> int:
    """Continue a run; returns the exit code.

    Raises:
        AndreaError: there is no such run, or it cannot go on with these options.
    """
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder

    if options["out"] is not None:
        raise Failure("--out names the folder of a new run; a resumed one stays where it is")
    with RunFolder.open(Path(options["resume"])) as run:
        check_record(run)
        for line in run.damaged:
            display.line(line, style="yellow")
        refuse_new_shape(options, run.info)
        changes = Changes()
        # At once: a setting out of its range needs no text to be prepared.
        config = changes.train_config(options, run.config, run.state())
        if options["tokens"] is None and options["epochs"] is None:
            _refuse_nothing_to_do(config, run)
        request = changes.text_request(options, run.info.record, shell_path(run.path))
        record = changes.record(options, run.info.record)
        data = _prepare(options, run, request, display, changes)
        config = changes.with_length(
            options, run.config, config, run.state(), run.info.model, len(data.train)
        )
        _refuse_nothing_to_do(config, run)
        rate = rate_change(run.config, config, run.state())
        data.tokenizer.encode(record["sample_prompt"] or "")
        resources = _resources(options, run, config, record, data)
        resources.refuse_full_disk()
        with resources.explained():
            display.activity("loading the model")
            model = GPT(run.info.model, device=record["device"], precision=record["precision"])
            record |= request.to_record() | data_record(data)
            about = {
                "environment": about_run.environment(model),
                "data": about_run.text_summary(request, data),
            }
            state = run.resume(model, config=config, record=record, about=about)
            config_file.write(run, data.tokenizer, model.description, options)
            display.rows(
                [
                    machine_row(model, record["device"]),
                    *text_rows(request, data),
                    *model_rows(model.config, model.num_parameters),
                    *resource_rows(resources),
                    ("training", _remaining(config, state)),
                    *(("changed", text) for text in changes.told),
                    *([] if rate is None else [("rate", rate)]),
                    *(("set aside", shell_path(path)) for path in run.set_aside),
                    ("run", shell_path(run.path)),
                ]
            )
            display.line()
            prompt = record["sample_prompt"]
            return Session(model, data, config, run, state, prompt, display, stop).follow()


def _resources(
    options: Mapping[str, Any],
    run: RunFolder,
    config: TrainConfig,
    record: Mapping[str, Any],
    data: PreparedData,
) -> Resources:
    """What the run takes here.

    Raises:
        Failure: it does not fit in memory; with a command that does, where there is one.
    """
    from andrea.errors import DeviceError
    from andrea.planning.choices import Choices
    from andrea.planning.machine import available_memory
    from andrea.planning.memory import Room, TooLarge

    device, model = record["device"], run.info.model
    # The weights are there: no other model is proposed.
    fixed = Choices(is_tuning=True)
    try:
        room = Room(available_memory(device), device, record["precision"])
        needed = room.check(fixed, model, config.batch_size, config.accumulate, len(data.train))
    except TooLarge as error:
        raise refusal(error, error.changes) from error
    except DeviceError as error:
        # The device of a run may be missing where the run is continued.
        if options["device"] is not None or device in ("auto", "cpu"):
            raise
        raise Failure(f"{error}; to go on here, add --device cpu or --device auto") from error
    return Resources.of(model, config, needed, device=device, folder=run.path, data=data)


def _refuse_nothing_to_do(config: TrainConfig, run: RunFolder) -> None:
    state, path = run.state(), shell_path(run.path)
    if config.budget.is_spent(state.step, state.elapsed, closing=0.0, step_seconds=0.0):
        length = f"{config.steps:,} steps" if config.steps else duration(config.seconds or 0)
        raise Failure(
            f"{path} has done its {length}; to go on: {resume_command(run, go_on(config, state))}"
        )


def _prepare(
    options: Mapping[str, Any],
    run: RunFolder,
    request: TextRequest,
    display: Display,
    changes: Changes,
) -> PreparedData:
    data = prepare_text(request, display, tokenizer=run.tokenizer(), cache=options["cache"])
    if data.fingerprint != run.info.record.get("fingerprint"):
        if not changes.is_text_named:
            path = shell_path(run.path)
            raise Failure(
                f"{request.describe()} is not the text that {path} learned from (its fingerprint "
                "differs): to go on with it all the same, name it, andrea train "
                f"--resume {path} TEXT"
            )
        changes.told.append("text: another than before, or read in another way")
    data.require(run.info.model.block_size)
    return data


def _remaining(config: TrainConfig, state: TrainState) -> str:
    if config.steps is not None:
        return f"from step {state.step:,} to {config.steps:,}"
    left = max((config.seconds or 0) - state.elapsed, 0)
    return f"from step {state.step:,}, for {duration(left)}"
