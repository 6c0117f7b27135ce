"""The flight recorder: what is needed to look at a bad step again, a file for each.

A file holds the step's batches, what it gave, and how large the model's tensors were. At most 20
are kept, the first 10 and the last 10 of a run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from andrea.errors import RunError
from andrea.training.measure import measure

from .incident_file import Incident, encode
from .store import step_of_name
from .whole_file import whole_file, write_all

if TYPE_CHECKING:
    from andrea.data.batches import Batch
    from andrea.model import GPT
    from andrea.training import TrainConfig, TrainState

FOLDER_NAME = "incidents"

_KEPT_FIRST = _KEPT_LAST = 10
_NAME = re.compile(r"step-(\d+)\.npz")


def record_incident(
    run: Path,
    *,
    model: GPT,
    config: TrainConfig,
    state: TrainState,
    record: Mapping[str, Any],
    batches: Sequence[Batch],
    learning_rate: float,
    loss: float,
    norm: float,
    skipped: bool,
    outlier: float | None,
) -> Path:
    """Write the file of the step that state.step counts already, and return its path.

    The batches are run once more, to measure; parameters, moments and step_count stay as they are,
    and gradients end as 0. `record` is the run's.

    Raises:
        RunError: the disk is full or refuses.
    """
    from andrea import instruction_set

    incident = Incident(
        step=state.step,
        reason="not finite" if outlier is None else "outlier",
        z=outlier,
        loss=loss,
        norm=norm,
        learning_rate=learning_rate,
        updated=not skipped,
        model=model.config,
        config=config,
        state=state,
        device=model.device,
        precision=model.precision,
        isa=instruction_set() if model.device == "cpu" else "",
        record=record,
        measured=measure(model, batches),
        inputs=np.stack([inputs for inputs, _ in batches]),
        targets=np.stack([targets for _, targets in batches]),
    )
    folder = run / FOLDER_NAME
    path = folder / f"step-{state.step:08}.npz"
    try:
        folder.mkdir(exist_ok=True)
        with whole_file(path) as descriptor:
            write_all(descriptor, encode(incident))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    left = folder.glob("step-*.npz.tmp")  # by processes that were killed
    for old in (*left, *incident_paths(run)[_KEPT_FIRST:-_KEPT_LAST]):
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def incident_paths(run: Path) -> list[Path]:
    """The files of a run's bad steps, first one first."""
    try:
        found = [path for path in (run / FOLDER_NAME).iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return []
    return sorted(found, key=step_of_path)


def step_of_path(path: Path) -> int:
    """The step in the name of an incident's file."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is no name of an incident")
    return int(match.group(1))


def pinned_checkpoints(run: Path, checkpoints: Iterable[Path]) -> set[Path]:
    """Of a run's checkpoints, those that its first and its last bad step are replayed from."""
    steps = [step_of_path(path) for path in incident_paths(run)]
    by_step = {step_of_name(path.name): path for path in checkpoints}
    pinned = set()
    for bad in {*steps[:1], *steps[-1:]}:
        earlier = [step for step in by_step if step < bad]
        if earlier:
            pinned.add(by_step[max(earlier)])
    return pinned
