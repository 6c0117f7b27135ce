"""kill -9, power cuts, signals and a second process: whatever happens, a run can go on.

Its end is byte for byte that of a run that nobody disturbed. `pytest -m complete` does it for all
points, and kills a hundred times.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from random import Random

import pytest

from faults.disk import Nursery, Outcome, open_nursery, rule
from faults.rehearsal import Rehearsal, kinds_of_calls

ALL_OF_RUN = "*/run/*"


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with open_nursery(tmp_path_factory.mktemp("nursery")) as opened:
        yield opened


@pytest.fixture(scope="module")
def short(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A run of 12 steps, saved every second."""
    folder = tmp_path_factory.mktemp("short")
    rehearsal = Rehearsal(nursery, folder, steps=12, save_every=2, eval_every=6)
    # Killed when its fourth checkpoint was to get its name.
    killed = rehearsal.begin("begun", rule("rename", "kill", "*/begun/checkpoints/*", 4)).wait()
    assert killed.was_killed
    assert rehearsal.step("begun") in range(4, 12)
    return rehearsal


@pytest.fixture(scope="module")
def long(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A run of 300 steps, saved every tenth."""
    folder = tmp_path_factory.mktemp("long")
    return Rehearsal(nursery, folder, steps=300, save_every=10, eval_every=75)


# ---- kill -9


def kill_again_and_again(rehearsal: Rehearsal, kills: int, seed: int) -> None:
    """Kill runs at moments within the time that a whole one takes, and let them go on."""
    random = Random(seed)
    started = time.monotonic()
    rehearsal.begin("measured").wait()
    seconds = time.monotonic() - started
    number = saved = 0
    for _ in range(kills):
        out = f"run-{number}"
        child = rehearsal.go_on(out)
        time.sleep(random.uniform(0, 0.6 * seconds))
        child.send(signal.SIGKILL)
        done = child.wait()
        assert done.was_killed or (done.code, done.err) == (0, "")
        # Nothing that was there is lost, and nothing is broken.
        step = rehearsal.step(out) or 0
        assert step >= saved
        saved = step
        if step == rehearsal.steps:
            rehearsal.check_end(out)
            number, saved = number + 1, 0
    rehearsal.finish(f"run-{number}")


def test_killed_at_random_moments(long: Rehearsal) -> None:
    kill_again_and_again(long, kills=8, seed=5)


@pytest.mark.complete
def test_killed_a_hundred_times(long: Rehearsal) -> None:
    kill_again_and_again(long, kills=100, seed=6)


# ---- an end before each call that changes something on the disk


def place(rehearsal: Rehearsal, of: str | None) -> int:
    """Put a copy of a run, or nothing, where the next one is; the step that it has reached."""
    if of is None:
        shutil.rmtree(rehearsal.folder / "run", ignore_errors=True)
        return 0
    rehearsal.copy(of, "run")
    return rehearsal.step("run") or 0


def traced(rehearsal: Rehearsal, of: str | None) -> Outcome:
    """A run that begins, or goes on from a copy, with all calls that change something."""
    place(rehearsal, of)
    done = rehearsal.go_on("run", rule("change", "trace", ALL_OF_RUN, count=0)).wait()
    assert done.code == 0, done.err
    rehearsal.check_end("run")
    return done


def end_at(rehearsal: Rehearsal, of: str | None, action: str, number: int) -> None:
    before = place(rehearsal, of)
    done = rehearsal.go_on("run", rule("change", action, ALL_OF_RUN, number)).wait()
    if not done.was_killed:
        # Calls of two threads come in another order now and then, and some fewer.
        rehearsal.check_end("run")
        return
    assert (rehearsal.step("run") or 0) >= before
    rehearsal.finish("run")


@pytest.mark.parametrize("of", [None, "begun"], ids=["new", "resumed"])
@pytest.mark.parametrize("action", ["kill", "powercut"])
def test_an_end_at_each_kind_of_call(short: Rehearsal, of: str | None, action: str) -> None:
    kinds = kinds_of_calls(traced(short, of))
    names = " ".join(kind for _, kind in kinds)
    for call in ("create log.jsonl", "sync log.jsonl", "sync checkpoints"):
        assert call in names
    for call in ("create", "write", "sync", "rename", "unlink"):
        assert call in names
    assert "write step-nnnnnnnn.safetensors.tmp" in names
    for number, _ in kinds[:: 2 if of is None else 1]:
        end_at(short, of, action, number)


def test_an_end_within_a_write(short: Rehearsal) -> None:
    kinds = kinds_of_calls(traced(short, "begun"))
    numbers = [number for number, kind in kinds if kind.startswith("write")]
    assert len(numbers) >= 2
    for number in numbers:
        end_at(short, "begun", "torn", number)


@pytest.mark.complete
@pytest.mark.parametrize("of", [None, "begun"], ids=["new", "resumed"])
@pytest.mark.parametrize("action", ["kill", "torn", "powercut"])
def test_an_end_at_every_call(short: Rehearsal, of: str | None, action: str) -> None:
    calls = len(traced(short, of).met)
    assert calls > 100
    for number in range(1, calls + 1):
        end_at(short, of, action, number)
