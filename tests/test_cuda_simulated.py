"""Device cuda on the simulator: every test marked `gpu`, plain, in other orders and sanitized.

Each build of the library has processes of its own, which run side by side. The simulator ends its
process with status 66 where a kernel does what a GPU wouldn't bear.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from native_build import (
    build,
    configure,
    copy_sources,
    passed_in,
    run_tests,
    sanitizer_runtimes,
)

Done = subprocess.CompletedProcess[str]


def side_by_side(library: Path, *selections: list[str], **environment: str) -> list[Done]:
    """Runs of tests marked `gpu`, as many at a time as there are processors."""
    # What the simulator says goes past the tests' capture of prints; -v names the test it was in.
    usual = ["-m", "gpu", "-v", "-x", "--capture=sys", "--tb=short"]

    def one(selection: list[str]) -> Done:
        return run_tests(library, *usual, *selection, OMP_NUM_THREADS="1", **environment)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(one, selections))


def check(done: Done, at_least: int) -> None:
    """All passed, none was skipped, and they were not fewer than should be."""
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, f"status {done.returncode}\n{said}"
    assert passed_in(done) >= at_least, said
    assert "skipped" not in done.stdout.rstrip().splitlines()[-1], said


MODEL = ["--ignore=ops"]


def test_every_op(simulated_library: Path) -> None:
    halves = ["fp32", "bf16"]
    runs = side_by_side(simulated_library, *(["ops", "-k", f"cuda-{half}"] for half in halves))
    for done in runs:
        check(done, at_least=1000)


def test_the_model(simulated_library: Path) -> None:
    runs = side_by_side(
        simulated_library, [*MODEL, "-k", "fp32"], [*MODEL, "-k", "bf16"], [*MODEL, "-k", OTHERS]
    )
    for done in runs:
        check(done, at_least=1)


OTHERS = "not fp32 and not bf16"


def test_another_order_of_threads(simulated_library: Path) -> None:
    """Which thread and block goes first is the GPU's choice, so it must not matter."""
    few = ["--one-of", "4"]
    runs = side_by_side(
        simulated_library,
        ["ops", "-k", "cuda-fp32", *few],
        ["ops", "-k", "cuda-bf16", *few],
        ["test_parity.py", "-k", "usual"],
        MGSIM_SEED="11",
    )
    for done, at_least in zip(runs, (250, 250, 2), strict=True):
        check(done, at_least)


def sanitized_library(folder: Path, sanitizers: str) -> Path:
    source = copy_sources(folder)
    configure(
        source,
        folder / "build",
        MICROGPT_SANITIZE=sanitizers,
        MICROGPT_ISA="generic",
        MICROGPT_SIM="ON",
    )
    return build(folder / "build", "microgpt_cuda_sim")


def test_no_access_out_of_bounds(tmp_path: Path) -> None:
    """AddressSanitizer and UndefinedBehaviorSanitizer, which sees misaligned vectors."""
    preload = sanitizer_runtimes("asan", "ubsan")
    library = sanitized_library(tmp_path, "address,undefined")
    few = ["--one-of", "5"]
    runs = side_by_side(
        library,
        ["ops", "-k", "cuda-fp32", *few],
        ["ops", "-k", "cuda-bf16", *few],
        ["test_parity.py", "test_parity_decoding.py", "-k", "odd or width or one"],
        LD_PRELOAD=preload,
        ASAN_OPTIONS="detect_leaks=0",
    )
    for done, at_least in zip(runs, (200, 200, 10), strict=True):
        check(done, at_least)


def test_no_data_race(tmp_path: Path) -> None:
    """ThreadSanitizer, for which each thread of a kernel is one; it alone sees a missing
    __syncwarp. It takes 20 times as long, so it gets few cases."""
    preload = sanitizer_runtimes("tsan")
    library = sanitized_library(tmp_path, "thread")
    few = ["--one-of", "20"]
    runs = side_by_side(
        library,
        ["ops", "-k", "cuda-fp32", *few],
        ["ops", "-k", "cuda-bf16", *few],
        ["test_parity.py", "-k", "width"],
        LD_PRELOAD=preload,
        TSAN_OPTIONS="exitcode=66 halt_on_error=1",
    )
    for done, at_least in zip(runs, (50, 50, 2), strict=True):
        check(done, at_least)
