"""Follows a training run: draws its reports, shows samples, saves when it is told to stop."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .display import Display, Progress
from .formats import duration
from .signals import StopSignals

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.model import GPT
    from andrea.runs.folder import RunFolder
    from andrea.tokenizers import Tokenizer
    from andrea.training import StepReport, TrainConfig, TrainState

# A sample while training is a glance: so many bytes of text, and never longer than this.
_SAMPLE_BYTES = 320
_SAMPLE_SECONDS = 3.0


def opening(tokenizer: Tokenizer, documents: int | None) -> str:
    """The prompt that asks for a fresh start.

    Empty, the start of a document, where the model saw many of them; a new line where the text was
    one document, whose start the model saw once.
    """
    from andrea.errors import TokenizerError

    if documents is None or documents > 1:
        return ""
    try:
        tokenizer.encode("\n")
    except TokenizerError:
        return ""
    return "\n"


def shell_path(path: Path) -> str:
    """A path as it can be pasted into a shell: relative inside the current folder, quoted."""
    relative = os.path.relpath(path)
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
        """Train to the end, or until a signal; returns the exit code.

        Raises:
            RunError: nothing is left to do, or training cannot go on.
            CheckpointError: the first or the last checkpoint cannot be written.
        """
        from andrea.training import train

        started = time.monotonic()
        report: StepReport | None = None
        reports = train(self.model, self.data, self.config, run=self.run, state=self.state)
        self.display.activity("taking the first step")
        with self.stop.postponed(self._tell_stop):
            for report in reports:
                try:
                    self._show(report)
                except BaseException:
                    # A closed pipe, say: what cannot be shown must not cost what was learned.
                    self.run.save(self.model, self.state)
                    raise
                if self.stop.requested and not report.is_last:
                    reports.close()
                    self.run.save(self.model, self.state)
                    break
        seconds = time.monotonic() - started
        self.display.close()
        self.run.end(self.validation_loss, seconds)
        self._tell_end(seconds, is_complete=report is not None and report.is_last)
        return self.stop.exit_code

    def _tell_stop(self) -> None:
        self.display.line("stopping: saves after this step; Ctrl-C again exits at once")

    def _show(self, report: StepReport) -> None:
        if report.evaluation is not None:
            self.validation_loss = report.evaluation.loss
        if report.warning:
            self.display.line(report.warning, style="yellow")
        progress = Progress(
            step=report.step,
            steps=report.steps,
            fraction=report.progress,
            loss=report.loss,
            validation_loss=self.validation_loss,
            tokens_per_second=report.tokens_per_second,
            seconds_left=report.seconds_left,
        )
        # Without validation text nothing is evaluated; samples come at the same steps.
        is_due = self.config.eval_every > 0 and report.step % self.config.eval_every == 0
        if not (report.evaluation or report.is_last or is_due):
            if not self.stop.requested:
                self.display.progress(progress)
            return
        remark = ""
        if report.evaluation is not None:
            remark = f"{report.evaluation.bits_per_byte:.3f} bits/byte"
            remark += "  best" if report.evaluation.is_best else ""
        self.display.milestone(progress, remark)
        if not self.stop.requested:
            text = self._sample()
            self.display.sample(text)
            self.run.log_sample(report.step, text, report.loss)

    def _sample(self) -> str:
        from andrea.sampling import SamplingConfig
        from andrea.writing import generate_text

        self.display.activity("writing a sample")
        tokenizer = self.data.tokenizer
        prompt = self.prompt
        if prompt is None:
            prompt = opening(tokenizer, self.data.documents)
        tokens_per_byte = len(self.data.train) / max(self.data.train_bytes, 1)
        pieces = generate_text(
            self.model,
            tokenizer,
            prompt,
            max_tokens=max(round(_SAMPLE_BYTES * tokens_per_byte), 16),
            sampling=SamplingConfig(temperature=0.8, top_p=0.95),
            seed=self.config.seed,
        )
        text, deadline = self.prompt or "", time.monotonic() + _SAMPLE_SECONDS
        for piece in pieces:
            text += piece
            if self.stop.requested or time.monotonic() > deadline:
                break
        return text

    def _tell_end(self, seconds: float, *, is_complete: bool) -> None:
        state, folder = self.state, shell_path(self.run.path)
        what = "done" if is_complete else "stopped and saved"
        best = ""
        if state.best_loss is not None and state.best_step is not None:
            best = f"; best validation loss {state.best_loss:.4f}, at step {state.best_step:,}"
        more = "" if not is_complete else f" {go_on(self.config, state)}"
        self.display.line()
        self.display.line(f"{what}: {state.step:,} steps, {duration(seconds)}{best}", style="bold")
        self.display.rows(
            [
                ("write", f"andrea sample {folder}"),
                ("continue", f"andrea train --resume {folder}{more}"),
            ]
        )


def go_on(config: TrainConfig, state: TrainState) -> str:
    """The option that lets a run that is complete go on for as long again."""
    return f"--steps {2 * state.step}" if config.steps else f"--for {round(config.seconds or 60)}s"
