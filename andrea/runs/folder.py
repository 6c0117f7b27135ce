"""A run's folder: its checkpoints and its log, from which it can be continued or sampled.

For the CLI, and for programs that want their runs to survive.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from andrea.closing import Closing
from andrea.config import ModelConfig
from andrea.errors import CheckpointError, RunError
from andrea.training import TrainConfig, TrainState

from .checkpoint import Checkpoint, CheckpointInfo, no_way_on, tokenizer_of
from .incidents import pinned_checkpoints
from .lock import RunLock
from .log import SCHEMA, RunLog, newest_run_id, rewind
from .store import FOLDER_NAME, CheckpointStore
from .writer import CheckpointWriter, Written

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tokenizers import Tokenizer

LOG_NAME = "log.jsonl"
CONFIG_NAME = "config.toml"

Listener = Callable[[dict[str, Any]], None]


class RunFolder(Closing):
    """One run on the disk; made by `create` or `open`, usable in a `with`.

    checkpoint_path: the checkpoint that was opened or saved last. damaged: a line about each newer
    one that had to be passed over. set_aside: checkpoints that a resume from an older one renamed.
    """

    def __init__(self, path: Path, checkpoint_path: Path, info: CheckpointInfo) -> None:
        """Not for callers: use `create` or `open`."""
        self.path = path
        self.checkpoint_path = checkpoint_path
        self.log_path = path / LOG_NAME
        self.info = info
        self.run_id = ""
        self.damaged: tuple[str, ...] = ()
        self.set_aside: tuple[Path, ...] = ()
        self._store = CheckpointStore(path)
        self._log: RunLog | None = None
        self._lock: RunLock | None = None
        self._checkpoint: Checkpoint | None = None
        self._writer = CheckpointWriter()
        self._listeners: list[Listener] = []
        self._saved_step: int | None = None
        self._best: Path | None = None
        self._seen: frozenset[Path] = frozenset()
        self._written: list[Written] = []

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        *,
        model: ModelConfig,
        train: TrainConfig,
        tokenizer: Tokenizer,
        record: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Make the folder of a new run and begin its log.

        `record` is whatever the caller wants back at resume: plain data, the same for equal runs.
        `about` is logged at the start: environment, plan, data.

        Raises:
            RunError: the folder already holds a run, is being trained, or cannot be made.
        """
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {folder}: {error.strerror}") from error
        info = CheckpointInfo(model, tokenizer.to_dict(), train.to_dict(), record=record or {})
        run = cls(folder, CheckpointStore(folder).path_of(0), info)
        try:
            run._lock = RunLock(folder)
            refuse_used(folder)
            run._store.make()
            run._start_log(uuid.uuid4().hex, about)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: str | PathLike[str], *, best: bool = False) -> RunFolder:
        """Open a run by its folder, or by a checkpoint file, and verify the checkpoint.

        Of a folder it is the newest checkpoint that is intact; with `best` that of the lowest
        validation loss.

        Raises:
            RunError: there is no run, or no best checkpoint in it.
            CheckpointError: the checkpoint is truncated, altered or unreadable.
        """
        place = Path(path)
        damaged: tuple[str, ...] = ()
        # Before one is opened: what comes later comes from a process that trains.
        seen = frozenset(CheckpointStore(place).paths())
        if place.is_dir():
            checkpoint, damaged = CheckpointStore(place).open_newest()
        elif place.exists():
            checkpoint = Checkpoint(place)
            place = place.parent.parent if place.parent.name == FOLDER_NAME else place.parent
            seen = frozenset(CheckpointStore(place).paths())
        else:
            raise RunError(
                f"{path} isn't there; give the folder of a run, as `andrea train` printed it"
            )
        run = cls(place, checkpoint.path, checkpoint.info)
        run._seen = seen
        run.damaged = damaged
        run._checkpoint = checkpoint
        run.run_id = newest_run_id(run.log_path) or ""
        if best:
            run._open_best()
        return run

    def _open_best(self) -> None:
        step = self.state().best_step
        path = self._store.path_of(step or 0)
        if step is None or not path.exists():
            self.close()
            why = "it was never evaluated"
            if step is not None:
                why = f"that of step {step} isn't in {self._store.folder}"
            raise RunError(f"{self.path} has no best checkpoint: {why}")
        if path != self.checkpoint_path:
            self.close()
            self._checkpoint = Checkpoint(path)
            self.checkpoint_path, self.info = path, self._checkpoint.info

    @property
    def config(self) -> TrainConfig:
        """How the run trains.

        Raises:
            CheckpointError: the file doesn't say: it holds weights only, or was imported.
        """
        if self.info.train is None:
            raise CheckpointError(no_way_on(self.checkpoint_path, self.info))
        return TrainConfig.from_dict(self.info.train)

    def state(self) -> TrainState:
        """How far the run got, as of the checkpoint that was opened."""
        return TrainState.from_dict(self.info.state or {})

    @property
    def checkpoint(self) -> Checkpoint:
        """The opened checkpoint itself.

        Raises:
            RunError: the run is closed, or is training.
        """
        return self._opened()

    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer.

        Raises:
            CheckpointError: its vocabulary is not the model's.
        """
        return tokenizer_of(self.checkpoint_path, self.info)

    def load(self, model: GPT) -> None:
        """Read the parameters of the opened checkpoint into a model, for sampling."""
        self._opened().load(model, moments=False)

    def resume(
        self,
        model: GPT,
        *,
        config: TrainConfig | None = None,
        record: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> TrainState:
        """Read the whole training state into a model and join the log; what to give `train`.

        `config` and `record` replace the recorded ones. Newer checkpoints, damaged or not, are set
        aside: the run goes on from the one that was opened.

        Raises:
            CheckpointError: the file holds weights only, or does not fit the model.
            RunError: the run is being trained by another process, or its log cannot be written.
        """
        config = config or self.config
        self._lock = RunLock(self.path)
        try:
            if not self._seen.issuperset(self._store.paths()):
                raise RunError(
                    f"{self.path} was trained by another process meanwhile: start again, "
                    "to go on from what that has saved"
                )
            self._opened().load(model, moments=True)
            state = self.state()
            self._store.make()
            self.set_aside = self._store.set_aside(lambda step: step > state.step)
            record = self.info.record if record is None else record
            self.info = dataclasses.replace(self.info, train=config.to_dict(), record=record)
            run_id = self.run_id or uuid.uuid4().hex
            rewind(self.log_path, run_id, state.step)
            self._start_log(run_id, about, resumed_step=state.step)
        except BaseException:
            self.close()
            raise
        self._close_checkpoint()
        if self.checkpoint_path == self._store.path_of(state.step):
            self._saved_step = state.step
        if state.best_step is not None and self._store.path_of(state.best_step).exists():
            self._best = self._store.path_of(state.best_step)
        return state

    # ---- saving

    def save(self, model: GPT, state: TrainState) -> Path:
        """Write the checkpoint of this step, unless that is what is there; return its path.

        Raises:
            CheckpointError: a value is not finite, or the disk is full; the older ones are intact.
            RunError: the log cannot be brought to the disk.
        """
        self.finish_save()
        if state.step != self._saved_step:
            self._start_saving(model, state)
            self.finish_save()
            written = self._written.pop()
            if written.error is not None:
                raise written.error
        return self.checkpoint_path

    def begin_save(self, model: GPT, state: TrainState) -> bool:
        """Copy the state, to be written in the background; `take_written` tells when it is done.

        Returns False where an earlier one is still being written: ask again at a later step.

        Raises:
            RunError: the log cannot be written to.
        """
        if self._writer.is_busy:
            return False
        self._collect()
        if state.step != self._saved_step:
            self._start_saving(model, state)
        return True

    def finish_save(self) -> None:
        """Wait for what is being written; `take_written` tells what became of it."""
        self._writer.wait()
        self._collect()

    def take_written(self) -> Written | None:
        """The next checkpoint that was written in the background, or failed to be; each once."""
        self._collect()
        return self._written.pop(0) if self._written else None

    def _collect(self) -> None:
        written = self._writer.finished()
        if written is None:
            return
        self._written.append(written)
        if written.error is not None:
            self._saved_step = None
            return
        self.checkpoint_path = written.path
        if self.info.state is not None and written.step == self.info.state["best_step"]:
            self._best = written.path
        self.log(
            "run.checkpoint",
            step=written.step,
            path=str(written.path),
            size_bytes=written.size,
            seconds=round(written.seconds, 3),
        )

    def _start_saving(self, model: GPT, state: TrainState) -> None:
        log = self._open_log()
        # First the log: it must never end before the step that a resume starts from.
        log.flush()
        config = self.config
        timed = config.seconds is not None
        self.info = dataclasses.replace(self.info, state=state.to_dict(timed=timed))
        kept = pinned_checkpoints(self.path, self._store.paths())
        if state.best_step is not None:
            kept.add(self._store.path_of(state.best_step))
        if self._best is not None:
            # Where the newest best could not be written, the one before it is the best there is.
            kept.add(self._best)
        self._writer.start(
            self._store.path_of(state.step),
            model,
            self.info,
            step=state.step,
            before=log.sync,
            after=lambda: self._store.prune(config.keep_last, kept),
        )
        self._saved_step = state.step

    # ---- the log

    def subscribe(self, listener: Listener) -> None:
        """Let a listener hear every event that is logged from now on, as the log has it."""
        self._listeners.append(listener)

    def log_sample(self, step: int, text: str, loss: float, **more: Any) -> None:
        """Note a text that the model wrote after `step`."""
        self.log("run.sample", step=step, text=text, loss=loss, **more)

    def end(self, final_loss: float | None, wall_seconds: float, reason: str = "complete") -> None:
        """Note that training ended; a resume takes this back."""
        self.log(
            "run.end", final_loss=final_loss, wall_ms=round(1000 * wall_seconds), reason=reason
        )

    def log(self, kind: str, /, **fields: Any) -> None:
        """Append a line of the schema `unfirehose/1.0/training-run`."""
        line = self._open_log().write(kind, **fields)
        for listener in self._listeners:
            listener(line)

    def close(self) -> None:
        """Finish what is being written and close the files; a second call does nothing."""
        self._writer.close()
        if self._log is not None:
            self._collect()
            self._log.close()
        self._close_checkpoint()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _close_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.close()
            self._checkpoint = None

    def _start_log(self, run_id: str, about: Mapping[str, Any] | None, **fields: Any) -> None:
        self.run_id = run_id
        self._log = RunLog(self.log_path, run_id)
        parts = {"model": self.info.model.to_dict(), "config": self.info.train}
        self.log("run.start", schema=SCHEMA, **parts, **fields, **(about or {}))

    def _open_log(self) -> RunLog:
        if self._log is None:
            raise RunError(f"{self.path} was opened for reading; resume it to write")
        return self._log

    def _opened(self) -> Checkpoint:
        if self._checkpoint is None:
            raise RunError(f"{self.path} is closed, or is the folder of a run that is training")
        return self._checkpoint


def refuse_used(folder: Path) -> None:
    """Refuse to begin a run where there is one.

    Raises:
        RunError: the folder holds a run.
    """
    if CheckpointStore(folder).paths():
        raise RunError(
            f"{folder} holds a run already: continue it with --resume {folder}, "
            "or name another folder with --out"
        )
