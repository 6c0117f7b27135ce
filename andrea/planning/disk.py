"""What a run will take on the disk, and whether it is there."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from andrea.training.config import TrainConfig
from andrea.words import size

from .memory import TooLarge, copy_bytes

# A file's header says the place of every tensor three times; the tokenizer's JSON stands in it.
_HEADER_BYTES = 64 << 10
# A line of the log for every step, about.
_LINE_BYTES = 190


@dataclass(frozen=True)
class DiskPlan:
    """What a run takes at most: `files` checkpoints of `checkpoint` bytes, the one that is being
    written included, and `log` bytes of metrics. `present`: bytes of it that are there already.

    free: bytes that the file system has; None where it does not tell.
    """

    checkpoint: int
    files: int
    log: int
    free: int | None
    present: int = 0

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.files * self.checkpoint + self.log

    def check(self, keep_last: int) -> None:
        """Refuse a run that the disk cannot hold.

        Raises:
            TooLarge: more is needed than is free; fewer checkpoints are proposed where they fit.
        """
        missing = self.total - self.present
        if self.free is None or missing <= self.free:
            return
        fewer = keep_last - -(-(missing - self.free) // self.checkpoint)
        changes: dict[str, Any] = {"keep_last": fewer} if fewer >= 1 else {}
        raise TooLarge(
            f"the run takes {size(missing)} of disk ({self.files} checkpoints of "
            f"{size(self.checkpoint)}), {size(self.free)} are free",
            changes,
        )


def disk_plan(
    folder: Path,
    *,
    parameters: int,
    tokenizer_bytes: int,
    train: TrainConfig,
    steps: int | None,
    validates: bool,
) -> DiskPlan:
    """What a run in this folder takes.

    tokenizer_bytes: of the tokenizer as JSON. validates: the best checkpoint is kept, too.
    """
    files = train.keep_last + 1 + validates
    if steps is not None:
        # No more than are ever written: the first, the last, those that are due, and new bests.
        due = steps // train.save_every if train.save_every else 0
        bests = steps // train.eval_every if train.eval_every and validates else 0
        files = min(files, due + bests + 2)
    return DiskPlan(
        checkpoint=copy_bytes(parameters) + tokenizer_bytes + _HEADER_BYTES,
        files=files,
        log=(steps or 0) * _LINE_BYTES,
        free=free_disk(folder),
        present=sum(path.stat().st_size for path in folder.glob("checkpoints/*.safetensors")),
    )


def free_disk(folder: Path) -> int | None:
    """Bytes that may be written to a folder that need not be there yet; None if nothing tells."""
    path = folder.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(os.fspath(path)).free
    except OSError:
        return None
