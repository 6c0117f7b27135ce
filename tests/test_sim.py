"""The simulator of a GPU that the CUDA backend is tested on: it finds what it is there to find.

native/sim/selftest is a program of named cases. Planted ones have a defect each, and the build that
must find it does; correct ones pass in every build and in any order of the threads.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from native_build import REPOSITORY, cxx_compiler, run
from patience import PATIENCE

NATIVE = REPOSITORY / "native"
SIM = NATIVE / "sim"

pytestmark = [
    pytest.mark.skipif(not SIM.is_dir(), reason="no sources beside the tests"),
    pytest.mark.skipif(sys.platform != "linux", reason="the simulator is for Linux"),
]

INCLUDES = [f"-I{path}" for path in (SIM / "include", SIM, NATIVE / "src", NATIVE / "include")]
COMMON = ["-std=c++17", "-O1", "-fno-strict-aliasing", *INCLUDES]
# The simulator itself is one and the same in all builds: only kernels are compiled with sanitizers.
ENGINE = [*COMMON, "-Wall", "-Wextra", "-Werror", "-fno-tree-loop-distribute-patterns"]
KERNELS = {
    "plain": [],
    "asan": ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-g1", "-fsanitize=thread"],
}
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
    "UBSAN_OPTIONS": "halt_on_error=1",
}


def compile_together(made: Path, sources: list[Path], flags: list[str]) -> Path:
    """One object of several sources: most of the time of each goes into the same headers."""
    together = made.with_suffix(".cpp")
    together.write_text("".join(f'#include "{source}"\n' for source in sources), "utf-8")
    run(*cxx_compiler(), *flags, "-c", together, "-o", made)
    return made


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The selftest program of each build."""
    folder = tmp_path_factory.mktemp("selftest")
    parts = {
        part: [path for path in sorted(SIM.glob(f"{part}/*.cpp")) if path.stem != "trace"]
        for part in ("engine", "runtime")
    }
    cases = sorted([*SIM.glob("selftest/*.cu"), *SIM.glob("selftest/*.cpp")])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        simulator = [
            pool.submit(compile_together, folder / f"{part}.o", sources, ENGINE)
            for part, sources in parts.items()
        ]
        kernels = {
            kind: pool.submit(compile_together, folder / f"{kind}.o", cases, [*COMMON, *flags])
            for kind, flags in KERNELS.items()
        }
        objects = [job.result() for job in simulator]
        for kind, job in kernels.items():
            flags = [*KERNELS[kind], "-pthread"]
            run(*cxx_compiler(), *flags, job.result(), *objects, "-o", folder / kind)
    return {kind: folder / kind for kind in KERNELS}


def start(program: Path, case: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, case],
        env={**os.environ, **SANITIZER_OPTIONS, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def numbers(done: subprocess.CompletedProcess[str]) -> np.ndarray:
    """The 128 numbers that a case left in device memory."""
    assert done.returncode == 0, done.stderr
    return np.array(done.stdout.split(), np.float64)


# ---- defects that end the program

RACE = r"ThreadSanitizer: data race"
OVERFLOW = r"AddressSanitizer: heap-buffer-overflow"
FREED = "uses memory that was freed after it had been queued or recorded"

FOUND = [
    ("no_barrier", "tsan", RACE),
    ("buffer_used_again", "tsan", RACE),
    ("no_syncwarp", "tsan", RACE),
    ("shuffle_is_no_barrier", "tsan", RACE),
    ("blocks_add_without_atomic", "tsan", RACE),
    ("last_block_without_fence", "tsan", RACE),
    ("matrix_without_syncwarp", "tsan", RACE),
    ("copy_without_barrier", "tsan", RACE),
    ("past_end", "asan", OVERFLOW),
    ("past_end_shared", "asan", OVERFLOW),
    ("past_end_dynamic_shared", "asan", OVERFLOW),
    ("matrix_past_end", "asan", OVERFLOW),
    ("misaligned", "asan", "misaligned address"),
    ("copy_misaligned", "plain", "not aligned"),
    ("copy_never_waited_for", "plain", "has not waited for"),
    ("divergent_barrier", "plain", "divergent __syncthreads"),
    ("early_exit", "plain", "the thread ends while others wait in __syncthreads"),
    ("half_a_shuffle", "plain", r"warp 0: lane 16 is at .*planted\.cu"),
    ("shuffle_deadlock", "plain", "deadlock in kernel shuffle_deadlock"),
    ("shuffle_from_nobody", "plain", "lane 0 reads lane 16, which does not take part"),
    ("graph_of_freed_memory", "plain", FREED),
    ("freed_staging", "plain", FREED),
    ("host_reads_device", "plain", "host code touches device memory"),
    ("host_reads_device", "asan", "use-after-poison"),
    ("kernel_reads_host", "plain", "is to no memory of the device"),
    ("product_past_end", "plain", "past the end of its memory"),
]


@pytest.mark.parametrize(("case", "kind", "text"), FOUND, ids=[f"{c}-{k}" for c, k, _ in FOUND])
def test_a_planted_defect_ends_the_program(
    programs: dict[str, Path], case: str, kind: str, text: str
) -> None:
    done = start(programs[kind], case)
    assert re.search(text, done.stderr), done.stderr
    assert done.returncode != 0
    if kind == "plain":
        assert done.returncode == 66 and done.stderr.startswith("MGSIM ERROR: ")
        assert done.stderr.count("\n") == 1, "one line"
    else:
        assert case in done.stderr, "the report names the kernel"


# ---- defects that show in the result


@pytest.mark.parametrize("case", ["uninitialised_shared", "copy_not_waited_for"])
def test_what_is_not_written_yet_is_nan(programs: dict[str, Path], case: str) -> None:
    assert np.isnan(numbers(start(programs["plain"], case))).any()


@pytest.mark.parametrize(
    "case", ["no_barrier", "buffer_used_again", "no_syncwarp", "copy_without_barrier"]
)
def test_an_order_that_is_not_enforced_differs(programs: dict[str, Path], case: str) -> None:
    results = {start(programs["plain"], case, MGSIM_SEED=str(seed)).stdout for seed in range(3)}
    assert len(results) > 1


WRONG = {
    "staging_used_again": (np.full(128, 2.0), np.repeat([1.0, 2.0], 64)),
    "no_wait_between_streams": (np.repeat([1.0, 0.0], 64), np.full(128, 1.0)),
    "stale_argument": (np.full(128, 2.0), np.full(128, 20.0)),
}


@pytest.mark.parametrize("case", WRONG)
def test_work_that_is_queued_sees_what_the_host_does_meanwhile(
    programs: dict[str, Path], case: str
) -> None:
    seen, intended = WRONG[case]
    got = numbers(start(programs["plain"], case))
    assert (got[:64] == seen[:64]).all() and not (got == intended).all()


def test_a_result_is_not_there_before_the_wait(programs: dict[str, Path]) -> None:
    done = start(programs["plain"], "no_synchronize")
    assert (done.returncode, done.stderr) == (1, "not so: the result is there\n")


# ---- correct programs


def products() -> np.ndarray:
    row, k, column = np.ogrid[:16, :16, :8]
    return np.asarray(((row + k) * (k - column)).sum(1).ravel(), np.float64)


def staged_copies() -> np.ndarray:
    copied = np.where(np.arange(512) < 500, np.arange(512), 0)
    return np.asarray(np.roll(copied.reshape(4, 128).sum(0), -1), np.float64)


def warp_results() -> np.ndarray:
    lane = np.arange(32)
    down = np.where(lane % 16 + 3 < 16, lane + 3, lane)
    mixed = np.where(lane < 16, np.maximum(lane - 1, 0), lane ^ 1)
    votes = np.full(32, 11 + 100)
    return np.concatenate([np.full(32, 5), down, votes, mixed]).astype(np.float64)


def head(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


CORRECT = {
    "sum_last_block": head(511 * 512 / 2),
    "warp_primitives": warp_results(),
    "block_votes": np.full(128, 43.0 + 100),
    "product_of_rows": products(),
    "product_of_columns": products(),
    "staged_copy": staged_copies(),
    "scattered_atomics": head(32, 32, 32, 32),
    "arguments_are_copied": np.repeat([1.0, 5.0], 64),
    "events_order_streams": np.full(128, 1.0),
    "default_stream_waits": np.repeat([2.0, 1.0], 64),
    "product_with_bias": head(160, 171, 260, 296, 360, 421),
    "refusals": np.zeros(128),
    "product_refusals": np.zeros(128),
}


@pytest.mark.parametrize("case", CORRECT)
def test_what_is_correct_passes_in_every_build(programs: dict[str, Path], case: str) -> None:
    expected = CORRECT[case]
    for kind, seed in [("plain", 0), ("plain", 1), ("asan", 2), ("tsan", 3)]:
        done = start(programs[kind], case, MGSIM_SEED=str(seed))
        got = numbers(done)[: expected.size]
        np.testing.assert_array_equal(got, expected, f"{kind}, seed {seed}")
        assert done.stderr == ""


def test_every_case_is_tested(programs: dict[str, Path]) -> None:
    names = set(start(programs["plain"], "--list").stdout.split())
    by_result = {"uninitialised_shared", "copy_not_waited_for", "no_synchronize", *WRONG}
    assert names == {case for case, _, _ in FOUND} | by_result | set(CORRECT)


def test_the_device_is_what_the_environment_says(programs: dict[str, Path]) -> None:
    done = start(programs["plain"], "block_votes", MGSIM_MEMORY="1024")
    assert "cudaErrorMemoryAllocation" in done.stderr and done.returncode == 1
    done = start(programs["plain"], "block_votes", MGSIM_CAPABILITY="75")
    assert "cudaErrorNoKernelImageForDevice" in done.stderr
    done = start(programs["plain"], "block_votes", MGSIM_DEVICES="0")
    assert "cudaErrorNoDevice" in done.stderr
    done = start(programs["plain"], "product_with_bias", MGSIM_EPILOGUES="0")
    assert "not so: the product is started" in done.stderr
