"""kill -9, power cuts, signals and a second process: whatever happens, a run can go on.

Its end is byte for byte that of a run that nobody disturbed. `pytest -m complete` does it for all
points, and kills a hundred times.
"""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from andrea.errors import RunError
from andrea.runs import RunFolder
from andrea.training import TrainState, train
from cli_process import TINY
from faults.disk import Child, Nursery, Outcome, open_nursery, rule
from faults.rehearsal import Rehearsal, kinds_of_calls, log, losses
from patience import wait_until
from small_runs import small_config, small_data, small_model, small_run

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
    rehearsal.damage("begun", "damaged")
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


@pytest.mark.parametrize(
    ("of", "action", "one_of"),
    [
        pytest.param("begun", "powercut", 2, id="a power cut"),
        pytest.param("begun", "kill", 3, id="kill -9"),
        pytest.param(None, "powercut", 4, id="a power cut at the beginning"),
    ],
)
def test_an_end_at_each_kind_of_call(
    short: Rehearsal, of: str | None, action: str, one_of: int
) -> None:
    kinds = kinds_of_calls(traced(short, of))
    names = " ".join(kind for _, kind in kinds)
    for call in ("create log.jsonl", "sync log.jsonl", "sync checkpoints", "rename step", "unlink"):
        assert call in names
    assert "write step-nnnnnnnn.safetensors.tmp" in names
    for number, _ in kinds[::-one_of]:
        end_at(short, of, action, number)


def test_an_end_within_a_write(short: Rehearsal) -> None:
    kinds = kinds_of_calls(traced(short, "begun"))
    numbers = [number for number, kind in kinds if kind.startswith("write")]
    assert len(numbers) >= 2
    for number in numbers:
        end_at(short, "begun", "torn", number)


@pytest.mark.complete
@pytest.mark.parametrize("of", [None, "begun", "damaged"], ids=["new", "resumed", "fallen back"])
@pytest.mark.parametrize("action", ["kill", "torn", "powercut"])
def test_an_end_at_every_call(short: Rehearsal, of: str | None, action: str) -> None:
    calls = len(traced(short, of).met)
    assert calls > 100
    for number in range(1, calls + 1):
        end_at(short, of, action, number)


def end_while_preparing(rehearsal: Rehearsal, action: str, number: int) -> None:
    """End a run while it fills an empty cache, and begin it again."""
    place(rehearsal, None)
    shutil.rmtree(rehearsal.folder / ".cache")
    done = rehearsal.begin("run", rule("change", action, "*/.cache/*", number)).wait()
    assert done.was_killed and done.met
    rehearsal.finish("run")


def calls_while_preparing(rehearsal: Rehearsal) -> int:
    place(rehearsal, None)
    shutil.rmtree(rehearsal.folder / ".cache")
    done = rehearsal.begin("run", rule("change", "trace", "*/.cache/*", count=0)).wait()
    assert done.code == 0, done.err
    return len(done.met)


def test_an_end_while_a_text_is_prepared(short: Rehearsal) -> None:
    calls = calls_while_preparing(short)
    assert calls > 8
    end_while_preparing(short, "kill", calls // 2)
    end_while_preparing(short, "powercut", calls - 1)


@pytest.mark.complete
@pytest.mark.parametrize("action", ["kill", "torn", "powercut"])
def test_an_end_at_every_call_of_preparation(short: Rehearsal, action: str) -> None:
    for number in range(1, calls_while_preparing(short) + 1):
        end_while_preparing(short, action, number)


# ---- signals


def wait_for(child: Child, words: str) -> None:
    """Until the child has printed some words."""
    wait_until(lambda: words in child.out, words)


def test_a_signal_to_save_saves_and_goes_on(nursery: Nursery, long: Rehearsal) -> None:
    """SIGUSR1; nothing else would have been saved then."""
    arguments = ("train", "book.txt", *TINY, "--steps", "4000", "--eval-every", "1000")
    child = nursery.start(long.folder, *arguments, "--out", "asked")
    wait_for(child, "step 1/4,000")
    child.send(signal.SIGUSR1)
    wait_for(child, "as asked for")
    said = re.search(r"saved step ([\d,]+) as asked for: (.*)", child.out)
    assert said is not None
    step = int(said[1].replace(",", ""))
    assert long.step("asked") == step and 1 <= step < 1000
    child.send(signal.SIGTERM)
    done = child.wait()
    assert (done.code, done.err) == (143, "")
    last = long.step("asked")
    assert last is not None and last > step
    assert [entry["reason"] for entry in log(long.folder / "asked") if "reason" in entry] == [
        "stopped by a signal"
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    long: Rehearsal, number: signal.Signals, code: int
) -> None:
    out = f"stopped-{code}"
    child = long.begin(out)
    wait_for(child, "step 1/300")
    child.send(number)
    done = child.wait()
    assert (done.code, done.err) == (code, "")
    assert "stopped and saved" in done.out
    assert long.step(out) == len(losses(long.folder / out)) < long.steps
    long.finish(out)


# ---- a second process


def test_a_second_process_is_refused_and_disturbs_nothing(long: Rehearsal) -> None:
    first = long.begin("shared")
    wait_for(first, "step 1/300")
    assert f"is being trained by process {first.pid}" in long.resume("shared").wait().complaint
    assert "holds a run already" in long.begin("shared").wait().complaint
    done = first.wait()
    assert (done.code, done.err) == (0, "")
    long.check_end("shared")


def test_a_run_that_another_process_trained_meanwhile_is_not_taken_back(tmp_path: Path) -> None:
    """Between opening and resuming lies the preparation of the text, which takes its time."""
    config, data = small_config(steps=6, save_every=2), small_data()
    model, state = small_model(), TrainState()
    with small_run(tmp_path, config, model) as run:
        for _ in zip(range(3), train(model, data, config, run=run, state=state), strict=False):
            pass
        run.save(model, state)
    slow = RunFolder.open(tmp_path)
    with RunFolder.open(tmp_path) as fast:
        state = fast.resume(model)
        for _ in train(model, data, config, run=fast, state=state):
            pass
    with pytest.raises(RunError, match="was trained by another process meanwhile: start again"):
        slow.resume(model)
    with RunFolder.open(tmp_path) as again:
        assert again.state().step == 6
        assert again.damaged == again.set_aside == ()
