"""A disk that fails on purpose, and processes of `andrea` that start fast, to be killed often.

A nursery is one process that has everything imported and the disk of faults.c preloaded; it forks
a child for each call of `andrea`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from native_build import c_compiler, run
from patience import PATIENCE

FOLDER = Path(__file__).resolve().parent


@functools.cache
def fault_library() -> Path:
    """faults.c, compiled; a skip where programs can't be made to load it."""
    if sys.platform != "linux":
        pytest.skip("faults are preloaded, which needs Linux")
    folder = Path(tempfile.mkdtemp(prefix="andrea-faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "libfaults.so"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    run(*c_compiler(), *flags, FOLDER / "faults.c", "-o", library, "-ldl", "-pthread")
    return library


def rule(call: str, action: str, pattern: str, first: int = 1, count: int = 1) -> str:
    """A line for faults.c, which says what each part means; count 0: from the first on."""
    return f"{call} {first} {count} {action} {pattern}"


@dataclass(frozen=True)
class Met:
    """A call that met a rule."""

    call: str
    action: str
    path: Path


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its exit code, or minus the signal's number; what it said; what it met."""

    code: int
    out: str
    err: str
    met: tuple[Met, ...]

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def complaint(self) -> str:
        """The one line that a failed command says."""
        assert self.code == 1, (self.code, self.out[-2000:], self.err)
        line = self.err
        assert line.startswith("andrea: ") and line.endswith("\n") and line.count("\n") == 1, line
        return line


class Child:
    """A call of `andrea` that goes on in a process of its own."""

    def __init__(self, nursery: Nursery, pid: int, folder: Path) -> None:
        self.pid = pid
        self._nursery = nursery
        self._folder = folder

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def out(self) -> str:
        """What it printed so far."""
        return (self._folder / "out").read_text("utf-8")

    def wait(self) -> Outcome:
        code = self._nursery.ask({"wait": self.pid})
        report = self._folder / "met"
        lines = report.read_text("utf-8").splitlines() if report.exists() else []
        met = (line.split(" ", 2) for line in lines)
        return Outcome(
            code,
            self.out,
            (self._folder / "err").read_text("utf-8"),
            tuple(Met(call, action, Path(path)) for call, action, path in met),
        )


class Nursery:
    """Starts children that run `andrea`, each with faults of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children = 0
        before = os.environ.get("LD_PRELOAD")
        library = str(fault_library())
        environment = {
            **os.environ,
            "LD_PRELOAD": f"{before}:{library}" if before else library,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / "nursery.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: dict[str, Any]) -> Any:
        """Send a line to the process and return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def learn(self, where: Path, *arguments: str | Path) -> None:
        """Import what this call of `andrea` needs: the next ones of its kind start at once."""
        question = self._question(where, arguments)
        self.ask({**question, "modules": question["folder"] + "/modules.json"})

    def start(self, where: Path, *arguments: str | Path, rules: str = "") -> Child:
        """Begin `andrea ARGUMENTS` in a folder, in which its cache is, too."""
        question = self._question(where, arguments, rules)
        return Child(self, self.ask(question), Path(question["folder"]))

    def _question(
        self, where: Path, arguments: Sequence[str | Path], rules: str = ""
    ) -> dict[str, Any]:
        self._children += 1
        folder = self._folder / f"child-{self._children}"
        folder.mkdir()
        for name in ("in", "out", "err"):
            (folder / name).touch()
        return {
            "where": str(where),
            "arguments": [str(argument) for argument in arguments],
            "rules": rules,
            "folder": str(folder),
        }

    def run(self, where: Path, *arguments: str | Path, rules: str = "") -> Outcome:
        """Call `andrea ARGUMENTS` in a folder and wait for its end."""
        return self.start(where, *arguments, rules=rules).wait()

    def close(self) -> None:
        """End the process; its children are its own."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=PATIENCE)


@contextmanager
def open_nursery(folder: Path) -> Iterator[Nursery]:
    """A nursery that is closed at the end."""
    nursery = Nursery(folder)
    try:
        yield nursery
    finally:
        nursery.close()
