"""Long work of other processes, builds and runs of tests on them, beside tests that need one core.

Jobs start as soon as the tests that await them are collected, in their order: as many at a time as
there are processors, at a low priority, and each once the jobs that it needs are done. So no
processor is idle while a test waits for something else, and the tests, of which some look at the
clock, are not held up. A test that has to wait for a job does it, if nobody has begun.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

Work = Callable[[], Any]

_known: dict[str, tuple[Work, tuple[str, ...]]] = {}


def job(name: str, work: Work, *needs: str) -> str:
    """Make work known by a name; it starts when tests marked `awaits(name)` are to run.

    needs: jobs whose results the work asks for.
    """
    _known[name] = work, needs
    return name


class _Job:
    def __init__(self, work: Work, needs: list[_Job]) -> None:
        self.work = work
        self.needs = needs
        self.is_done = False
        self.outcome: Any = None
        self.failure: BaseException | None = None


class _Queue:
    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._waiting: list[_Job] = []
        self._changed = threading.Condition()

    def add(self, name: str) -> _Job:
        """The job of this name; the first time, it comes last of those that wait."""
        with self._changed:
            if name not in self._jobs:
                work, needs = _known[name]
                needed = [self.add(need) for need in needs]
                self._jobs[name] = _Job(work, needed)
                self._waiting.append(self._jobs[name])
            return self._jobs[name]

    def work(self) -> None:
        """Do one job after the other until none waits."""
        _give_way()
        while (ready := self._next()) is not None:
            self._run(ready)

    def _next(self) -> _Job | None:
        with self._changed:
            while self._waiting:
                for ready in self._waiting:
                    if all(need.is_done for need in ready.needs):
                        self._waiting.remove(ready)
                        return ready
                self._changed.wait()
            return None

    def _run(self, begun: _Job) -> None:
        try:
            begun.outcome = begun.work()
        except BaseException as failure:  # a skip is one, too; whoever awaits the job gets it
            begun.failure = failure
        with self._changed:
            begun.is_done = True
            self._changed.notify_all()

    def finish(self, wanted: _Job) -> None:
        """Return when it is done, by this thread if by no other."""
        for need in wanted.needs:
            self.finish(need)
        with self._changed:
            is_ours = wanted in self._waiting
            if is_ours:
                self._waiting.remove(wanted)
        if is_ours:
            self._run(wanted)
        with self._changed:
            self._changed.wait_for(lambda: wanted.is_done)

    def close(self) -> None:
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()


_queue = _Queue()


def _give_way() -> None:
    """Lower the priority of this thread's processes; on Linux alone a thread has one of its own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19))


def start(names: Iterable[str]) -> None:
    """Begin with these jobs, in threads of their own."""
    if [_queue.add(name) for name in names]:
        for _ in range(os.cpu_count() or 1):
            threading.Thread(target=_queue.work, name="side jobs", daemon=True).start()


def result(name: str) -> Any:
    """What a job's work returned, or raise what it raised."""
    wanted = _queue.add(name)
    _queue.finish(wanted)
    if wanted.failure is not None:
        raise wanted.failure
    return wanted.outcome


def close() -> None:
    """Begin with no more jobs."""
    _queue.close()
