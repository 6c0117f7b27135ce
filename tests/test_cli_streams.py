"""Streams that are closed, full or gone, and terminals that close: no run ends by them unsaved."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from andrea.cli.screen.display import PlainDisplay
from andrea.cli.screen.steady_display import SteadyDisplay
from andrea.cli.training.signals import StopSignals
from cli_process import ANDREA, TINY_RUN, Shell
from patience import wait_until


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("streams"))


def in_shell(shell: Shell, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command.replace("andrea", ANDREA, 1)],
        cwd=shell.folder,
        env=shell.environment({}),
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("streams", [">/dev/full", "<&- >&- 2>&-"])
def test_a_run_needs_nowhere_to_print(shell: Shell, streams: str) -> None:
    """A log on a disk that is full must not end what the disk's failing does not."""
    out = f"run-{len(streams)}"
    options = " ".join((*TINY_RUN, "--steps", "6", "--out", out))
    done = in_shell(shell, f"andrea train book.txt {options} {streams}")
    assert (done.returncode, done.stderr) == (0, "")
    assert (shell.folder / out / "checkpoints" / "step-00000006.safetensors").exists()


def test_an_answer_that_cannot_be_written_is_told(shell: Shell) -> None:
    done = in_shell(shell, "andrea --help >/dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("andrea: ") and done.stderr.count("\n") == 1


class Failing(PlainDisplay):
    """Where every line fails."""

    error: OSError

    def line(self, text: str = "", *, style: str = "") -> None:
        raise self.error


def test_what_cannot_be_shown_is_left_out() -> None:
    failing = Failing()
    failing.error = OSError(5, "the terminal is gone")
    SteadyDisplay(failing, lambda: False).line("never seen")


def test_a_reader_that_leaves_ends_a_run_but_not_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches all programs of a pipeline: the run that it ended is yet to be saved."""
    failing, is_stopping = Failing(), False
    failing.error = BrokenPipeError()
    display = SteadyDisplay(failing, lambda: is_stopping)
    with pytest.raises(BrokenPipeError):
        display.line("heard by nobody")
    is_stopping = True
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr("sys.stdout", out)
        display.line("heard by nobody")


@pytest.fixture
def hanging_up() -> Iterator[None]:
    """What a hang-up does is put back."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hanging_up")
def test_a_terminal_that_closes_saves_and_stops() -> None:
    """Shell and system may both tell of it: the second time is no wish to exit at once."""
    told, exits = threading.Event(), []

    def end_listener() -> None:
        exits.append("at once")
        raise SystemExit

    with StopSignals(before_exit=end_listener) as stop, stop.postponed(told.set):
        os.kill(os.getpid(), signal.SIGHUP)
        wait_until(told.is_set)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.requested and stop.exit_code == 129
    assert exits == []


@pytest.mark.usefixtures("hanging_up")
def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals(before_exit=lambda: None):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
