"""Bounded memory: a text of 60 MB is prepared, and a token file larger than memory read."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import andrea
from patience import PATIENCE

STATUS = Path("/proc/self/status")
pytestmark = pytest.mark.skipif(
    not STATUS.exists() or "VmHWM" not in STATUS.read_text(),
    reason="the system does not tell a process its own peak memory (VmHWM)",
)

MEGABYTES = 60  # all of it would be seen: 40 are allowed

# Not getrusage: its peak starts with that of the process that started this one.
PEAK = """
import re, sys
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
"""

PREPARE = """
from andrea.data import prepare
small = prepare([sys.argv[1]], cache_dir=sys.argv[3], tokenizer="byte")
before = peak()
large = prepare([sys.argv[2]], cache_dir=sys.argv[3], tokenizer="byte")
print(before, peak(), large.num_bytes)
"""

PREPARE_BPE = """
import resource
from andrea.data import prepare
large = prepare([sys.argv[1]], cache_dir=sys.argv[2], tokenizer="bpe", vocab_size=400, processes=2)
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(peak(), children, large.num_bytes)
"""

SAMPLE = """
import numpy as np
from andrea.data import BatchSampler
sampler = BatchSampler(np.load(sys.argv[1], mmap_mode="r"), 8, 512)
sampler.batch(0)
before = peak()
for n in range(10_000):
    sampler.batch(n)
print(before, peak())
"""


def run(code: str, *arguments: Path) -> list[float]:
    root = Path(andrea.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", PEAK + code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return [float(number) for number in done.stdout.split()]


@pytest.mark.parametrize("kind", ["text", "one line", "gzip", "records"])
def test_preparation_is_bounded(tmp_path: Path, kind: str) -> None:
    size = MEGABYTES if kind == "text" else 25
    line = b"It is a truth universally acknowledged, that caf\xc3\xa9s are in want of tea.\n"
    if kind == "one line":
        line = line.replace(b"\n", b" ")
    if kind == "records":
        line = b'{"text": "' + line.strip() * 20 + b'"}\n'
    block = line * ((1 << 20) // len(line))
    suffix = {"gzip": ".txt.gz", "records": ".jsonl"}.get(kind, ".txt")
    large, small = tmp_path / f"large{suffix}", tmp_path / "small.txt"
    small.write_bytes(b"a small text of its own to warm up with")
    with gzip.open(large, "wb", 1) if kind == "gzip" else large.open("wb") as file:
        for _ in range(size):
            file.write(block)
    before, peak, num_bytes = run(PREPARE, small, large, tmp_path / "cache")
    assert num_bytes > 0.9 * size * (1 << 20)
    assert peak - before < 40, f"{peak:.0f} MB resident, {before:.0f} MB before"
    assert peak < 200


def test_a_parquet_file_of_one_row_group_is_bounded(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    generator = np.random.default_rng(1)
    texts = [generator.bytes(2000).hex() for _ in range(20_000)]
    for name, rows in (("small", texts[:100]), ("large", texts)):
        table = arrow.table({"text": rows})
        parquet.write_table(
            table, tmp_path / f"{name}.parquet", compression="none", use_dictionary=False
        )
    small, large = tmp_path / "small.parquet", tmp_path / "large.parquet"
    before, peak, num_bytes = run(PREPARE, small, large, tmp_path / "cache")
    assert num_bytes == 80_000_000
    assert peak - before < 60, f"{peak:.0f} MB resident, {before:.0f} MB before"


def test_processes_are_bounded(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    words = np.array(
        ["".join(chr(97 + n) for n in row) for row in generator.integers(0, 26, (3000, 6))]
    )
    with (tmp_path / "large.txt").open("w") as file:
        for _ in range(20):
            file.write(" ".join(words[generator.integers(0, 3000, 150_000)]) + "\n")
            # Words that are met once: remembering them all would take 200 bytes each.
            file.write(" ".join(f"{number:x}" for number in generator.integers(0, 2**40, 10_000)))
    main, child, num_bytes = run(PREPARE_BPE, tmp_path / "large.txt", tmp_path / "cache")
    assert num_bytes > 20 << 20
    # With four of them 1 GB is far away.
    assert main < 250 and child < 180, f"{main:.0f} MB resident, {child:.0f} MB in a process"


def test_batches_of_a_file_larger_than_memory_are_bounded(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    length = memory * 5 // 4 // 2
    # Two bytes a token; what is not written is read as zeros and takes no space on the disk.
    tokens = np.lib.format.open_memmap(
        tmp_path / "tokens.npy", mode="w+", dtype=np.uint16, shape=(length,)
    )
    tokens[:: length // 100] = 1
    del tokens
    before, peak = run(SAMPLE, tmp_path / "tokens.npy")
    # 80,000 windows touch pages all over the file.
    assert peak - before < 100, f"{peak:.0f} MB resident, {before:.0f} MB before"
