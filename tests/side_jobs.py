"""Long work of other processes, builds and runs of tests on them, beside tests that need one core.

A job starts, in the order of the tests that await it, as soon as they are collected. A test that
has to wait lends a hand: it does jobs that nobody has begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

Work = Callable[[], Any]

_known: dict[str, Work] = {}


def job(name: str, work: Work) -> str:
    """Make work known by a name; it starts when tests marked `awaits(name)` are to run."""
    _known[name] = work
    return name


class _Job:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.done = threading.Event()
        self.outcome: Any = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.outcome = self.work()
        except BaseException as failure:  # a skip is one, too; whoever awaits the job gets it
            self.failure = failure
        self.done.set()


class _Queue:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._waiting: list[_Job] = []

    def add(self, name: str) -> _Job:
        with self._lock:
            if name not in self._jobs:
                self._jobs[name] = _Job(_known[name])
                self._waiting.append(self._jobs[name])
            return self._jobs[name]

    def take(self, wanted: _Job | None = None) -> _Job | None:
        with self._lock:
            if not self._waiting:
                return None
            index = self._waiting.index(wanted) if wanted in self._waiting else 0
            return self._waiting.pop(index)

    def work(self) -> None:
        while (next_job := self.take()) is not None:
            next_job.run()

    def close(self) -> None:
        with self._lock:
            self._waiting.clear()


_queue = _Queue()


def start(names: Iterable[str]) -> None:
    """Begin with these jobs, one after the other, in a thread of their own."""
    if [_queue.add(name) for name in names]:
        threading.Thread(target=_queue.work, name="side jobs", daemon=True).start()


def result(name: str) -> Any:
    """What a job's work returned, or raise what it raised."""
    wanted = _queue.add(name)
    while not wanted.done.is_set():
        other = _queue.take(wanted)
        if other is None:
            wanted.done.wait()
        else:
            other.run()
    if wanted.failure is not None:
        raise wanted.failure
    return wanted.outcome


def close() -> None:
    """Begin with no more jobs."""
    _queue.close()
