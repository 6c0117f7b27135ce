"""`andrea train --resume RUN`: a recorded run goes on with its text, its settings and its state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .changes import Changes, refuse_new_shape
from .display import Display
from .errors import Failure
from .follow import Session, go_on, shell_path
from .formats import duration
from .plan_rows import machine_row, shape
from .signals import StopSignals
from .texts import TextRequest, data_record, prepare_text, text_rows

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder
    from andrea.training import TrainConfig, TrainState


def start(options: Mapping[str, Any], display: Display, stop: StopSignals) -> int:
    """Continue a run; returns the exit code.

    Raises:
        AndreaError: there is no such run, or it cannot go on with these options.
    """
    from andrea.runs.folder import RunFolder

    if options["out"] is not None:
        raise Failure("--out names the folder of a new run; a resumed one stays where it is")
    with RunFolder.open(Path(options["resume"])) as run:
        refuse_new_shape(options, run.info)
        changes = Changes()
        config = changes.train_config(options, run.config, run.state())
        _refuse_nothing_to_do(config, run)
        request = changes.text_request(options, run.info.record, shell_path(run.path))
        record = changes.record(options, run.info.record)
        data = _prepare(options, run, request, display, changes)
        data.tokenizer.encode(record["sample_prompt"] or "")
        display.activity("loading the model")
        model = _model(run, record, is_device_named=options["device"] is not None)
        record |= request.to_record() | data_record(data)
        state = run.resume(model, config=config, record=record)
        display.rows(
            [
                machine_row(model, record["device"]),
                *text_rows(request, data),
                ("model", f"{shape(model.config)}: {model.num_parameters:,} parameters"),
                ("training", _remaining(config, state)),
                *(("changed", text) for text in changes.told),
                ("run", shell_path(run.path)),
            ]
        )
        display.line()
        prompt = record["sample_prompt"]
        return Session(model, data, config, run, state, prompt, display, stop).follow()


def _model(run: RunFolder, record: Mapping[str, Any], *, is_device_named: bool) -> GPT:
    """A model on the run's device, which may be missing where the run is continued."""
    from andrea.errors import DeviceError
    from andrea.model import GPT

    try:
        return GPT(run.info.model, device=record["device"], precision=record["precision"])
    except DeviceError as error:
        if is_device_named or record["device"] in ("auto", "cpu"):
            raise
        raise Failure(f"{error}; to go on here, add --device cpu or --device auto") from error


def _refuse_nothing_to_do(config: TrainConfig, run: RunFolder) -> None:
    state, path = run.state(), shell_path(run.path)
    if config.budget.is_spent(state.step, state.elapsed, closing=0.0, step_seconds=0.0):
        length = f"{config.steps:,} steps" if config.steps else duration(config.seconds or 0)
        raise Failure(
            f"{path} has done its {length}; to go on: "
            f"andrea train --resume {path} {go_on(config, state)}"
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
