"""Runs `andrea` as a user does: in a folder and with a cache of its own."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from andrea.cli import main
from patience import PATIENCE

ANDREA = str(Path(sysconfig.get_path("scripts")) / "andrea")

# A model of a few thousand parameters: a run takes a fraction of a second.
TINY = ("--n-layer", "1", "--n-head", "2", "--n-embd", "32", "--block-size", "16")
TINY_RUN = (*TINY, "--batch-size", "4", "--eval-every", "3")

# Steps of some ten milliseconds: long enough to be interrupted in the middle of the run.
SLOW = ("--n-layer", "2", "--n-head", "4", "--n-embd", "128", "--block-size", "64")
SLOW_RUN = (*SLOW, "--batch-size", "8", "--steps", "24", "--eval-every", "12")

TEXT = "The quick brown fox jumps over the lazy dog; the café is closed.\n" * 60


class Shell:
    """A working folder in which `andrea` is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "book.txt").write_text(TEXT, encoding="utf-8")

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, "XDG_CACHE_HOME": str(self.folder / ".cache"), **changes}

    def run(
        self, *arguments: str | Path, stdin: str | bytes = b"", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        data = stdin.encode("utf-8") if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [ANDREA, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(environment),
            input=data,
            capture_output=True,
            timeout=PATIENCE,
        )
        out, err = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def succeed(self, *arguments: str | Path, **settings: Any) -> str:
        """Run it, expect exit code 0 and nothing on standard error; return standard output."""
        done = self.run(*arguments, **settings)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:]
        return done.stdout

    def call(self, *arguments: str | Path) -> str:
        """Call it in this process, expect exit code 0 and no error; return standard output."""
        code, out, err = self._call(*arguments)
        assert (code, err) == (0, ""), out[-2000:] + err
        return out

    def refuse(self, *arguments: str | Path) -> str:
        """Call it in this process, expect one line of error and exit code 1; return the line."""
        code, out, line = self._call(*arguments)
        assert code == 1, (code, out[-2000:], line)
        assert line.startswith("andrea: ") and line.endswith("\n") and line.count("\n") == 1, line
        return line

    def _call(self, *arguments: str | Path) -> tuple[object, str, str]:
        out, err = io.StringIO(), io.StringIO()
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            with (
                pytest.MonkeyPatch.context() as patch,
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                pytest.raises(SystemExit) as ended,
            ):
                patch.setenv("XDG_CACHE_HOME", str(self.folder / ".cache"))
                main.main([str(argument) for argument in arguments], prog_name="andrea")
        finally:
            os.chdir(before)
        return ended.value.code, out.getvalue(), err.getvalue()

    def begin(self, *arguments: str | Path, stdout: int | IO[bytes]) -> subprocess.Popen[bytes]:
        """Start it and return the process; Ctrl-C reaches it whatever started the tests."""
        return subprocess.Popen(
            [ANDREA, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment({"PYTHONUNBUFFERED": "1"}),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            preexec_fn=listen_to_interrupts,
        )


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run's folder, oldest first."""
    return sorted((run / "checkpoints").glob("step-*.safetensors"))


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but the lock of a run, which whoever tries it writes to."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def listen_to_interrupts() -> None:
    # A shell starts jobs in the background with SIGINT ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
