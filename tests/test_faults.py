"""A disk that is full, refuses, or does things by halves: nothing that was saved is lost.

The faults are real ones of the calls to the system (tests/faults/faults.c), met by `andrea` as its
users call it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from andrea.runs import RunFolder
from cli_process import TEXT, TINY
from faults.disk import Nursery, Outcome, fault_library, open_nursery, rule
from faults.rehearsal import Rehearsal, log, newest

CHECKPOINTS = "*/run/checkpoints/*"


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with open_nursery(tmp_path_factory.mktemp("nursery")) as opened:
        yield opened


@pytest.fixture(scope="module")
def rehearsal(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A run of 12 steps, and "begun", which was killed in the middle of it."""
    folder = tmp_path_factory.mktemp("runs")
    made = Rehearsal(nursery, folder, steps=12, save_every=2, eval_every=6)
    killed = made.begin("begun", rule("rename", "kill", "*/begun/checkpoints/*", 4)).wait()
    assert killed.was_killed and made.step("begun") in range(2, 12)
    return made


@pytest.fixture
def run(rehearsal: Rehearsal) -> Path:
    """A copy of the run that was killed, to go on from."""
    return rehearsal.copy("begun", "run")


def refused(done: Outcome, *said: str) -> str:
    """It met its fault, and said so in a line with exit code 1."""
    assert done.met
    line = done.complaint
    for words in said:
        assert words in line
    return line


# ---- the disk that fails is what its rules say

_WRITES = """
import os, sys
os.chdir(sys.argv[1])
first = os.open("first", os.O_WRONLY | os.O_CREAT)
os.write(first, b"synced")
os.fsync(first)
os.write(first, b" and not")
os.close(first)
with open("second", "wb") as file:
    file.write(b"never synced")
os.rename("second", "renamed")
folder = os.open(".", os.O_RDONLY)
os.fsync(folder)
os.rename("first", "last")
os.unlink("absent")
"""


def disk_after(folder: Path, rules: str) -> tuple[int, dict[str, bytes]]:
    """How a program that writes files ends, and what it leaves."""
    environment = {**os.environ, "LD_PRELOAD": str(fault_library()), "FAULTS_RULES": rules}
    done = subprocess.run(
        [sys.executable, "-c", _WRITES, str(folder)], env=environment, capture_output=True
    )
    return done.returncode, {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("rules", "code", "files"),
    [
        # Without a fault it gets to the file that isn't there.
        ("", 1, {"last": b"synced and not", "renamed": b"never synced"}),
        (rule("unlink", "kill", "*"), -9, {"last": b"synced and not", "renamed": b"never synced"}),
        # The folder was synced after one name was given, and before the other.
        (rule("unlink", "powercut", "*"), -9, {"first": b"synced", "renamed": b""}),
        (rule("write", "ENOSPC", "*/first", 2), 1, {"first": b"synced"}),
        (
            rule("write", "short", "*/first", 2),
            1,
            {"last": b"synced and", "renamed": b"never synced"},
        ),
        (rule("write", "torn", "*/first", 2), -9, {"first": b"synced and"}),
        (rule("sync", "EIO", "*/first"), 1, {"first": b"synced"}),
        (rule("change", "kill", "*", 5), -9, {"first": b"synced and not"}),
    ],
)
def test_the_disk_that_fails(
    tmp_path: Path, rules: str, code: int, files: dict[str, bytes]
) -> None:
    assert disk_after(tmp_path, rules) == (code, files)


# ---- while it trains


@pytest.mark.parametrize(
    ("call", "action", "said"),
    [
        ("create", "EROFS", "Read-only file system"),
        ("write", "ENOSPC", "No space left on device"),
        ("sync", "EIO", "Input/output error"),
        ("rename", "EDQUOT", "Disk quota exceeded"),
    ],
)
def test_a_save_that_fails_is_told_and_training_goes_on(
    rehearsal: Rehearsal, run: Path, call: str, action: str, said: str
) -> None:
    before = rehearsal.step("run")
    done = rehearsal.resume("run", rule(call, action, CHECKPOINTS)).wait()
    assert (done.code, done.err, len(done.met)) == (0, "", 1)
    assert said in done.out and "training goes on" in done.out
    notices = [entry for entry in log(run) if entry["type"] == "run.notice"]
    assert [notice["kind"] for notice in notices] == ["save failed"]
    assert said in notices[0]["text"]
    assert before is not None and notices[0]["step"] > before
    rehearsal.check_end("run")


def test_writes_by_halves_are_continued(rehearsal: Rehearsal, run: Path) -> None:
    done = rehearsal.resume("run", rule("write", "short", "*/run/*", count=0)).wait()
    assert (done.code, done.err) == (0, "")
    assert len(done.met) > 100
    rehearsal.check_end("run")


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename"])
def test_a_disk_that_stays_full_keeps_what_was_saved(
    rehearsal: Rehearsal, run: Path, call: str
) -> None:
    before = rehearsal.step("run")
    kept = newest(run).read_bytes()
    done = rehearsal.resume("run", rule(call, "ENOSPC", CHECKPOINTS, count=0)).wait()
    line = refused(done, "No space left on device")
    assert "cannot write run/checkpoints/step-00000012.safetensors" in line
    assert rehearsal.step("run") == before
    assert newest(run).read_bytes() == kept
    # Space was made: it goes on as if nothing had been.
    rehearsal.finish("run")


def test_a_log_that_fails_for_a_while_loses_no_line(rehearsal: Rehearsal, run: Path) -> None:
    done = rehearsal.resume("run", rule("write", "ENOSPC", "*/run/log.jsonl", 2, 3)).wait()
    assert (done.code, done.err, len(done.met)) == (0, "", 3)
    rehearsal.check_end("run")


@pytest.mark.parametrize(("call", "first"), [("write", 2), ("sync", 1)])
def test_a_log_that_stays_full_is_told(
    rehearsal: Rehearsal, run: Path, call: str, first: int
) -> None:
    """The log must never end before the step that a resume starts from: nothing is saved."""
    before = rehearsal.step("run")
    rules = rule(call, "ENOSPC", "*/run/log.jsonl", first, 0)
    refused(rehearsal.resume("run", rules).wait(), "cannot write run/log.jsonl: No space left")
    assert rehearsal.step("run") == before
    rehearsal.finish("run")


def test_what_fails_again_and_again_is_not_told_at_every_step(rehearsal: Rehearsal) -> None:
    (rehearsal.folder / "book.txt").write_text(TEXT, encoding="utf-8")
    arguments = ("train", "book.txt", *TINY, "--batch-size", "4", "--out", "told")
    often = ("--steps", "60", "--save-every", "10", "--eval-every", "30")
    rules = rule("write", "ENOSPC", "*/told/log.jsonl", 4, 0)
    done = rehearsal.nursery.run(rehearsal.folder, *arguments, *often, rules=rules)
    refused(done, "cannot write told/log.jsonl: No space left on device")
    assert 1 <= done.out.count("training goes on") <= 6


WILD = (*TINY, "--batch-size", "4", "--steps", "4", "--learning-rate", "1e30", "--no-report")


@pytest.mark.parametrize("call", ["create", "write", "sync", "rename"])
def test_a_bad_step_that_cannot_be_recorded_is_no_second_fault(
    rehearsal: Rehearsal, call: str
) -> None:
    out = f"wild-{call}"
    rules = rule(call, "ENOSPC", f"*/{out}/incidents/*", count=0)
    arguments = ("train", "book.txt", *WILD, "--out", out)
    done = rehearsal.nursery.run(rehearsal.folder, *arguments, rules=rules)
    assert (done.code, done.err) == (0, "")
    assert done.met
    assert f"cannot write {out}/incidents/step-00000002.npz: No space left on device" in done.out
    assert "step 4 was skipped" in done.out
    assert list((rehearsal.folder / out / "incidents").iterdir()) == []


def test_what_a_killed_process_left_of_a_bad_step_goes_with_the_next(rehearsal: Rehearsal) -> None:
    arguments = ("train", "book.txt", *WILD, "--out", "wild")
    rules = rule("rename", "kill", "*/wild/incidents/*")
    assert rehearsal.nursery.run(rehearsal.folder, *arguments, rules=rules).was_killed
    incidents = rehearsal.folder / "wild" / "incidents"
    assert [path.suffix for path in incidents.iterdir()] == [".tmp"]
    done = rehearsal.nursery.run(rehearsal.folder, "train", "--resume", "wild", "--steps", "6")
    assert (done.code, done.err) == (0, "")
    names = sorted(path.name for path in incidents.iterdir())
    assert names == [f"step-{step:08}.npz" for step in range(2, 7)]


# ---- where it begins


@pytest.mark.parametrize(
    ("call", "pattern", "said"),
    [
        ("create", "*/run/lock", "lock"),
        ("create", "*/run/log.jsonl", "log.jsonl"),
        ("create", CHECKPOINTS, "checkpoints/step-00000000.safetensors"),
        ("write", CHECKPOINTS, "checkpoints/step-00000000.safetensors"),
        ("sync", CHECKPOINTS, "checkpoints/step-00000000.safetensors"),
        ("rename", CHECKPOINTS, "checkpoints/step-00000000.safetensors"),
        ("write", "*/run/config.toml*", "config.toml"),
    ],
)
def test_a_run_that_cannot_begin_says_so_at_once(
    rehearsal: Rehearsal, call: str, pattern: str, said: str
) -> None:
    shutil.rmtree(rehearsal.folder / "run", ignore_errors=True)
    done = rehearsal.begin("run", rule(call, "ENOSPC", pattern, count=0)).wait()
    refused(done, said, "No space left on device")
    assert "step 1/12" not in done.out
    assert rehearsal.step("run") is None
    # The same command begins where it could not.
    rehearsal.finish("run")


@pytest.mark.parametrize(
    ("call", "pattern", "said"),
    [
        ("write", "*/run/log.jsonl.tmp", "log.jsonl"),
        ("sync", "*/run/log.jsonl.tmp", "log.jsonl"),
        ("rename", "*/run/log.jsonl", "log.jsonl"),
        ("create", "*/run/log.jsonl", "log.jsonl"),
        ("write", "*/run/config.toml*", "config.toml"),
    ],
)
def test_a_resume_that_cannot_begin_changes_nothing(
    rehearsal: Rehearsal, run: Path, call: str, pattern: str, said: str
) -> None:
    before = rehearsal.step("run")
    refused(rehearsal.resume("run", rule(call, "EIO", pattern)).wait(), said, "Input/output error")
    assert rehearsal.step("run") == before
    rehearsal.finish("run")


# ---- while it reads


def test_a_checkpoint_that_cannot_be_read_is_passed_over(rehearsal: Rehearsal, run: Path) -> None:
    path = newest(run)
    done = rehearsal.resume("run", rule("read", "EIO", f"*/{path.name}", 2)).wait()
    assert (done.code, done.err, len(done.met)) == (0, "", 1)
    assert f"cannot read run/checkpoints/{path.name}: Input/output error" in done.out
    # It is kept beside the others: its disk may only have been away.
    assert "set aside" in done.out
    aside = path.with_name(path.name + ".set-aside")
    assert aside.read_bytes() == newest(rehearsal.folder / "begun").read_bytes()
    rehearsal.check_end("run")


def test_where_no_checkpoint_can_be_read(rehearsal: Rehearsal, run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    rules = rule("read", "EIO", CHECKPOINTS, count=0)
    for arguments in (("train", "--resume"), ("sample",), ("info",)):
        done = rehearsal.nursery.run(rehearsal.folder, *arguments, "run", rules=rules)
        refused(done, "none of its", "Input/output error")
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    rehearsal.finish("run")


def test_reads_by_halves_are_continued(rehearsal: Rehearsal, run: Path) -> None:
    done = rehearsal.resume("run", rule("read", "short", "*", count=0)).wait()
    assert (done.code, done.err) == (0, "")
    assert any(met.path.suffix == ".safetensors" for met in done.met)
    rehearsal.check_end("run")


@pytest.mark.parametrize("first", [1, 2])
def test_a_text_that_cannot_be_read(rehearsal: Rehearsal, first: int) -> None:
    (rehearsal.folder / "other.txt").write_text("some other text, " * 300)
    arguments = ("train", "other.txt", *TINY, "--steps", "2", "--out", "other")
    rules = rule("read", "EIO", "*/other.txt", first)
    done = rehearsal.nursery.run(rehearsal.folder, *arguments, rules=rules)
    refused(done, "other.txt", "cannot be read: Input/output error")
    assert not (rehearsal.folder / "other").exists()


# ---- the cache of texts


@pytest.mark.parametrize(
    ("call", "action", "said"),
    [
        ("create", "EROFS", "Read-only file system"),
        ("create", "ENOSPC", "the disk is full"),
        ("write", "ENOSPC", "the disk is full"),
        ("rename", "EIO", "Input/output error"),
    ],
)
def test_a_cache_that_cannot_be_written_names_itself(
    rehearsal: Rehearsal, call: str, action: str, said: str
) -> None:
    name = f"{call}-{action}"
    (rehearsal.folder / f"{name}.txt").write_text(f"a text for {name}, " * 300)
    arguments = ("train", f"{name}.txt", *TINY, "--steps", "2", "--out", name)
    rules = rule(call, action, "*/.cache/andrea/*", count=0)
    done = rehearsal.nursery.run(rehearsal.folder, *arguments, rules=rules)
    refused(done, str(rehearsal.folder / ".cache" / "andrea"), said, "choose another cache folder")
    done = rehearsal.nursery.run(rehearsal.folder, *arguments)
    assert (done.code, done.err) == (0, "")


def test_a_damaged_cache_is_prepared_anew(rehearsal: Rehearsal, run: Path) -> None:
    """Its tokens are read by a map of memory afterwards: what is checked is what is read."""
    for path in (rehearsal.folder / ".cache" / "andrea").rglob("train.npy"):
        with path.open("r+b") as file:
            file.seek(-3, 2)
            file.write(b"\xff\xff\xff")
    done = rehearsal.resume("run").wait()
    assert (done.code, done.err) == (0, "")
    rehearsal.check_end("run")


# ---- reports are for people: they never cost a run


@pytest.mark.parametrize("call", ["create", "write", "rename"])
def test_a_report_that_cannot_be_written_costs_nothing(
    rehearsal: Rehearsal, run: Path, call: str
) -> None:
    done = rehearsal.resume("run", rule(call, "ENOSPC", "*report.html*", count=0)).wait()
    assert done.met
    assert (done.code, done.err) == (0, "")
    rehearsal.check_end("run")
    with RunFolder.open(run) as opened:
        assert opened.state().step == rehearsal.steps
