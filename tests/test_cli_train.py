"""`andrea train` as a user runs it: any kind of text, resumed, interrupted, in plain lines."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from andrea.runs.folder import RunFolder
from cli_process import (
    ANDREA,
    SLOW,
    SLOW_RUN,
    TEXT,
    TINY,
    TINY_RUN,
    Shell,
    checkpoints,
    content_of,
    listen_to_interrupts,
)
from patience import PATIENCE, wait_until


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("train"))


def log_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def rows(output: str, name: str) -> list[str]:
    """What a run tells under a name before it begins."""
    return re.findall(rf"^{name} +(.*)$", output, re.MULTILINE)


def steps_of(run: Path) -> list[int]:
    return [entry["step"] for entry in log_of(run) if entry["type"] == "run.loss"]


def read_state(run: Path) -> dict[str, Any]:
    with RunFolder.open(run) as opened:
        return dict(opened.info.state or {})


def test_a_file(shell: Shell) -> None:
    output = shell.succeed("train", "book.txt", *TINY_RUN, "--steps", "7")
    run = shell.folder / "runs" / "book"
    lines = output.splitlines()
    assert re.match(r"machine +cpu, (fp32|bf16), \d+ threads?, \S+ instructions", lines[0])
    for part in ("book.txt: 1 document, 4.0 KB", "char, ", "vocabulary ", "tokens/s: "):
        assert part in output
    with RunFolder.open(run) as opened:
        assert opened.info.model.n_embd == 32 and opened.info.model.block_size == 16
        assert opened.info.record["sources"] == [str(shell.folder / "book.txt")]
    # Step 1, the evaluations of steps 3 and 6, and the last one; samples stand behind a margin.
    told = [line for line in lines if line.startswith("step ")]
    assert [int(line.split("/")[0].split()[1]) for line in told] == [1, 3, 6, 7]
    assert all("val " in line and "bits/byte" in line for line in told[1:])
    assert any(line.startswith("  | ") for line in lines)
    assert lines[-3:] == [
        "write     andrea sample runs/book",
        "look      runs/book/report.html",
        "continue  andrea train --resume runs/book --steps 14",
    ]
    assert steps_of(run) == list(range(1, 8))
    kinds = [entry["type"] for entry in log_of(run)]
    assert kinds.count("run.sample") == kinds.count("run.eval") == 3
    assert kinds[0] == "run.start" and kinds[-1] == "run.end"


def test_the_default_folder_is_numbered_when_taken(shell: Shell) -> None:
    shutil.copy(shell.folder / "book.txt", shell.folder / "tale.txt")
    for name in ("tale", "tale-2"):
        output = shell.succeed("train", "tale.txt", *TINY_RUN, "--steps", "1")
        assert f"andrea sample runs/{name}\n" in output
        assert checkpoints(shell.folder / "runs" / name)


def test_plain_output_has_no_control_codes(shell: Shell) -> None:
    output = shell.succeed("train", "book.txt", *TINY_RUN, "--steps", "3", "--out", "plain")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", output)


def test_standard_input(shell: Shell) -> None:
    output = shell.succeed("train", "-", *TINY_RUN, "--steps", "2", "--out", "piped", stdin=TEXT)
    assert "standard input: 1 document" in output
    assert rows(output, "continue") == ["andrea train --resume piped TEXT --steps 4"]
    line = shell.refuse("train", "--resume", "piped", "book.txt", "--steps", "2")
    assert line.endswith("to go on: andrea train --resume piped TEXT --steps 4\n")
    line = shell.refuse("train", "--resume", "piped", "--steps", "3")
    assert "standard input" in line and "--resume piped TEXT" in line
    output = shell.succeed("train", "--resume", "piped", "book.txt", "--steps", "3")
    # The same bytes: nothing of the text changed.
    assert rows(output, "changed") == ["steps: 2 -> 3"]


def test_a_folder_and_its_files(shell: Shell) -> None:
    folder = shell.folder / "my notes"
    folder.mkdir()
    (folder / "a.md").write_text(TEXT, encoding="utf-8")
    with gzip.open(folder / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": f"Note {n}. {TEXT[:90]}"}) + "\n" for n in range(30))
    output = shell.succeed("train", "my notes", *TINY_RUN, "--steps", "2")
    assert "my notes/: 31 documents" in output
    assert "andrea sample 'runs/my notes'\n" in output
    output = shell.succeed(
        "train", "my notes/b.jsonl.gz", "book.txt", *TINY_RUN, "--steps", "2", "--out", "two"
    )
    assert "b.jsonl.gz, book.txt: 31 documents" in output


def test_no_text_is_the_language_reference(shell: Shell) -> None:
    output = shell.succeed("train", *TINY, "--batch-size", "4", "--for", "2s")
    assert "Python language reference" in output
    assert "train --resume runs/python-reference --for 2s\n" in output
    assert read_state(shell.folder / "runs" / "python-reference")["step"] > 1


def test_a_time_is_kept_and_continued(shell: Shell) -> None:
    shell.succeed("train", "book.txt", *TINY, "--batch-size", "4", "--for", "1.5", "--out", "timed")
    first = read_state(shell.folder / "timed")
    assert first["elapsed"] >= 1.5
    line = shell.refuse("train", "--resume", "timed")
    assert "has done its 1.5s" in line and "--resume timed --for 2s" in line
    output = shell.succeed("train", "--resume", "timed", "--for", "1")
    assert re.fullmatch(r"length: 1.5s -> [\d.]+s", rows(output, "changed")[0])
    assert read_state(shell.folder / "timed")["step"] > first["step"]


def interrupt(
    shell: Shell, command: list[Any], run: Path, step: int, number: int = signal.SIGINT
) -> tuple[int, str, str]:
    """Start a command and send it a signal once its log tells of a step."""
    with shell.begin(*command, stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and process.poll() is None:
            log = run / "log.jsonl"
            if log.exists() and log.read_bytes().count(b'"run.loss"') >= step:
                break
            time.sleep(0.002)
        process.send_signal(number)
        output, error = process.communicate(timeout=PATIENCE)
    return process.returncode, output.decode("utf-8"), error.decode("utf-8")


def test_a_stopped_run_resumes_to_the_same_bytes(shell: Shell, tmp_path: Path) -> None:
    settings = ["train", "book.txt", *SLOW_RUN, "--accumulate", "2", "--seed", "5"]
    settings += ["--learning-rate", "0.01", "--sample-prompt", "The ", "--out"]
    run = tmp_path / "halves"
    code, output, error = interrupt(shell, [*settings, run], run, 5)
    assert (code, error) == (130, "")
    lines = output.splitlines()
    assert "stopping: saves after this step; Ctrl-C again exits at once" in lines
    assert lines[-1].split() == ["continue", "andrea", "train", "--resume", os.fspath(run)]
    half = read_state(run)["step"]
    assert 5 <= half < 24

    # From another folder: the text is found by its absolute path.
    output = Shell(tmp_path).succeed("train", "--resume", run)
    assert f"from step {half} to 24\n" in output
    assert "changed" not in output
    assert steps_of(run) == list(range(1, 25))

    shell.succeed(*settings, tmp_path / "whole", "--threads", "1")
    whole = checkpoints(tmp_path / "whole")[-1]
    assert checkpoints(run)[-1].name == whole.name == "step-00000024.safetensors"
    assert checkpoints(run)[-1].read_bytes() == whole.read_bytes()


def test_a_terminated_run_is_saved_too(shell: Shell, tmp_path: Path) -> None:
    run = tmp_path / "ended"
    command = ["train", "book.txt", *SLOW_RUN, "--out", run]
    code, output, error = interrupt(shell, command, run, 2, signal.SIGTERM)
    assert (code, error) == (143, "")
    assert "stopped and saved: " in output
    assert read_state(run)["step"] == steps_of(run)[-1] >= 2


def test_a_closed_pipe_saves_what_was_learned(shell: Shell, tmp_path: Path) -> None:
    command = ["train", "book.txt", *SLOW_RUN, "--eval-every", "1", "--out", tmp_path / "closed"]
    with shell.begin(*command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.startswith(b"step "):
                break
        process.stdout.close()
        assert process.wait(timeout=PATIENCE) == 1
        assert process.stderr.read() == b""
    assert 1 <= read_state(tmp_path / "closed")["step"] < 24


def test_a_second_interrupt_exits_at_once(shell: Shell, tmp_path: Path) -> None:
    # A step of many seconds: the engine holds the main thread while both signals come.
    huge = ["--batch-size", "200", "--accumulate", "50", "--steps", "5"]
    command = ["train", "book.txt", *SLOW, *huge, "--out", tmp_path / "huge"]
    with shell.begin(*command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"run "):
                break
        wait_until(lambda: bool(checkpoints(tmp_path / "huge")), "the first checkpoint")
        process.send_signal(signal.SIGINT)
        for line in process.stdout:
            if line.startswith(b"stopping"):
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
    # Had it waited for the step's end, that step would have been saved.
    assert read_state(tmp_path / "huge")["step"] == 0


def test_an_interrupt_before_training_leaves_nothing(shell: Shell, tmp_path: Path) -> None:
    command = ["train", "-", *TINY_RUN, "--steps", "2", "--out", tmp_path / "early"]
    process = subprocess.Popen(
        [ANDREA, *map(str, command)],
        cwd=shell.folder,
        env=shell.environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=listen_to_interrupts,
        bufsize=0,
    )
    with process:
        # More than a pipe holds: once it is taken, the command reads, and waits for the rest.
        assert process.stdin is not None
        process.stdin.write(b"To be, or not to be. " * 50_000)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 130
        assert process.stderr is not None and b"Traceback" not in process.stderr.read()
    assert not (tmp_path / "early").exists()


def test_what_changes_at_resume_is_told(shell: Shell) -> None:
    shell.succeed("train", "book.txt", *TINY_RUN, "--steps", "4", "--out", "changing")
    changes = ["--steps", "6", "--learning-rate", "0.0005", "--batch-size", "2"]
    # Repeating what a run is made of changes nothing.
    changes += ["--n-layer", "1", "--tokenizer", "char", "--sample-prompt", "The fox"]
    output = shell.succeed("train", "--resume", "changing", *changes)
    told = rows(output, "changed")
    assert told[0] == "steps: 4 -> 6"
    assert told[1] == "batch size: 4 -> 2"
    assert re.fullmatch(r"learning rate: 0\.\d+ -> 0\.0005", told[2])
    assert told[3:] == ["sample prompt: default -> The fox"]
    assert "  | The fox" in output
    with RunFolder.open(shell.folder / "changing") as run:
        assert (run.config.batch_size, run.config.learning_rate) == (2, 0.0005)
        assert run.info.record["sample_prompt"] == "The fox"
    assert steps_of(shell.folder / "changing") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--n-layer", "2"), "--n-layer is 1 in this run and cannot become 2"),
        (("--block-size", "8"), "--block-size is 16"),
        (("--tokenizer", "byte"), "--tokenizer is char"),
        (("--vocab-size", "300"), "--vocab-size is"),
        (("--preset", "andrea-nano"), "--preset andrea-nano has block_size 128, this run has 16"),
        (("--out", "other"), "--out names the folder of a new run"),
        ((), "has done its 2 steps; to go on: andrea train --resume shaped --steps 4"),
    ],
)
def test_what_cannot_change_at_resume(
    shell: Shell, options: tuple[str, ...], complaint: str
) -> None:
    run = shell.folder / "shaped"
    if not run.exists():
        shell.succeed("train", "book.txt", *TINY_RUN, "--steps", "2", "--out", "shaped")
    before = content_of(run)
    assert complaint in shell.refuse("train", "--resume", "shaped", *options)
    assert content_of(run) == before


def test_a_changed_text_is_refused_unless_named(shell: Shell) -> None:
    text = shell.folder / "diary.txt"
    text.write_text(TEXT, encoding="utf-8")
    shell.succeed("train", "diary.txt", *TINY_RUN, "--steps", "2", "--out", "diary")
    text.write_text(TEXT + "The dog closed the box.\n", encoding="utf-8")
    line = shell.refuse("train", "--resume", "diary", "--steps", "3")
    assert "diary.txt is not the text that diary learned from" in line
    assert "andrea train --resume diary TEXT" in line
    output = shell.succeed("train", "--resume", "diary", "diary.txt", "--steps", "3")
    assert rows(output, "changed")[1] == "text: another than before, or read in another way"
    # From now on that is its text.
    shell.succeed("train", "--resume", "diary", "--steps", "4")
    text.unlink()
    assert "diary.txt: no such file" in shell.refuse("train", "--resume", "diary", "--steps", "5")
