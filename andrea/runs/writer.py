"""Writes checkpoints while training goes on: from a copy of the state, in a thread of its own.

Training waits for the copy, a matter of memory, never for the disk. Where memory has no room for a
copy, the state is written from where it is, and training waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .checkpoint import CheckpointInfo, metadata_of, state_tensors, write_checkpoint

if TYPE_CHECKING:
    from andrea.model import GPT
    from andrea.tensors import Tensor

# Of the memory that is free when the first copy is made.
_SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class Written:
    """A checkpoint on the disk, or why there is none. seconds: from the copy to the disk."""

    step: int
    path: Path
    size: int
    seconds: float
    error: Exception | None = None


class CheckpointWriter:
    """One checkpoint at a time, in the background; for one thread."""

    def __init__(self) -> None:
        # Its thread is joined at exit: a checkpoint that was begun gets finished.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._future: Future[Written] | None = None
        self._memory: NDArray[np.float32] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._future is not None and not self._future.done()

    def start(
        self,
        path: Path,
        model: GPT,
        info: CheckpointInfo,
        *,
        step: int,
        before: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        """Copy the state and write it; `before` and `after` run in the thread, around the write.

        `after` runs only where the checkpoint is on the disk. What was started earlier must have
        been taken by `finished` or `wait`.
        """
        assert self._future is None
        started = time.perf_counter()
        tensors = state_tensors(model, moments=True)
        metadata = metadata_of(info, model.step_count)
        copies = self._copies(tensors)

        def write() -> Written:
            try:
                before()
                size = write_checkpoint(path, tensors if copies is None else copies, metadata)
            except Exception as error:
                return Written(step, path, 0, time.perf_counter() - started, error)
            after()
            return Written(step, path, size, time.perf_counter() - started)

        self._future = self._pool.submit(write)
        if copies is None:
            self._future.result()

    def finished(self) -> Written | None:
        """What became of the checkpoint that was started last, once, as soon as that is known."""
        if self._future is None or not self._future.done():
            return None
        written, self._future = self._future.result(), None
        return written

    def wait(self) -> None:
        """Wait until nothing is being written; `finished` tells then."""
        if self._future is not None:
            self._future.result()

    def close(self) -> None:
        """Finish what was begun and let the thread and the copy go."""
        self._pool.shutdown()
        self._memory = None

    def _copies(self, tensors: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]] | None:
        count = sum(tensor.size for tensor in tensors.values())
        if self._memory is None or self._memory.size != count:
            if not _fits(4 * count):
                return None
            self._memory = np.empty(count, dtype=np.float32)
        copies, offset = {}, 0
        for name, tensor in tensors.items():
            target = self._memory[offset : offset + tensor.size].reshape(tensor.shape)
            np.copyto(target, tensor.read())
            copies[name] = target
            offset += tensor.size
        return copies


def _fits(num_bytes: int) -> bool:
    from andrea.planning.machine import available_memory

    free = available_memory("cpu")
    return free is None or num_bytes <= _SHARE_OF_MEMORY * free
