"""Two processes on one run folder: the second is refused, whatever the first one's fate is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from andrea.errors import RunError
from andrea.runs import RunFolder
from andrea.runs.lock import RunLock
from small_runs import small_config, small_model, small_run

HOLDER = """
import sys, time
from pathlib import Path
from andrea.runs.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock of tmp_path."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(RunError, match=f"is being trained by process {holder.pid}"):
        RunLock(tmp_path)


def test_a_killed_process_holds_nothing(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    lock = RunLock(tmp_path)
    lock.release()
    lock.release()


def test_a_run_is_read_while_it_is_trained(tmp_path: Path) -> None:
    model = small_model()
    with small_run(tmp_path, small_config(), model) as run:
        run.save(model, run.state())
        with RunFolder.open(tmp_path) as reader:
            reader.load(small_model())
            with pytest.raises(RunError, match="being trained"):
                reader.resume(small_model())
    with RunFolder.open(tmp_path) as again:
        again.resume(model)


def test_a_new_run_is_refused_before_anything_is_written(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(RunError, match="being trained"):
        small_run(tmp_path, small_config(), small_model())
    assert os.listdir(tmp_path) == ["lock"]
