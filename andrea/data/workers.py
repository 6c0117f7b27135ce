"""One function over many batches, in several processes: results in order, memory bounded.

The processes are plain children that run Python: unlike those of `multiprocessing` they neither
import the caller's main module nor copy a process whose threads run.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from itertools import cycle
from typing import Any, BinaryIO, TypeVar, cast

from andrea.errors import AndreaError

Batch = TypeVar("Batch")
Result = TypeVar("Result")

# Starting processes takes longer than encoding a text below this size.
_LARGE_TEXT = 16 << 20
# More would wait for the one process that reads, and each needs some 120 MB.
_MOST_PROCESSES = 4

# Each process is a thread by itself; the variables are for the libraries that it will load.
_CHILD = """
import os, pickle, sys
os.putenv("OPENBLAS_NUM_THREADS", "1")
os.putenv("TOKENIZERS_PARALLELISM", "false")
sys.path[:] = pickle.load(sys.stdin.buffer)
from andrea.data.workers import serve
serve(sys.stdin.buffer, sys.stdout.buffer)
"""


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_for(num_bytes: int) -> int:
    """Return how many processes should encode a text of so many bytes."""
    return min(usable_cores(), _MOST_PROCESSES) if num_bytes >= _LARGE_TEXT else 1


def map_in_order(
    function: Callable[[Batch], Result], batches: Iterable[Batch], processes: int
) -> Generator[Result, None, None]:
    """Yield `function` of each batch, computed by so many processes; of 1, by this one alone.

    Function, batches and results are pickled; AndreaErrors of the function are raised here. A
    process that cannot be started, or dies, costs its speed alone: its batches are done here.
    """
    if processes < 2:
        yield from map(function, batches)
        return
    workers = [_Worker(function) for _ in range(processes)]
    waiting: deque[tuple[_Worker, Batch]] = deque()
    try:
        for batch, worker in zip(batches, cycle(workers)):
            if len(waiting) == processes:
                yield _result(function, *waiting.popleft())
            worker.send(batch)
            waiting.append((worker, batch))
        while waiting:
            yield _result(function, *waiting.popleft())
    finally:
        for worker in workers:
            worker.close()


def _result(function: Callable[[Batch], Result], worker: _Worker, batch: Batch) -> Result:
    answer = worker.receive()
    if answer is None:
        return function(batch)
    if isinstance(answer, AndreaError):
        raise answer
    return cast(Result, answer)


class _Worker:
    """A child process that has at most one batch to do."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not sys.executable or getattr(sys, "frozen", False):
            return  # what runs here is no Python that could be started again
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=1 << 20,
            )
        except (OSError, ValueError):
            return
        self.send(sys.path)
        self.send(function)

    def send(self, value: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        try:
            pickle.dump(value, self._process.stdin, protocol=5)
            self._process.stdin.flush()
        except (OSError, pickle.PicklingError, AttributeError, TypeError):
            self.close()

    def receive(self) -> object | None:
        """Return the result of the batch that was sent, or None if the process is dead."""
        if self._process is None:
            return None
        assert self._process.stdout is not None
        try:
            return cast(object, pickle.load(self._process.stdout))
        except (OSError, EOFError, pickle.UnpicklingError):
            self.close()
            return None

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            with suppress(OSError), process:
                pass


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Be one of the processes: read a function and then batches, until they end, and answer."""
    # An interrupt from the keyboard reaches all processes; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    function = pickle.load(requests)
    while True:
        try:
            batch = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = function(batch)
        except AndreaError as error:
            answer = error
        pickle.dump(answer, answers, protocol=5)
        answers.flush()
