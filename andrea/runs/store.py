"""The checkpoints of a run: their names, which of them stay, and which is read when one is damaged.

Nothing that was saved is ever deleted but by `prune`, after a newer one is on the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection
from pathlib import Path

from andrea.errors import CheckpointError, RunError

from .checkpoint import Checkpoint

FOLDER_NAME = "checkpoints"
SET_ASIDE = ".set-aside"

_NAME = re.compile(r"step-(\d+)\.safetensors")
_UNFINISHED = "step-*.safetensors.tmp"
# How often to look again when a run that trains meanwhile replaces what was just listed.
_ATTEMPTS = 10


class CheckpointStore:
    """The folder "checkpoints" of a run."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / FOLDER_NAME

    def path_of(self, step: int) -> Path:
        """Where the checkpoint of a step is kept."""
        return self.folder / f"step-{step:08}.safetensors"

    def paths(self) -> list[Path]:
        """All checkpoints, newest first."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        found = [name for name in names if _NAME.fullmatch(name)]
        return [self.folder / name for name in sorted(found, key=step_of_name, reverse=True)]

    def make(self) -> None:
        """Make the folder, and remove what a killed process left half written.

        Raises:
            RunError: the folder cannot be made.
        """
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {self.folder}: {error.strerror}") from error
        for left in self.folder.glob(_UNFINISHED):
            with contextlib.suppress(OSError):
                left.unlink()

    def open_newest(self) -> tuple[Checkpoint, tuple[str, ...]]:
        """The newest checkpoint that is intact, and a line about each newer one that is not.

        Raises:
            RunError: there is none at all.
            CheckpointError: all are damaged.
        """
        for _ in range(_ATTEMPTS):
            paths = self.paths()
            damaged: list[str] = []
            for path in paths:
                try:
                    return _open_as_named(path), tuple(damaged)
                except CheckpointError as error:
                    damaged.append(str(error))
            if not any(path.exists() for path in paths):
                if paths:
                    continue
                break
            raise CheckpointError(
                f"{self.folder}: none of its {len(paths)} checkpoints can be used: {damaged[0]}"
            )
        raise RunError(
            f"{self.run} holds no run (no {FOLDER_NAME}); give the folder of a run, "
            "as `andrea train` printed it"
        )

    def set_aside(self, is_meant: Callable[[int], bool]) -> tuple[Path, ...]:
        """Rename the checkpoints of such steps, so that no run goes on from them; none is lost, nor
        is any that was set aside before.

        Raises:
            RunError: the folder refuses.
        """
        moved = []
        for path in self.paths():
            if is_meant(step_of_name(path.name)):
                target = _free(path.with_name(path.name + SET_ASIDE))
                try:
                    os.replace(path, target)
                except OSError as error:
                    raise RunError(f"cannot rename {path}: {error.strerror}") from error
                moved.append(target)
        return tuple(moved)

    def prune(self, keep_last: int, also: Collection[Path]) -> None:
        """Delete all but the newest, and those named; what can't be deleted stays."""
        for path in self.paths()[keep_last:]:
            if path not in also:
                with contextlib.suppress(OSError):
                    path.unlink()


def _open_as_named(path: Path) -> Checkpoint:
    """A checkpoint of the step that its name says: by the names the newest is found.

    Raises:
        CheckpointError: it is damaged, or of another step.
    """
    checkpoint = Checkpoint(path)
    step = (checkpoint.info.state or {}).get("step", step_of_name(path.name))
    if step != step_of_name(path.name):
        checkpoint.close()
        raise CheckpointError(
            f"{path} was renamed, for it holds step {step!r:.20}: give it the name of its step, "
            "or name the file itself"
        )
    return checkpoint


def _free(path: Path) -> Path:
    """This path, or the first numbered one that nobody has taken."""
    free, number = path, 1
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def step_of_name(name: str) -> int:
    """The step in a checkpoint's file name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is no name of a checkpoint")
    return int(match.group(1))
