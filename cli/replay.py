"""`andrea replay RUN`: a step that went wrong is done once more, beside what was recorded of it."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import Failure
from .option_kinds import SectionCommand, SomePath, option
from .options import at_least_1, machine_options, run_argument, text_argument
from .recorded import check_values
from .screen.display import Display, answer_display
from .texts import STANDARD_INPUT, TextRequest, absolute_sources, prepare_text
from .training.follow import shell_path

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.model import GPT
    from andrea.runs.incident_file import Incident
    from andrea.runs.replay import Replay, Replayed
    from andrea.training.measure import Measurement

_EPILOG = """\b
andrea replay runs/book               the bad step; of several, a list
andrea replay runs/book --step 1234
"""


@click.command(
    "replay", cls=SectionCommand, short_help="Do a step that went wrong again.", epilog=_EPILOG
)
@run_argument
@text_argument
@option(
    "--step",
    section="Options",
    type=at_least_1,
    help="Which one.  [default: the only one, or a list]",
)
@option("--json", "as_json", section="Options", is_flag=True, help="Print JSON for programs.")
@option(
    "--cache",
    section="Options",
    type=SomePath(),
    metavar="FOLDER",
    help="Where tokens of texts are kept.  [default: the user's cache folder]",
)
@machine_options
def command(run: str, text: tuple[str, ...], **options: Any) -> None:
    """Do a step of RUN again whose loss or gradient was not finite, or an outlier.

    The model learns from the newest checkpoint before it up to that step, which then gives the same
    bits as it did: loss, gradient norm, and how large each layer's numbers are. TEXT says where the
    text is, if it is no longer where it was.
    """
    if options["threads"] is not None:
        import andrea

        andrea.set_num_threads(options["threads"])
    from .replay_text import list_lines, replay_lines

    folder = _folder(Path(run))
    incidents = _incidents(folder, options["step"])
    width = shutil.get_terminal_size().columns
    if len(incidents) > 1:
        facts: Any = {"run": str(folder), "incidents": [_summary(each) for each in incidents]}
        lines = list_lines(facts, shell_path(folder))
    else:
        display = answer_display(options["as_json"])
        try:
            facts = _replay(folder, incidents[0], text, options, display)
        finally:
            display.close()
        lines = replay_lines(facts, width)
    if options["as_json"]:
        click.echo(json.dumps(facts, indent=2, allow_nan=False))
        return
    for line in lines:
        click.echo(line)


def _folder(path: Path) -> Path:
    """The run's folder, named by itself or by one of its checkpoints or incidents."""
    if path.is_file() and path.parent.name in ("checkpoints", "incidents"):
        return path.parent.parent
    if not path.is_dir():
        raise Failure(f"{path} isn't there; give the folder of a run, as `andrea train` printed it")
    return path


def _incidents(folder: Path, step: int | None) -> list[Incident]:
    """The recorded step that is asked for, or all of them.

    Raises:
        Failure: there is none, or not this one.
        RunError: a file is damaged.
        CheckpointError: a file's record is not one of `andrea train`.
    """
    from andrea.runs.incident_file import read_incident
    from andrea.runs.incidents import incident_paths, step_of_path

    paths = incident_paths(folder)
    if not paths:
        raise Failure(f"{shell_path(folder)} has recorded no step that went wrong")
    if step is not None:
        known = ", ".join(str(step_of_path(path)) for path in paths)
        paths = [path for path in paths if step_of_path(path) == step]
        if not paths:
            raise Failure(f"{shell_path(folder)} has no record of step {step}; of these: {known}")
    incidents = [read_incident(path) for path in paths]
    for incident, path in zip(incidents, paths, strict=True):
        check_values(incident.record, path)
    return incidents


def _replay(
    folder: Path,
    incident: Incident,
    text: tuple[str, ...],
    options: Mapping[str, Any],
    display: Display,
) -> dict[str, Any]:
    from andrea.runs.replay import Replay

    with Replay(folder, incident) as replay:
        data = _data(replay, text, options, display)
        model = _model(replay, options)
        first, steps = replay.state.step, incident.step - replay.state.step

        def tell(step: int) -> None:
            display.activity(f"step {step:,}", (step - first) / steps)

        done = replay.do(model, data, tell)
        return {
            "run": str(folder),
            **_summary(incident),
            "recorded_on": _machine(incident.device, incident.precision, incident.isa),
            "replayed_on": _machine(model.device, model.precision, _isa(model)),
            "checkpoint": str(replay.checkpoint.path),
            "damaged": list(replay.damaged),
            "steps": steps,
            "compared": done.compared,
            "first_different": done.first_different,
            "is_same": done.is_same,
            "different": list(done.different),
            "recorded": _facts(incident, incident.measured),
            "replayed": _facts(done, done.measured),
        }


def _data(
    replay: Replay, text: tuple[str, ...], options: Mapping[str, Any], display: Display
) -> PreparedData:
    """The text that the run learned from when the step went wrong.

    Raises:
        Failure: it is another one, or gone.
    """
    incident = replay.incident
    again = f"andrea replay {shell_path(replay.run)} TEXT --step {incident.step}"
    if not text and "sources" not in incident.record:
        raise Failure(f"the run does not say what text it learned from: name it, {again}")
    request = TextRequest.from_record({"sources": (), **incident.record})
    if text:
        request = dataclasses.replace(request, sources=absolute_sources(text))
    elif STANDARD_INPUT in request.sources:
        raise Failure(f"the run learned from standard input: give the text again, {again}")
    data = prepare_text(request, display, tokenizer=replay.tokenizer(), cache=options["cache"])
    recorded = incident.record.get("fingerprint")
    if recorded is not None and data.fingerprint != recorded:
        raise Failure(
            f"{request.describe()} is not the text that the run learned from (its fingerprint "
            f"differs): name that one, {again}"
        )
    return data


def _model(replay: Replay, options: Mapping[str, Any]) -> GPT:
    from andrea.errors import DeviceError
    from andrea.model import GPT

    incident = replay.incident
    device = options["device"] or incident.device
    try:
        return GPT(
            replay.checkpoint.info.model,
            device=device,
            precision=options["precision"] or incident.precision,
        )
    except DeviceError as error:
        if options["device"] is not None:
            raise
        raise Failure(f"{error}; --device and --precision name others, with other bits") from error


def _isa(model: GPT) -> str:
    from andrea import instruction_set

    return instruction_set() if model.device == "cpu" else ""


def _machine(device: str, precision: str, isa: str) -> str:
    return ", ".join(part for part in (device, precision, isa) if part)


def _summary(incident: Incident) -> dict[str, Any]:
    return {
        "step": incident.step,
        "reason": incident.reason,
        "z": _finite(incident.z),
        "loss": _finite(incident.loss),
        "gradient_norm": _finite(incident.norm),
        "learning_rate": incident.learning_rate,
        "updated": incident.updated,
        "first_not_finite": incident.measured.first_not_finite,
    }


def _facts(step: Incident | Replayed, measured: Measurement) -> dict[str, Any]:
    from andrea.training.measure import KINDS

    return {
        "loss": _finite(step.loss),
        "gradient_norm": _finite(step.norm),
        "z": _finite(step.z),
        "losses": [_finite(loss) for loss in measured.losses],
        "first_not_finite": measured.first_not_finite,
        "sizes": {
            kind: {name: size._asdict() for name, size in getattr(measured, kind).items()}
            for kind in KINDS
        },
    }


def _finite(value: float | None) -> float | None:
    """JSON knows no other numbers."""
    return value if value is None or math.isfinite(value) else None
