"""Device cuda on the simulator: every test marked `gpu`, plain, in other orders and sanitized.

Each build of the library has processes of its own, which run beside the other tests. The simulator
ends its process with status 66 where a kernel does what a GPU wouldn't bear.
"""

from __future__ import annotations

import subprocess

import pytest

import sanitized_builds
import side_jobs
from native_build import passed_in, run_tests, sanitizer_runtimes
from sanitized_builds import ACCESSES, RACES

Done = subprocess.CompletedProcess[str]

# What the simulator says goes past the tests' capture of prints; -v names the test it was in.
USUAL = ["-m", "gpu", "-v", "-x", "--capture=sys", "--tb=short"]


def job(name: str, library: str, *selection: str, **environment: str) -> str:
    """Make known a run of tests marked `gpu`, with the library of one of the builds."""

    def work() -> Done:
        built = side_jobs.result(library)
        path = built / "native" / "libmicrogpt_cuda_sim.so"
        runtimes = sanitized_builds.RUNTIMES.get(library)
        preload = {"LD_PRELOAD": sanitizer_runtimes(*runtimes)} if runtimes else {}
        return run_tests(path, *USUAL, *selection, OMP_NUM_THREADS="1", **preload, **environment)

    return side_jobs.job(name, work, library)


def check(name: str, at_least: int) -> None:
    """All passed, none was skipped, and they were not fewer than should be."""
    done: Done = side_jobs.result(name)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, f"status {done.returncode}\n{said}"
    assert passed_in(done) >= at_least, said
    assert "skipped" not in done.stdout.rstrip().splitlines()[-1], said


def each(cases: dict[str, int]) -> pytest.MarkDecorator:
    """A test for each job, which starts when the session does: name and number of tests."""
    return pytest.mark.parametrize(
        ("name", "at_least"),
        [
            pytest.param(name, count, marks=[pytest.mark.awaits(name), *PATIENCE.get(name, ())])
            for name, count in cases.items()
        ],
        ids=list(cases),
    )


# In bf16 the kernels do the same and more, on tensor cores: that is what every CI run looks at.
PATIENCE = {
    name: [pytest.mark.complete]
    for name in (
        "accesses, fp32",
        "order, fp32",
        "training, fp32",
        *(f"ops, {layout}, all" for layout in ("fp32 and not odd", "fp32 and odd", "bf16 and odd")),
        *(f"races, {of}" for of in ("fp32", "model", "rows")),
    )
}

PLAIN = "checked build"

# ---- plain

OPS = {job("ops, bf16 and not odd", PLAIN, "ops", "-k", "bf16 and not odd"): 1000}
# Memory at odd places makes kernels go number by number, whatever a case computes.
SHARES = {"bf16 and odd": 3, "fp32 and not odd": 3, "fp32 and odd": 6}
FEWER = {
    job(f"ops, {layout}{rest}", PLAIN, "ops", "-k", layout, "--one-of", str(of)): 1000 // of
    for layout, share in SHARES.items()
    for rest, of in (("", share), (", all", 1))
}

# Parity, decoding, training, arrays on the device: all that is marked, but for the ops. Training's
# own tests are of the host's side, which is one and the same in both precisions.
MODEL = {
    job("model", PLAIN, "--ignore=ops", "-k", "not (test_cuda_training and fp32)"): 60,
    job("training, fp32", PLAIN, "test_cuda_training.py", "-k", "fp32"): 8,
}

# Which thread and block goes first is the GPU's choice, so it must not matter.
ORDER = {
    job(f"order, {name}", PLAIN, *selection, MGSIM_SEED="11"): count
    for name, selection, count in (
        ("fp32", ["ops", "-k", "fp32 and not odd", "--one-of", "6"], 300),
        ("bf16", ["ops", "-k", "bf16 and not odd", "--one-of", "6"], 300),
        ("model", ["test_parity.py", "-k", "usual or odd"], 8),
    )
}

# A GPU with little memory: logits take a 32nd of it, here a single row of the widest case.
WIDE = ["ops/test_head_loss.py", "-k", "1100x5x11 or 70001 or 33x80x513"]
LITTLE = {job("little memory", PLAIN, *WIDE, MGSIM_MEMORY=str(64 << 20)): 30}

# Another library, in a thread of its own, may use the default stream while a step is recorded.
BESIDE = ["test_cuda_host.py", "-k", "more_shapes and bf16"]
NEIGHBOUR = {job("beside another library", PLAIN, *BESIDE, MGSIM_NEIGHBOUR="1"): 1}


@each({**OPS, **FEWER})
def test_every_op(name: str, at_least: int) -> None:
    check(name, at_least)


@each(MODEL)
def test_the_model(name: str, at_least: int) -> None:
    check(name, at_least)


@each(ORDER)
def test_another_order_of_threads(name: str, at_least: int) -> None:
    check(name, at_least)


@each(LITTLE)
def test_logits_in_many_pieces(name: str, at_least: int) -> None:
    check(name, at_least)


@each(NEIGHBOUR)
def test_recording_beside_another_library(name: str, at_least: int) -> None:
    check(name, at_least)


# ---- sanitized

# What takes long shows nothing that smaller ones don't.
SMALL = "not operands_larger and not 70001 and not 300001 and not nano"

BOUNDS = {
    job(f"accesses, {name}", ACCESSES, *selection, ASAN_OPTIONS="detect_leaks=0"): count
    for name, selection, count in (
        ("fp32", ["ops", "-k", f"fp32 and {SMALL}", "--one-of", "12"], 300),
        ("bf16", ["ops", "-k", f"bf16 and {SMALL}", "--one-of", "12"], 300),
        (
            "model",
            [
                "test_parity.py",
                "test_parity_decoding.py",
                "-k",
                f"(odd or width or one) and {SMALL}",
            ],
            10,
        ),
    )
}

# For ThreadSanitizer each thread of a kernel is one: 20 times the time, so there are few cases.
ORDERED = {
    job(f"races, {name}", RACES, *selection, TSAN_OPTIONS="exitcode=66 halt_on_error=1"): count
    for name, selection, count in (
        ("fp32", ["ops", "-k", f"fp32 and not odd and {SMALL}", "--one-of", "30"], 90),
        ("bf16", ["ops", "-k", f"bf16 and not odd and {SMALL}", "--one-of", "30"], 90),
        ("model", ["test_parity.py", "-k", "width"], 4),
        ("rows", ["ops", "-m", "gpu and complete", "-k", "fp32 and not odd"], 1),
    )
}


@each(BOUNDS)
def test_no_access_out_of_bounds(name: str, at_least: int) -> None:
    """AddressSanitizer and UndefinedBehaviorSanitizer, which sees misaligned vectors."""
    check(name, at_least)


@each(ORDERED)
def test_no_data_race(name: str, at_least: int) -> None:
    """ThreadSanitizer; it alone sees a missing __syncwarp."""
    check(name, at_least)
