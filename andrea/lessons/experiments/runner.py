"""Trains the variants of an experiment on the same data and seeds, and measures on the way.

Seed by seed, all variants of one before the next: whenever it is ended, the seeds that are done
have all their pairs. What is done does not depend on the clock, so that the same seeds give the
same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from andrea.data import BatchSampler, EvaluationWindows
from andrea.errors import ArgumentError, DataError, DeviceError
from andrea.judging.unigram import frequency_loss
from andrea.lessons.trace_forward import ForwardPass
from andrea.model import GPT
from andrea.planning.sizes import flops_per_token
from andrea.training.schedule import schedule_of

from .experiment import Experiment, Variant
from .results import Results
from .run import Run

if TYPE_CHECKING:
    from andrea.data import PreparedData

# A loss so far above that of guessing, in the mean of so many steps, is not coming back.
_NATS_ABOVE_GUESSING = 1.0
_STEPS_TO_JUDGE = 10


@dataclass(frozen=True)
class Progress:
    """How far an experiment is, after a step. fraction: of its work, in operations. finished: the
    run that this step ended."""

    variant: str
    seed: int
    step: int
    steps: int
    loss: float
    fraction: float
    finished: Run | None = None


class Runner:
    """Runs an experiment; `progress` does the work, and `results` tells what is done so far.

    Args:
        experiment: with models of the vocabulary of `data`.
        data: the text, for all variants.
        seeds: of weights and of the order of the data; default: 0, 1, ..., as many as the
            experiment says.
        device, precision: as of `GPT`; fp32, since small gradients are looked at.

    Raises:
        ArgumentError: a seed is there twice, or none is.
        DataError: the text is too short for a variant.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: PreparedData,
        *,
        seeds: tuple[int, ...] | None = None,
        device: str = "auto",
        precision: str = "fp32",
    ) -> None:
        self.experiment, self.data = experiment, data
        self.seeds = tuple(range(experiment.seeds)) if seeds is None else seeds
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ArgumentError(f"an experiment needs different seeds, got {self.seeds}")
        longest = max(variant.model.block_size for variant in experiment.variants) + 1
        if len(data.train) < longest or len(data.validation) < 2:
            raise DataError(
                f"the text is too short: it has {len(data.train):,} tokens to train on and "
                f"{len(data.validation):,} to validate, and needs {longest:,} and 2"
            )
        self._device, self._precision = device, precision
        self._runs: list[Run] = []
        self._description = ""

    @property
    def operations(self) -> float:
        """Floating-point operations of the training that there is to do."""
        return len(self.seeds) * sum(map(_operations, self.experiment.variants))

    def results(self) -> Results:
        """What was measured by the runs that are done."""
        return Results(self.experiment, tuple(self._runs), self.seeds, self.data, self._description)

    def progress(self) -> Iterator[Progress]:
        """Do all runs, a report after each step; it may be closed at any of them.

        Raises:
            DeviceError: the device or precision is not available.
            OutOfMemoryError: a model does not fit in memory.
        """
        done, all_work = 0.0, self.operations
        for seed in self.seeds:
            for variant in self.experiment.variants:
                work, steps = _operations(variant), variant.steps
                for step, loss, run in self._train(variant, seed):
                    if run is not None:
                        self._runs.append(run)
                    share = (done + work * step / steps) / all_work
                    yield Progress(variant.name, seed, step, steps, loss, share, run)
                done += work

    def _train(self, variant: Variant, seed: int) -> Iterator[tuple[int, float, Run | None]]:
        """Steps done, the loss, and after the last step the run."""
        model = GPT(variant.model, device=self._device, precision=self._precision, seed=seed)
        self._description = model.description
        recorder = _Recorder(variant, model, self.data, seed, self.experiment.gradient_steps)
        for step in range(variant.steps):
            loss = recorder.step(step)
            is_last = step + 1 == variant.steps or recorder.diverged is not None
            if is_last and recorder.diverged is None and self.experiment.after is not None:
                recorder.after = self.experiment.after(model, self.data)
            yield step + 1, loss, recorder.run() if is_last else None
            if is_last:
                break
        model.close()


class _Recorder:
    """One run: does its steps, and keeps what they tell."""

    def __init__(
        self,
        variant: Variant,
        model: GPT,
        data: PreparedData,
        seed: int,
        gradient_steps: tuple[float, ...],
    ) -> None:
        config = variant.train
        self._variant, self._model, self._seed, self._config = variant, model, seed, config
        block_size = variant.model.block_size
        self._sampler = BatchSampler(data.train, config.batch_size, block_size, seed)
        self._windows = EvaluationWindows(
            data.validation, config.batch_size, block_size, config.eval_windows
        )
        self._schedule = schedule_of(config)
        last = variant.steps - 1
        self._gradient_steps = {min(round(share * last), last) for share in gradient_steps}
        self._guess = math.log(variant.model.vocab_size)
        self._frequencies = frequency_loss(data)
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._validation: list[tuple[int, float]] = []
        self._gradients: dict[int, tuple[float, ...]] = {}
        self._stream: tuple[float, ...] = ()
        self.diverged: str | None = None
        self.after: Mapping[str, tuple[float, ...]] = {}

    def step(self, step: int) -> float:
        """Do a step; the loss of its batch before the update."""
        model, config = self._model, self._config
        inputs, targets = self._sampler.batch(step)
        if step == 0:
            self._stream = _stream_sizes(model, inputs[0])
        loss = model.forward_backward(inputs, targets)
        if step in self._gradient_steps:
            self._gradients[step] = block_gradient_norms(model)
        norm = model.step(
            config.learning_rate * self._schedule.factor(step, step / self._variant.steps),
            **config.adamw,
        )
        self._losses.append(loss)
        self._norms.append(norm)
        self.diverged = self._judge()
        if self.diverged is None:
            self._evaluate(step + 1)
        return loss

    def _judge(self) -> str | None:
        done = len(self._losses)
        if not (math.isfinite(self._losses[-1]) and math.isfinite(self._norms[-1])):
            return f"loss or gradient of step {done} is not finite"
        if done < self._config.warmup + _STEPS_TO_JUDGE:
            return None
        mean = math.fsum(self._losses[-_STEPS_TO_JUDGE:]) / _STEPS_TO_JUDGE
        if mean < self._guess + _NATS_ABOVE_GUESSING:
            return None
        return (
            f"the mean loss of the {_STEPS_TO_JUDGE} steps up to {done}, {mean:.3g}, is far above "
            f"that of guessing, {self._guess:.3g}"
        )

    def _evaluate(self, done: int) -> None:
        every = self._config.eval_every
        if done != self._variant.steps and not (every and done % every == 0):
            return
        loss = self._windows.mean_loss(self._model.forward)
        if math.isfinite(loss):
            self._validation.append((done, loss))
        else:
            self.diverged = f"the validation loss after {done} steps is not finite"

    def run(self) -> Run:
        """What was measured."""
        return Run(
            self._variant.name,
            self._seed,
            tuple(self._losses),
            tuple(self._norms),
            tuple(self._validation),
            self._gradients,
            self._stream,
            self.diverged,
            self._guess,
            self._frequencies,
            self.after,
        )


def block_gradient_norms(model: GPT) -> tuple[float, ...]:
    """The norm of the gradient of each block's parameters together, as it stands (n_layer,)."""
    squares = [0.0] * model.config.n_layer
    for name, tensor in model.tensors("gradients").items():
        place = name.split(".")
        if place[0] == "h":
            values = tensor.read().astype(np.float64)
            squares[int(place[1])] += float(np.square(values).sum())
    return tuple(map(math.sqrt, squares))


def _stream_sizes(model: GPT, tokens: np.ndarray) -> tuple[float, ...]:
    """Root mean squares of the residual stream after 0, 1, ... blocks, on one sequence."""
    try:
        forward = ForwardPass(model, tokens)
    except DeviceError:  # a GPU whose memory can't be looked into
        return ()
    depths = range(model.config.n_layer + 1)
    return tuple(math.sqrt(float(np.square(forward.stream(depth)).mean())) for depth in depths)


def _operations(variant: Variant) -> float:
    tokens = variant.steps * variant.train.tokens_per_step(variant.model.block_size)
    return float(tokens * flops_per_token(variant.model, training=True))
