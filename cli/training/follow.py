"""Follows a training run: draws its reports, shows samples, saves when it is told to stop."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..screen.display import Display, Progress
from ..screen.formats import duration
from ..texts import STANDARD_INPUT
from .signals import StopSignals

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.judging.glimpse import Glimpse
    from andrea.model import GPT
    from andrea.reporting.writer import ReportWriter
    from andrea.runs.folder import RunFolder
    from andrea.training import StepReport, TrainConfig, TrainState
    from andrea.training.reports import Notice


def shell_path(path: Path) -> str:
    """A path as it can be pasted into a shell: relative inside the current folder, quoted."""
    relative = os.path.relpath(path)
    if relative.startswith("-"):
        relative = os.path.join(os.curdir, relative)  # no option
    return shlex.quote(os.path.abspath(path) if relative.startswith(os.pardir) else relative)


@dataclass
class Session:
    """A run that is ready to train, and where it is shown.

    `prompt` is what its samples continue; None: a fresh start.
    """

    model: GPT
    data: PreparedData
    config: TrainConfig
    run: RunFolder
    state: TrainState
    prompt: str | None
    display: Display
    stop: StopSignals
    validation_loss: float | None = None

    def follow(self) -> int:
        """Train to the end, or until a signal or a guard ends it; returns the exit code.

        Raises:
            RunError: nothing is left to do, or training cannot go on.
            CheckpointError: the first or the last checkpoint cannot be written.
        """
        from andrea.training import train

        started = time.monotonic()
        report: StepReport | None = None
        reason: str | None = None
        reports = train(self.model, self.data, self.config, run=self.run, state=self.state)
        self.display.activity("taking the first step")
        with self._listeners(), self.stop.postponed(self._tell_stop):
            for report in reports:
                try:
                    reason = report.stopped or self._show(report)
                except BaseException:
                    # A closed pipe, say: what cannot be shown must not cost what was learned.
                    self.run.save(self.model, self.state)
                    raise
                if report.is_last:
                    break
                if self.stop.requested or reason is not None:
                    reports.close()
                    self.run.save(self.model, self.state)
                    break
                if self.stop.take_save_request():
                    self._save_on_request()
            seconds = time.monotonic() - started
            is_complete = report is not None and report.is_last and reason is None
            self.display.close()
            why = "complete" if is_complete else reason or "stopped by a signal"
            self.run.end(self.validation_loss, seconds, why)
        self._tell_end(seconds, is_complete=is_complete, reason=reason)
        return self.stop.exit_code

    @contextlib.contextmanager
    def _listeners(self) -> Iterator[None]:
        """What hears every event of the log: the report, and TensorBoard's files."""
        record = self.run.info.record
        with contextlib.ExitStack() as stack:
            if record.get("report") is not False:
                from andrea.reporting.writer import ReportWriter

                report = stack.enter_context(ReportWriter(self.run.path))
                self.run.subscribe(report)
                stack.callback(self._tell_problem, report)
            if record.get("tensorboard"):
                from andrea.reporting.tensorboard import TensorBoardWriter

                writer = TensorBoardWriter(self.run.path / "tensorboard")
                self.run.subscribe(stack.enter_context(writer))
            yield

    def _tell_problem(self, report: ReportWriter) -> None:
        if report.problem is not None:
            self.display.line(f"no report: {report.problem}", style="yellow")

    def _tell_stop(self) -> None:
        self.display.line("stopping: saves after this step; Ctrl-C again exits at once")

    def _save_on_request(self) -> None:
        from andrea.errors import CheckpointError, RunError

        try:
            path = self.run.save(self.model, self.state)
        except (CheckpointError, RunError) as error:
            self.display.line(f"{error}; training goes on", style="yellow")
        else:
            self.display.line(f"saved step {self.state.step:,} as asked for: {shell_path(path)}")

    def _show(self, report: StepReport) -> str | None:
        """Show what happened; why the run should end, as far as its sample says so."""
        if report.evaluation is not None:
            self.validation_loss = report.evaluation.loss
        for notice in report.notices:
            self.display.line(notice.text, style="yellow")
        progress = Progress(
            step=report.step,
            steps=report.steps,
            fraction=report.progress,
            loss=report.loss,
            validation_loss=self.validation_loss,
            tokens_per_second=report.tokens_per_second,
            seconds_left=report.seconds_left,
            learning_rate=report.learning_rate,
            gradient_norm=report.gradient_norm,
        )
        # Without validation text nothing is evaluated; samples come at the same steps.
        is_due = self.config.eval_every > 0 and report.step % self.config.eval_every == 0
        if not (report.evaluation or report.is_last or is_due):
            if not self.stop.requested:
                self.display.progress(progress)
            return None
        remark = ""
        if report.evaluation is not None:
            remark = f"{report.evaluation.bits_per_byte:.3f} bits/byte"
            remark += "  best" if report.evaluation.is_best else ""
        self.display.milestone(progress, remark)
        # A gate judges every sample, for a resumed run to judge the same ones.
        if self.stop.requested and not self.config.coherence_gate:
            return None
        return self._sample(report)

    @cached_property
    def _glimpse(self) -> Glimpse:
        from andrea.judging.glimpse import Glimpse

        gated = self.config.coherence_gate > 0
        return Glimpse(
            self.model,
            self.data,
            prompt=self.prompt,
            max_tokens=self.run.info.record.get("sample_tokens"),
            seed=self.config.seed,
            is_stopped=lambda: self.stop.requested and not gated,
            **({"max_seconds": None} if gated else {}),
        )

    def _sample(self, report: StepReport) -> str | None:
        from andrea.errors import AndreaError
        from andrea.training import guards
        from andrea.training.reports import Notice

        self.display.activity("writing a sample")
        score = 0.0
        try:
            sample = self._glimpse.write()
        except AndreaError as error:
            # Weights that can't write, say; the guards of training know more about it.
            self._tell(report, Notice("no sample", f"no sample after step {report.step}: {error}"))
        else:
            score = sample.coherence.score
            self.display.sample(sample.text)
            self.run.log_sample(
                report.step,
                sample.text,
                report.loss,
                prompt=self.prompt,
                coherence=round(score, 1) if sample.is_whole else None,
            )
        if not self.config.coherence_gate:
            return None
        notices, stopped = guards.after_sample(self.state, self.config, score)
        for notice in notices:
            self._tell(report, notice)
        return stopped

    def _tell(self, report: StepReport, notice: Notice) -> None:
        self.display.line(notice.text, style="yellow")
        self.run.log("run.notice", step=report.step, kind=notice.kind, text=notice.text)

    def _tell_end(self, seconds: float, *, is_complete: bool, reason: str | None) -> None:
        state, folder = self.state, shell_path(self.run.path)
        what = "done" if is_complete else "stopped and saved"
        best = ""
        if state.best_loss is not None and state.best_step is not None:
            best = f"; best validation loss {state.best_loss:.4f}, at step {state.best_step:,}"
        more = go_on(self.config, state) if is_complete else ""
        self.display.line()
        self.display.line(f"{what}: {state.step:,} steps, {duration(seconds)}{best}", style="bold")
        if reason is not None:
            self.display.line(f"because {reason}")
        is_older = state.best_step is not None and state.best_step < state.step
        self.display.rows(
            [
                ("write", f"andrea sample {folder}{' --best' if is_older else ''}"),
                *self._report_row(),
                ("continue", resume_command(self.run, more)),
            ]
        )

    def _report_row(self) -> list[tuple[str, str]]:
        path = self.run.path / "report.html"
        return [("look", shell_path(path))] if path.exists() else []


def resume_command(run: RunFolder, more: str = "") -> str:
    """The command that goes on with a run, with more options.

    Standard input cannot be read again: TEXT stands for what has to be named in its place.
    """
    text = "TEXT" if STANDARD_INPUT in run.info.record.get("sources", ()) else ""
    return " ".join(filter(None, ["andrea train --resume", shell_path(run.path), text, more]))


def go_on(config: TrainConfig, state: TrainState) -> str:
    """The option that lets a run that is complete go on for as long again."""
    return f"--steps {2 * state.step}" if config.steps else f"--for {round(config.seconds or 60)}s"
