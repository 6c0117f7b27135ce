"""`andrea experiment`: what it prints and writes, what it refuses, and how Ctrl-C ends it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from andrea.cli import experiment, main
from andrea.cli.experiment_text import result_lines
from andrea.cli.screen.display import PlainDisplay
from andrea.lessons.experiments import Progress, Runner, build
from cli_process import Shell
from patience import PATIENCE
from test_experiments_lessons import LAW, lawful, made_up

TINY = ("--vary", "n_embd=8", "--vary", "n_head=2", "--vary", "block_size=8")
CUSTOM = ("experiment", "custom", "book.txt", "--vary", "n_layer=1,2", *TINY, "--device", "cpu")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("experiment"))
    # 32 bytes and the mark of a document, a tenth of them to validate.
    (shell.folder / "short.txt").write_text("no more than thirty letters, so.")
    return shell


def test_it_tells_what_it_did_and_writes_a_folder(shell: Shell) -> None:
    out = shell.call(*CUSTOM, "--steps", "4", "--seeds", "2")
    assert "seed 1, n_layer 2: loss " in out
    assert "n_layer 2: a loss lower by at least 0.02 nats" in out
    assert "2 variants x 2 seeds, 4 steps each, quick mode" in out
    assert "of processor time" in out and "wrote experiments/custom/report.html" in out
    folder = shell.folder / "experiments" / "custom"
    found = json.loads((folder / "results.json").read_text("utf-8"))
    assert found["complete"] and found["seeds"] == [0, 1] and len(found["runs"]) == 4
    # Another time the folder is another, and the numbers are the same.
    again = shell.call(*CUSTOM, "--steps", "4", "--seeds", "2", "--json")
    assert json.loads(again) == found
    assert (shell.folder / "experiments" / "custom-2" / "report.html").exists()


def test_help_lists_the_experiments(shell: Shell) -> None:
    from andrea.lessons.experiments import NAMES

    words = shell.call("experiment", "--help").split()
    for name, what in NAMES.items():
        assert name in words and set(what.split()) <= set(words)


def test_without_a_name_it_tells_the_names_and_no_folder_is_not_this_one() -> None:
    empty = CliRunner().invoke(main, ["experiment", "residual", "--out", ""])
    assert empty.exit_code == 2 and "the path is empty" in empty.output
    result = CliRunner().invoke(main, ["experiment"])
    assert result.exit_code == 2 and "name an experiment: residual, residual-init," in result.output
    usage = "Usage: andrea experiment [OPTIONS] NAME [TEXT...]"
    assert usage in CliRunner().invoke(main, ["experiment", "--help"], prog_name="andrea").output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("perpetual",), "no experiment is called 'perpetual'; there is residual,"),
        (("Residul",), "'Residul'; did you mean residual? there is residual, residual-init,"),
        (("custom",), "custom needs --vary"),
        (("residual", "--vary", "n_layer=1,2"), "--vary is for custom, not residual"),
        (("custom", "--vary", "n_layer=2"), "nothing to compare"),
        (("custom", "--vary", "size=2,3"), "'size' can't be varied"),
        (("custom", "--vary", "n_head=3,4"), "n_head must divide n_embd"),
        (("custom", "--vary", "n_layer=1,2", "--vary", "n_layer=3"), "varied twice"),
        (("residual", "nowhere.txt"), "nowhere.txt"),
        (("residual", "book.txt", "--device", "abacus"), "abacus"),
        (("residual", "--out", ".", "book.txt"), "is not empty"),
        (("residual", "short.txt"), "the text is too short: it has 29 tokens to train on and 4"),
    ],
)
def test_what_it_refuses(shell: Shell, arguments: tuple[str, ...], told: str) -> None:
    assert told in shell.refuse("experiment", *arguments)
    assert not (shell.folder / "experiments" / "residual").exists()


def test_ctrl_c_keeps_what_was_measured(shell: Shell) -> None:
    arguments = (*CUSTOM, "--vary", "steps=1,1000000", "--seeds", "2", "--out", "cut")
    process = shell.begin(*arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"seed 0"):
            process.send_signal(signal.SIGINT)
            break
    rest, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, b"")
    assert b"early)" in rest
    found = json.loads((Path(shell.folder) / "cut" / "results.json").read_text("utf-8"))
    assert not found["complete"] and len(found["runs"]) == 1


def test_ctrl_c_before_anything_is_measured_leaves_nothing(shell: Shell) -> None:
    arguments = (*CUSTOM, "--steps", "1000000", "--out", "nothing")
    process = shell.begin(*arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"folder"):
            # Another that is to write there is refused at once, and not when hours are over.
            arguments = ("custom", "book.txt", *CUSTOM[3:], "--out", "nothing")
            told = shell.refuse("experiment", *arguments)
            assert "nothing is that of an experiment that runs or was killed: name" in told
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors.strip()) == (130, b"")
    assert not (shell.folder / "nothing").exists()


def test_it_says_that_it_ends_before_what_follows(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals are told of by another thread, which may be late."""
    told: list[str] = []

    class Slow(PlainDisplay):
        def line(self, text: str = "", *, style: str = "") -> None:
            if text.startswith("ending"):
                time.sleep(0.3)
            told.append(text)

    def progress(self: Runner) -> Iterator[Progress]:
        signal.raise_signal(signal.SIGINT)
        yield Progress("n_layer 1", 0, 1, 4, 5.0, 0.1)

    monkeypatch.setattr(Runner, "progress", progress)
    monkeypatch.setattr(experiment, "open_display", Slow)
    monkeypatch.chdir(shell.folder)
    assert CliRunner().invoke(main, CUSTOM).exit_code == 130
    assert [line.partition(":")[0] for line in told[-2:]] == ["ending", "nothing was measured"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_is_full_costs_no_results(shell: Shell) -> None:
    arguments = (*CUSTOM, "--steps", "2", "--seeds", "1", "--out", "full")
    with open("/dev/full", "wb") as full:
        process = shell.begin(*arguments, stdout=full)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and b"No space left" in errors
    found = json.loads((shell.folder / "full" / "results.json").read_text("utf-8"))
    assert found["complete"] and (shell.folder / "full" / "report.html").exists()


@pytest.mark.parametrize("width", [50, 80, 200])
def test_tables_fit_the_terminal_and_keep_their_first_column(width: int) -> None:
    results = made_up(build("scaling", "quick", 257), lawful(LAW))
    lines = list(result_lines(results, (61.0, 100.0), width))
    assert max(map(len, lines)) <= width
    assert any(line.startswith("alpha, exponent of parameters  ") for line in lines)
    assert any(line.startswith("took ") and "1m 01s; 1m 40s" in line for line in lines)
    header = next(line for line in lines if line.startswith("variant "))
    assert ("parameters" in header) == (width > 50)
