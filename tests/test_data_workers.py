"""Several processes: results in order, the same as of one, whatever becomes of the processes."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.data import PreparedData, prepare, workers
from andrea.data.encoding import BatchEncoder, Segment
from andrea.data.workers import map_in_order
from andrea.errors import TokenizerError
from andrea.tokenizers import ByteTokenizer, CharTokenizer, train_tokenizer
from patience import PATIENCE, wait_until

TEXT = "It was the best of times, it was the worst of times, naïve 猫 and all.\n"


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that were started; none may be left at the end."""
    started: list[subprocess.Popen[bytes]] = []
    start = workers._Worker.__init__

    def keep(self: workers._Worker, function: Any) -> None:
        start(self, function)
        if self._process is not None:
            started.append(self._process)

    monkeypatch.setattr(workers._Worker, "__init__", keep)
    yield started
    assert all(process.returncode is not None for process in started)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_come_in_order(processes: int, children: list[Any]) -> None:
    results = list(map_in_order(operator.neg, range(50), processes))
    assert results == [-number for number in range(50)]
    assert len(children) == (0 if processes == 1 else processes)


def test_fewer_batches_than_processes(children: list[Any]) -> None:
    assert list(map_in_order(operator.neg, [], 2)) == []
    assert list(map_in_order(operator.neg, [7], 2)) == [-7]


def test_the_batches_are_done_in_the_processes(children: list[Any]) -> None:
    # A function that returns the process it runs in.
    found = set(map_in_order(eval, ["__import__('os').getpid()"] * 8, 2))
    assert found == {process.pid for process in children}
    assert os.getpid() not in found


def test_a_dead_process_costs_no_batch(children: list[Any]) -> None:
    def batches() -> Iterator[int]:
        for number in range(30):
            if number in (10, 20):
                children[number // 20].kill()
            yield number

    results = list(map_in_order(operator.neg, batches(), 2))
    assert results == [-number for number in range(30)]


@pytest.mark.parametrize(
    ("name", "value"), [("executable", "/nowhere/python"), ("executable", ""), ("frozen", True)]
)
def test_where_no_python_can_be_started_the_work_is_done_here(
    monkeypatch: pytest.MonkeyPatch, children: list[Any], name: str, value: object
) -> None:
    monkeypatch.setattr(sys, name, value, raising=False)
    assert list(map_in_order(operator.neg, range(5), 2)) == [0, -1, -2, -3, -4]
    assert not children


def test_a_function_that_cannot_be_sent_is_used_here(children: list[Any]) -> None:
    assert list(map_in_order(lambda number: -number, range(5), 2)) == [0, -1, -2, -3, -4]


def test_an_error_of_the_function_is_raised_here(children: list[Any]) -> None:
    encoder = BatchEncoder(CharTokenizer("abc"), 0.0)
    batches = [[Segment(False, True, text)] for text in (b"aa", b"bb", b"cxc", b"aa")]
    results = map_in_order(encoder, batches, 2)
    assert next(results).tokens[0].tolist() == [3, 0, 0]
    with pytest.raises(TokenizerError, match=r"does not know 'x' \(U\+0078\)"):
        list(results)
    with pytest.raises(ZeroDivisionError):
        list(map_in_order(eval, ["1", "1 / 0"], 2))


def test_a_reader_that_stops_leaves_no_process(children: list[Any]) -> None:
    results = map_in_order(operator.neg, range(50), 2)
    assert next(results) == 0
    results.close()
    assert len(children) == 2  # the fixture checks that they are gone


ENDLESS = """
import itertools, operator
from andrea.data import workers
start = workers._Worker.__init__
def tell(self, function):
    start(self, function)
    print(self._process.pid, flush=True)
workers._Worker.__init__ = tell
for result in workers.map_in_order(operator.neg, itertools.count(), 2):
    pass
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no list of processes in /proc")
def test_processes_end_when_the_first_is_killed() -> None:
    root = Path(andrea.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        pids = [int(first.stdout.readline()) for _ in range(2)]
        assert all(map(is_running, pids))
        first.kill()
    wait_until(lambda: not any(map(is_running, pids)), "the end of the others")


# ---- a whole text


def outcome(prepared: PreparedData) -> dict[str, Any]:
    tokens = {"train": prepared.train.tobytes(), "validation": prepared.validation.tobytes()}
    return vars(prepared) | tokens


@pytest.mark.parametrize("kind", ["one", "many"])
@pytest.mark.parametrize("name", ["byte", "char", "bpe"])
def test_tokens_do_not_depend_on_the_number_of_processes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    children: list[Any],
    name: str,
    kind: str,
) -> None:
    monkeypatch.setattr("andrea.data.sources.CHUNK", 700)
    monkeypatch.setattr("andrea.data.encoding._BATCH_BYTES", 1000)
    source = tmp_path / "text"
    source.mkdir()
    for number in range(1 if kind == "one" else 25):
        (source / f"{number}.txt").write_text(f"{number}. {TEXT * (number + 1)}" * 3)
    if kind == "one":
        (source / "0.txt").write_text(TEXT * 200)
    tokenizer = train_tokenizer(name, [TEXT * 9 + "0123456789"]).tokenizer
    results = [
        outcome(
            prepare(
                [source], cache_dir=tmp_path / f"{number}", tokenizer=tokenizer, processes=number
            )
        )
        for number in (1, 2, 3)
    ]
    assert len(children) == 5
    assert results[0] == results[1] == results[2]


def test_only_a_large_text_is_worth_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: list[Any]
) -> None:
    book = tmp_path / "book.txt"
    book.write_text(TEXT * 300)
    prepare([book], cache_dir=tmp_path / "a", tokenizer="byte")
    assert not children
    monkeypatch.setattr("andrea.data.workers._LARGE_TEXT", 1000)
    monkeypatch.setattr("andrea.data.workers.usable_cores", lambda: 64)
    prepare([book], cache_dir=tmp_path / "b", tokenizer="byte")
    assert len(children) == workers._MOST_PROCESSES
    monkeypatch.setattr("andrea.data.workers.usable_cores", lambda: 1)
    prepare([book], cache_dir=tmp_path / "c", tokenizer="byte")
    assert len(children) == workers._MOST_PROCESSES


def test_a_tokenizer_that_other_processes_cannot_load(
    tmp_path: Path, children: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reversed(ByteTokenizer):
        """Known to this process alone."""

        name = "reversed"

        def encode(self, text: str) -> np.ndarray:
            return 255 - super().encode(text)

    book = tmp_path / "book.txt"
    book.write_text(TEXT * 30)
    prepared = prepare([book], cache_dir=tmp_path / "a", tokenizer=Reversed(), processes=2)
    assert prepared.train[1] == 255 - ord("I")


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Children must not run the caller's script again, as those of multiprocessing do."""
    book = tmp_path / "book.txt"
    book.write_text(TEXT * 30)
    script = tmp_path / "script.py"
    script.write_text(
        "from andrea.data import prepare\n"
        f"prepared = prepare([{str(book)!r}], cache_dir={str(tmp_path / 'cache')!r},"
        " tokenizer='byte', processes=2)\n"
        "print('once', len(prepared.train))\n"
    )
    root = Path(andrea.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["once", str(len(TEXT.encode()) * 27 + 1)]
    assert done.stderr == ""
