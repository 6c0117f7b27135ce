"""A run's folder: its newest checkpoint and its log, from which it can be continued or sampled.

For the CLI, and for programs that want their runs to survive.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from andrea.config import ModelConfig
from andrea.errors import CheckpointError, RunError
from andrea.training import TrainConfig, TrainState

from .checkpoint import Checkpoint, CheckpointInfo, save_checkpoint
from .log import SCHEMA, RunLog, newest_run_id, rewind

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

CHECKPOINT_NAME = "checkpoint.safetensors"
LOG_NAME = "log.jsonl"


class RunFolder:
    """One run on the disk; made by `create` or `open`, usable in a `with`."""

    def __init__(self, checkpoint_path: Path, info: CheckpointInfo) -> None:
        """Not for callers: use `create` or `open`."""
        self.path = checkpoint_path.parent
        self.checkpoint_path = checkpoint_path
        self.log_path = self.path / LOG_NAME
        self.info = info
        self.run_id = ""
        self._log: RunLog | None = None
        self._checkpoint: Checkpoint | None = None
        self._saved_step: int | None = None

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        *,
        model: ModelConfig,
        train: TrainConfig,
        tokenizer: Tokenizer,
        record: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Make the folder of a new run and begin its log.

        `record` is whatever the caller wants back at resume: plain data, the same for equal runs.

        Raises:
            RunError: the folder already holds a run, or cannot be made.
        """
        folder = Path(path)
        if (folder / CHECKPOINT_NAME).exists():
            raise RunError(
                f"{folder} already holds a run; continue it with --resume {folder}, "
                "or choose another folder with --out"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {folder}: {error.strerror}") from error
        info = CheckpointInfo(model, tokenizer.to_dict(), train.to_dict(), record=record or {})
        run = cls(folder / CHECKPOINT_NAME, info)
        run._start_log(uuid.uuid4().hex)
        return run

    @classmethod
    def open(cls, path: str | PathLike[str]) -> RunFolder:
        """Open a run by its folder, or by a checkpoint file, and verify the checkpoint.

        Raises:
            RunError: there is no run.
            CheckpointError: the checkpoint is truncated, altered or unreadable.
        """
        checkpoint_path = Path(path)
        if checkpoint_path.is_dir():
            checkpoint_path /= CHECKPOINT_NAME
        if not checkpoint_path.exists():
            what = f"holds no run (no {CHECKPOINT_NAME})" if Path(path).is_dir() else "isn't there"
            raise RunError(f"{path} {what}; give the folder of a run, as `andrea train` printed it")
        checkpoint = Checkpoint(checkpoint_path)
        run = cls(checkpoint_path, checkpoint.info)
        run._checkpoint = checkpoint
        run.run_id = newest_run_id(run.log_path) or ""
        return run

    @property
    def config(self) -> TrainConfig:
        """How the run trains.

        Raises:
            CheckpointError: the file holds weights only.
        """
        if self.info.train is None:
            raise CheckpointError(
                f"{self.checkpoint_path} holds weights only, so training can't go on from it; "
                "it can be sampled from"
            )
        return TrainConfig.from_dict(self.info.train)

    def state(self) -> TrainState:
        """How far the run got, as of the checkpoint that was opened."""
        return TrainState.from_dict(self.info.state or {})

    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer.

        Raises:
            CheckpointError: its vocabulary is not the model's.
        """
        from andrea.tokenizers import tokenizer_from_dict

        tokenizer = tokenizer_from_dict(self.info.tokenizer)
        if tokenizer.vocab_size != self.info.model.vocab_size:
            raise CheckpointError(
                f"{self.checkpoint_path}: the tokenizer has {tokenizer.vocab_size} tokens, "
                f"the model {self.info.model.vocab_size}"
            )
        return tokenizer

    def load(self, model: GPT) -> None:
        """Read the parameters of the opened checkpoint into a model, for sampling."""
        self._opened().load(model, moments=False)

    def resume(
        self,
        model: GPT,
        *,
        config: TrainConfig | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> TrainState:
        """Read the whole training state into a model and join the log; what to give `train`.

        `config` and `record` replace the recorded ones.

        Raises:
            CheckpointError: the file holds weights only, or does not fit the model.
            RunError: the log cannot be written.
        """
        config = config or self.config
        self._opened().load(model, moments=True)
        self.close()
        state = self.state()
        self._saved_step = state.step
        record = self.info.record if record is None else record
        self.info = dataclasses.replace(self.info, train=config.to_dict(), record=record)
        run_id = self.run_id or uuid.uuid4().hex
        rewind(self.log_path, run_id, state.step)
        self._start_log(run_id, resumed_step=state.step)
        return state

    def save(self, model: GPT, state: TrainState) -> Path:
        """Write the checkpoint of this step, unless that is what is there; return its path.

        Raises:
            CheckpointError: a value is not finite, or the disk is full; the old file is intact.
            RunError: the log cannot be brought to the disk.
        """
        if state.step != self._saved_step:
            # First the log: it must never end before the step that a resume starts from.
            self._open_log().sync()
            timed = self.config.seconds is not None
            self.info = dataclasses.replace(self.info, state=state.to_dict(timed=timed))
            size = save_checkpoint(self.checkpoint_path, model, self.info)
            self._saved_step = state.step
            self.log(
                "run.checkpoint", step=state.step, path=str(self.checkpoint_path), size_bytes=size
            )
        return self.checkpoint_path

    def log_sample(self, step: int, text: str, loss: float) -> None:
        """Note a text that the model wrote after `step`."""
        self.log("run.sample", step=step, text=text, loss=loss)

    def end(self, final_loss: float | None, wall_seconds: float) -> None:
        """Note that training ended; a resume takes this back."""
        self.log("run.end", final_loss=final_loss, wall_ms=round(1000 * wall_seconds))

    def log(self, kind: str, **fields: Any) -> None:
        """Append a line of the schema `unfirehose/1.0/training-run`."""
        self._open_log().write(kind, **fields)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        if self._log is not None:
            self._log.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
            self._checkpoint = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start_log(self, run_id: str, **fields: Any) -> None:
        self.run_id = run_id
        self._log = RunLog(self.log_path, run_id)
        parts = {"model": self.info.model.to_dict(), "config": self.info.train}
        self.log("run.start", schema=SCHEMA, **parts, **fields)

    def _open_log(self) -> RunLog:
        if self._log is None:
            raise RunError(f"{self.path} was opened for reading; resume it to write")
        return self._log

    def _opened(self) -> Checkpoint:
        if self._checkpoint is None:
            raise RunError(f"{self.path} is closed, or is the folder of a run that is training")
        return self._checkpoint
