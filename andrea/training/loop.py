"""The training loop, as a generator of step reports; whoever iterates shows them.

Step n: batches (seed, n) -> forward and backward, accumulated -> learning rate -> AdamW -> now and
then validation loss and checkpoint -> StepReport.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea.data import EvaluationWindows
from andrea.errors import CheckpointError, RunError
from andrea.judging.unigram import frequency_loss

from . import guards
from .clock import Clock
from .config import TrainConfig
from .reports import Evaluation, Notice, StepReport
from .schedule import schedule_of
from .state import TrainState
from .step import StepWork

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder

__all__ = ["Evaluation", "StepReport", "TrainConfig", "TrainState", "evaluate", "train"]


def train(
    model: GPT,
    data: PreparedData,
    config: TrainConfig,
    *,
    run: RunFolder | None = None,
    state: TrainState | None = None,
) -> Generator[StepReport, None, None]:
    """Train a model step by step; with `run`, write its log and checkpoints.

    It may be closed at any report; `run.save(model, state)` then keeps what was done. With
    config.steps the result is a pure function of seed, data and configuration, however often it was
    interrupted. With config.seconds the schedule follows the clock, and the time that the caller
    takes between two reports counts too.

    Raises:
        RunError: nothing is left to do, or loss or gradient were not finite 10 times in a row.
        CheckpointError: the first or the last checkpoint cannot be written.
        DataError: the text is too short for the model's block_size.
    """
    state = TrainState() if state is None else state
    loop = _Loop(model, data, config, run, state)
    if config.budget.is_spent(state.step, state.elapsed, closing=0.0, step_seconds=0.0):
        spent = f"{state.elapsed:.0f} seconds" if config.steps is None else f"{config.steps} steps"
        raise RunError(f"the run has done its {spent}; to go on, give it more than that")
    return loop.reports()


def evaluate(
    model: GPT, data: PreparedData, *, batch_size: int, max_windows: int = 64
) -> float | None:
    """Validation loss in nats per token, over fixed windows; None without validation text."""
    windows = _windows(model, data, batch_size, max_windows)
    return None if windows is None else windows.mean_loss(model.forward)


def _windows(
    model: GPT, data: PreparedData, batch_size: int, max_windows: int
) -> EvaluationWindows | None:
    if len(data.validation) < 2:
        return None
    return EvaluationWindows(data.validation, batch_size, model.config.block_size, max_windows)


class _Loop:
    def __init__(
        self,
        model: GPT,
        data: PreparedData,
        config: TrainConfig,
        run: RunFolder | None,
        state: TrainState,
    ) -> None:
        data.require(model.config.block_size)
        self.model, self.data, self.config, self.run, self.state = model, data, config, run, state
        self.work = StepWork(model, data.train, config)
        self.windows = _windows(model, data, config.batch_size, config.eval_windows)
        self.schedule = schedule_of(config)
        self.tokens_per_step = config.tokens_per_step(model.config.block_size)
        self.clock = Clock()
        self._is_save_due = False
        self._notices: list[Notice] = []

    def reports(self) -> Generator[StepReport, None, None]:
        state, config, budget, clock = self.state, self.config, self.config.budget, self.clock
        clock.start(state.elapsed)
        if self.run is not None and state.step == 0:
            # At once, so that a disk that is full or too slow is known before the work is done.
            self._save_now()
        is_last = False
        while not is_last:
            started = clock.elapsed
            progress = budget.progress(state.step, started, clock.closing)
            learning_rate = config.learning_rate * self.schedule.factor(state.step, progress)
            limits = guards.limits(state, config)
            loss, norm = self.work.do(state.step, learning_rate, limits)
            state.step += 1
            clock.add_step(clock.elapsed - started)
            tokens_per_second = self.tokens_per_step / clock.step_seconds
            verdict = guards.judge(state, config, loss, norm, limits)
            self._log_step(loss, learning_rate, norm, tokens_per_second, verdict)
            self._tell(*verdict.notices)
            if verdict.skipped or verdict.outlier is not None:
                self._record_incident(learning_rate, loss, norm, verdict)
            if state.skipped_in_row == config.max_skipped:
                raise RunError(self._diverged())
            self._look_at_learning()

            is_last, evaluates, saves = self._what_is_due()
            evaluation, stopped = self._evaluate() if evaluates else (None, None)
            is_last = is_last or stopped is not None
            if is_last and config.seconds is not None and stopped is None:
                # What the budget leaves is given up: the run is done, and a resume is to know it.
                state.elapsed = max(clock.elapsed, config.seconds)
            else:
                state.elapsed = clock.elapsed
            is_best = evaluation is not None and evaluation.is_best
            saved = self._save(saves, is_best=is_best, is_last=is_last)
            yielded = clock.elapsed
            notices, self._notices = tuple(self._notices), []
            yield StepReport(
                step=state.step,
                steps=config.steps,
                loss=loss,
                learning_rate=learning_rate,
                gradient_norm=norm,
                tokens=state.step * self.tokens_per_step,
                tokens_per_second=tokens_per_second,
                elapsed=yielded,
                progress=1.0 if is_last else budget.progress(state.step, yielded, clock.closing),
                seconds_left=0.0
                if is_last
                else budget.seconds_left(state.step, yielded, clock.step_seconds),
                skipped=verdict.skipped,
                evaluation=evaluation,
                saved=saved,
                notices=notices,
                stopped=stopped,
                is_last=is_last,
            )
            if evaluation is not None:
                clock.caller = max(clock.caller, clock.elapsed - yielded)

    def _what_is_due(self) -> tuple[bool, bool, bool]:
        """Whether this was the last step, whether to evaluate, whether to save."""
        config, step, clock = self.config, self.state.step, self.clock
        evaluates = config.eval_every > 0 and step % config.eval_every == 0
        saves = config.save_every > 0 and step % config.save_every == 0
        if self.windows is not None and clock.evaluation == 0:
            # Until one is measured: forward alone takes a third of a step's time; half, to be safe.
            tokens = self.windows.num_windows * self.model.config.block_size
            clock.evaluation = clock.step_seconds * tokens / self.tokens_per_step / 2
        upcoming = clock.elapsed
        upcoming += clock.evaluation + clock.caller if evaluates else 0.0
        upcoming += clock.copy if saves else 0.0
        is_last = config.budget.is_spent(step, upcoming, clock.closing, clock.step_seconds)
        return is_last, evaluates or is_last, saves

    def _evaluate(self) -> tuple[Evaluation | None, str | None]:
        """The evaluation, and why the run should end after it."""
        if self.windows is None:
            return None, None
        started = self.clock.elapsed
        loss = self.windows.mean_loss(self.model.forward)
        self.clock.evaluation = max(self.clock.evaluation, self.clock.elapsed - started)
        state = self.state
        is_best = math.isfinite(loss) and (state.best_loss is None or loss < state.best_loss)
        if is_best:
            state.best_loss, state.best_step = loss, state.step
        evaluation = Evaluation(loss, self.data.bits_per_byte(loss), is_best)
        self._log(
            "run.eval",
            step=state.step,
            eval="validation",
            score=loss,
            bits_per_byte=evaluation.bits_per_byte,
            best=is_best,
        )
        notices, stopped = guards.after_evaluation(state, self.config, evaluation)
        self._tell(*notices)
        return evaluation, stopped

    # ---- saving

    def _save_now(self) -> Path | None:
        """Save and wait until it is on the disk."""
        if self.run is None:
            return None
        started = self.clock.elapsed
        path = self.run.save(self.model, self.state)
        self.clock.save = max(self.clock.save, self.clock.elapsed - started)
        return path

    def _save(self, is_due: bool, *, is_best: bool, is_last: bool) -> Path | None:
        """Save what is due; the path of what got onto the disk since the last step.

        A save that is due while the disk is busy with another, or after a step that had to be
        skipped, waits for the next step; that of the best evaluation has to be of this one.
        """
        if self.run is None:
            return None
        if is_last:
            self.run.finish_save()
        saved = None
        while (written := self.run.take_written()) is not None:
            if written.error is not None:
                self._tell_failed_save(written.error)
            else:
                saved = written.path
                self.clock.save = max(self.clock.save, written.seconds)
        if is_last:
            return self._save_now()
        self._is_save_due = self._is_save_due or is_due
        if self.state.skipped_in_row:
            # Weights that give no loss are not what a run should go on from, though all are finite.
            return saved
        try:
            if is_best:
                self.run.finish_save()
            if is_best or self._is_save_due:
                started = self.clock.elapsed
                self._is_save_due = not self.run.begin_save(self.model, self.state)
                self.clock.copy = max(self.clock.copy, self.clock.elapsed - started)
        except (CheckpointError, RunError) as error:
            self._is_save_due = False  # until the next is: not at every step, while a disk is full
            self._tell_failed_save(error)
        return saved

    def _tell_failed_save(self, error: Exception) -> None:
        # Space may come back before the end; stopping now would lose more than going on.
        self._tell(Notice("save failed", f"{error}; training goes on"))

    # ---- what is told

    def _log(self, kind: str, /, **fields: Any) -> None:
        if self.run is not None:
            self.run.log(kind, **fields)

    def _log_step(
        self,
        loss: float,
        lr: float,
        norm: float,
        tokens_per_second: float,
        verdict: guards.Verdict,
    ) -> None:
        more: dict[str, Any] = {"skipped": True} if verdict.skipped else {}
        if verdict.outlier is not None:
            more["outlier"] = round(verdict.outlier, 2)
        self._log(
            "run.loss",
            step=self.state.step,
            loss=loss,
            lr=lr,
            gradient_norm=norm,
            tokens_per_second=round(tokens_per_second, 1),
            **more,
        )

    def _tell(self, *notices: Notice) -> None:
        for notice in notices:
            self._notices.append(notice)
            self._log("run.notice", step=self.state.step, kind=notice.kind, text=notice.text)

    def _look_at_learning(self) -> None:
        if guards.learning_is_judged(self.state, self.config):
            mean, usual = guards.mean_recent_loss(self.state), frequency_loss(self.data)
            notice = guards.not_learning(self.state, self.config, mean, usual)
            self._tell(*([notice] if notice is not None else []))

    def _record_incident(
        self, learning_rate: float, loss: float, norm: float, verdict: guards.Verdict
    ) -> None:
        """Keep what is needed to look at a bad step again, where the user was told of it."""
        if self.run is None or not verdict.notices:
            return
        from andrea.runs.incidents import record_incident

        try:
            record_incident(
                self.run.path,
                model=self.model,
                config=self.config,
                state=self.state,
                record=self.run.info.record,
                batches=self.work.batches(self.state.step - 1),
                learning_rate=learning_rate,
                loss=loss,
                norm=norm,
                skipped=verdict.skipped,
                outlier=verdict.outlier,
            )
        except RunError as error:
            self._tell_failed_save(error)

    def _diverged(self) -> str:
        config = self.config
        text = (
            f"loss or gradient was not finite in {config.max_skipped} steps in a row, the last is "
            f"{self.state.step}; try a lower learning rate than {config.learning_rate:g}"
        )
        if self.run is None:
            return text
        self.run.finish_save()
        return (
            f"{text}; the last good checkpoint is {self.run.checkpoint_path}, and "
            f"andrea replay {self.run.path} does the bad steps again"
        )
