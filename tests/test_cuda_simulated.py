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
    layouts = ["fp32 and odd", "bf16 and odd", "fp32 and not odd", "bf16 and not odd"]
    runs = side_by_side(simulated_library, *(["ops", "-k", layout] for layout in layouts))
    for done in runs:
        check(done, at_least=1000)


def test_the_model(simulated_library: Path) -> None:
    """Parity, decoding, training, arrays on the device: all that is marked, but for the ops."""
    others = "not fp32 and not bf16"
    runs = side_by_side(
        simulated_library, *([*MODEL, "-k", cases] for cases in ("fp32", "bf16", others))
    )
    for done, at_least in zip(runs, (30, 30, 1), strict=True):
        check(done, at_least)


def test_another_order_of_threads(simulated_library: Path) -> None:
    """Which thread and block goes first is the GPU's choice, so it must not matter."""
    few = ["--one-of", "4"]
    runs = side_by_side(
        simulated_library,
        ["ops", "-k", "fp32 and not odd", *few],
        ["ops", "-k", "bf16 and not odd", *few],
        ["test_parity.py", "-k", "usual or odd"],
        MGSIM_SEED="11",
    )
    for done, at_least in zip(runs, (300, 300, 8), strict=True):
        check(done, at_least)


def test_logits_in_many_pieces(simulated_library: Path) -> None:
    """A GPU with little memory: logits take a 32nd of it, here a single row of the widest case."""
    selection = ["ops/test_head_loss.py", "-k", "1100x5x11 or 70001 or 33x80x513"]
    (done,) = side_by_side(simulated_library, selection, MGSIM_MEMORY=str(64 << 20))
    check(done, at_least=30)


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


# Those of UBSan that arithmetic and pointers can break: all of them take twice as long to compile.
UNDEFINED = "alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero"

# What takes long shows nothing that smaller ones don't.
SMALL = "not operands_larger and not 70001 and not 300001 and not nano"


def test_no_access_out_of_bounds(tmp_path: Path) -> None:
    """AddressSanitizer and UndefinedBehaviorSanitizer, which sees misaligned vectors."""
    preload = sanitizer_runtimes("asan", "ubsan")
    library = sanitized_library(tmp_path, f"address,{UNDEFINED}")
    few = ["--one-of", "6"]
    runs = side_by_side(
        library,
        ["ops", "-k", f"fp32 and {SMALL}", *few],
        ["ops", "-k", f"bf16 and {SMALL}", *few],
        ["test_parity.py", "test_parity_decoding.py", "-k", f"(odd or width or one) and {SMALL}"],
        LD_PRELOAD=preload,
        ASAN_OPTIONS="detect_leaks=0",
    )
    for done, at_least in zip(runs, (400, 400, 10), strict=True):
        check(done, at_least)


def test_no_data_race(tmp_path: Path) -> None:
    """ThreadSanitizer, for which each thread of a kernel is one; it alone sees a missing
    __syncwarp. It takes 20 times as long, so it gets few cases."""
    preload = sanitizer_runtimes("tsan")
    library = sanitized_library(tmp_path, "thread")
    few = ["--one-of", "18"]
    runs = side_by_side(
        library,
        ["ops", "-k", f"fp32 and not odd and {SMALL}", *few],
        ["ops", "-k", f"bf16 and not odd and {SMALL}", *few],
        ["test_parity.py", "-k", "width"],
        LD_PRELOAD=preload,
        TSAN_OPTIONS="exitcode=66 halt_on_error=1",
    )
    for done, at_least in zip(runs, (80, 80, 4), strict=True):
        check(done, at_least)
