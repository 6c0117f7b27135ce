"""`andrea train` on a terminal: a live line that fits it, and plain lines with NO_COLOR."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from typing import Any

import pytest

from cli_process import ANDREA, SLOW_RUN, TINY_RUN, Shell
from patience import PATIENCE


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("terminal"))


def run_in_terminal(
    shell: Shell, arguments: list[Any], columns: int, **environment: str
) -> tuple[int, str]:
    """Run it on a terminal of so many columns: exit code and all that was written there."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [ANDREA, *map(str, arguments)],
        cwd=shell.folder,
        env=shell.environment({"TERM": "xterm-256color", **environment}),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    written = b""
    while select.select([master], [], [], PATIENCE)[0]:
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux's way to say that the other end was closed
            break
        if not data:
            break
        written += data
    os.close(master)
    return process.wait(timeout=PATIENCE), written.decode("utf-8")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_gets_a_live_line_that_fits(shell: Shell, columns: int) -> None:
    arguments = ["train", "book.txt", *SLOW_RUN, "--out", f"live-{columns}"]
    code, written = run_in_terminal(shell, arguments, columns)
    assert code == 0
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is shown again
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written))
    assert max(map(len, lines)) <= columns
    assert any(re.match(r"step +\d+/24  loss .* tok/s  [━─]{8,}  .* left$", line) for line in lines)
    assert f"write     andrea sample live-{columns}" in lines


def test_no_color_gets_plain_lines_that_fit(shell: Shell) -> None:
    arguments = ["train", "book.txt", *TINY_RUN, "--steps", "3", "--out", "colourless"]
    code, written = run_in_terminal(shell, arguments, 60, NO_COLOR="1")
    assert code == 0
    assert "\x1b" not in written and not re.search(r"\r(?!\n)", written)
    assert max(map(len, written.splitlines())) <= 60
    assert "andrea sample colourless" in written


def test_a_judgement_on_a_terminal_ends_with_its_table(shell: Shell) -> None:
    shell.succeed("train", "book.txt", *TINY_RUN, "--steps", "3", "--out", "judged")
    code, coloured = run_in_terminal(shell, ["eval", "judged", "--samples", "2"], 80)
    assert code == 0
    assert re.search(r"\x1b\[1mmodel +\d", coloured) and "\x1b[1mverdict" in coloured
    table = coloured[coloured.rindex("\x1b[?25h") :]  # after what was shown meanwhile
    assert "bits/byte" in table and "memorised" in table
    code, plain = run_in_terminal(shell, ["eval", "judged", "--samples", "2"], 80, NO_COLOR="1")
    assert code == 0 and "\x1b" not in plain
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", table).split()
    assert plain.split()[-len(shown) :] == shown
