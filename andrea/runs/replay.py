"""A bad step once more: from the newest checkpoint before it, by the same steps, to the same bits.

For `andrea replay`, and for whoever looks for what made a loss explode.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from andrea.closing import Closing
from andrea.errors import CheckpointError, RunError
from andrea.reporting.events import LOG_NAME, finite, read_events, whole
from andrea.training import TrainState, guards
from andrea.training.measure import Measurement, measure
from andrea.training.schedule import schedule_of
from andrea.training.step import StepWork

from .checkpoint import Checkpoint, tokenizer_of
from .store import CheckpointStore

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

    from .incident_file import Incident


@dataclass(frozen=True)
class Replayed:
    """What came of a bad step that was done again.

    skipped, z, loss, norm, measured: as in Incident. compared: steps on the way, the bad one
    included, whose losses the log tells, too. first_different: the first of them with another loss
    or norm, None where there is none. different: what is not the same bits in the bad step, by
    name: "loss", "norm", "gradients wte.weight" and so on.
    """

    skipped: bool
    z: float | None
    loss: float
    norm: float
    measured: Measurement
    compared: int
    first_different: int | None
    different: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether the step is the recorded one, bit for bit."""
        return not self.different


class Replay(Closing):
    """An incident of a run, and the checkpoint from which its step can be reached.

    damaged: a line about each newer checkpoint that can't be used.

    Raises:
        RunError: no checkpoint of before the step is left, or it is of another model.
    """

    def __init__(self, run: Path, incident: Incident) -> None:
        """Open the newest intact checkpoint before the bad step."""
        self.run, self.incident = run, incident
        self.checkpoint, self.damaged = _checkpoint_before(run, incident.step)
        self.state = TrainState.from_dict(self.checkpoint.info.state or {})
        if self.checkpoint.info.model != incident.model:
            self.close()
            raise RunError(f"step {incident.step} was recorded of another model than that of {run}")

    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer.

        Raises:
            CheckpointError: its vocabulary is not the model's.
        """
        return tokenizer_of(self.checkpoint.path, self.checkpoint.info)

    def do(
        self, model: GPT, data: PreparedData, progress: Callable[[int], None] | None = None
    ) -> Replayed:
        """Train from the checkpoint up to the bad step, do that, and measure as was done then.

        `progress` hears the number of each step that is done.

        Raises:
            RunError: the text gives other batches than the recorded ones, or what the learning
                rates were is not known.
            CheckpointError: the model is not of the checkpoint's shape.
        """
        incident = self.incident
        config, state = incident.config, TrainState.from_dict(self.state.to_dict(timed=True))
        work = StepWork(model, data.train, config)
        self._refuse_other_batches(work)
        told = _told_losses(self.run / LOG_NAME, state.step, incident.step)
        rates = self._learning_rates(told)
        self.checkpoint.load(model, moments=True)

        compared, first_different = 0, None
        for step, learning_rate in rates:
            limits = guards.limits(state, config)
            loss, norm = work.do(state.step, learning_rate, limits)
            state.step = step
            verdict = guards.judge(state, config, loss, norm, limits)
            if step in told:
                compared += 1
                if first_different is None and not told[step].is_of(loss, norm):
                    first_different = step
            if progress is not None:
                progress(step)
        measured = measure(model, work.batches(incident.step - 1))
        return Replayed(
            skipped=verdict.skipped,
            z=verdict.outlier,
            loss=loss,
            norm=norm,
            measured=measured,
            compared=compared,
            first_different=first_different,
            different=tuple(_differences(incident, loss, norm, measured)),
        )

    def _refuse_other_batches(self, work: StepWork) -> None:
        incident = self.incident
        batches = work.batches(incident.step - 1)
        for index, recorded in enumerate((incident.inputs, incident.targets)):
            if not np.array_equal(np.stack([batch[index] for batch in batches]), recorded):
                raise RunError(
                    f"the text gives other batches for step {incident.step} than those recorded: "
                    "it is not the text that the run learned from, or it is read in another way"
                )

    def _learning_rates(self, told: dict[int, _Told]) -> list[tuple[int, float]]:
        """Each step to do with its learning rate: by the schedule, or as the log tells them."""
        incident, config = self.incident, self.incident.config
        steps = range(self.state.step + 1, incident.step + 1)
        if config.steps is not None:
            schedule, budget = schedule_of(config), config.budget
            factors = [schedule.factor(n - 1, budget.progress(n - 1, 0.0, 0.0)) for n in steps]
            rates = [config.learning_rate * factor for factor in factors]
            if rates[-1] == incident.learning_rate:
                return list(zip(steps, rates, strict=True))
        missing = [n for n in steps if n not in told and n != incident.step]
        if missing:
            raise RunError(
                f"{self.run / LOG_NAME} does not tell the learning rate of step {missing[0]}, "
                "which followed the clock: the way to the bad step is lost"
            )
        return [
            (n, incident.learning_rate if n == incident.step else told[n].learning_rate)
            for n in steps
        ]

    def close(self) -> None:
        """Close the checkpoint; a second call does nothing."""
        self.checkpoint.close()


@dataclass(frozen=True)
class _Told:
    """What the log tells of a step; None where a number was not finite."""

    learning_rate: float
    loss: float | None
    norm: float | None

    def is_of(self, loss: float, norm: float) -> bool:
        return (self.loss, self.norm) == (finite(loss), finite(norm))


def _told_losses(log: Path, after: int, last: int) -> dict[int, _Told]:
    """Of the steps `after` + 1 to `last`, what the log tells; a log that can't be read: nothing."""
    told: dict[int, _Told] = {}
    with contextlib.suppress(RunError):
        for event in read_events(log):
            step, rate = whole(event.get("step")), finite(event.get("lr"))
            if event.get("type") != "run.loss" or step is None or rate is None:
                continue
            if after < step <= last:
                loss, norm = finite(event.get("loss")), finite(event.get("gradient_norm"))
                told[step] = _Told(rate, loss, norm)
    return told


def _checkpoint_before(run: Path, step: int) -> tuple[Checkpoint, tuple[str, ...]]:
    damaged: list[str] = []
    for path in CheckpointStore(run).paths():
        try:
            checkpoint = Checkpoint(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        state = checkpoint.info.state
        if state is not None and TrainState.from_dict(state).step < step:
            return checkpoint, tuple(damaged)
        checkpoint.close()
    why = f": {damaged[0]}" if damaged else ""
    raise RunError(f"{run} has no checkpoint left of before step {step}, to replay it from{why}")


def _differences(
    incident: Incident, loss: float, norm: float, measured: Measurement
) -> Iterator[str]:
    for name, found, recorded in (("loss", loss, incident.loss), ("norm", norm, incident.norm)):
        if not _is_equal(found, recorded):
            yield name
    recorded_sizes = {(kind, name): size for kind, name, size in incident.measured.layers()}
    for kind, name, size in measured.layers():
        if recorded_sizes.pop((kind, name), None) != size:
            yield f"{kind} {name}"
    # What only one of the two could measure: activations on a GPU, without CuPy.
    yield from (f"{kind} {name}" for kind, name in recorded_sizes)


def _is_equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
