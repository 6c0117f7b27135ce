"""Breaks the CUDA backend on purpose, one line at a time, and shows that the simulator notices.

Barriers, guards and waits make no difference most of the time, on a GPU least of all: here each of
them is taken out of a copy of the sources, and a test of parity fails, or the simulator ends it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from native_build import build, passed_in, run_tests


@dataclass(frozen=True)
class Mutant:
    """What stands in a file of native/src/cuda, what it is replaced by, and who must notice.

    test: a test and, after a space, which of its cases (pytest's -k).
    """

    file: str
    text: str
    broken: str
    test: str


BARRIER = "__syncthreads();"
NORM = "ops/test_norm.py::test_backward cuda-fp32 and 131 and (64 or 33)"
ATTENTION = "ops/test_attention.py::test_forward cuda-bf16 and 1x257x2x64"

MUTANTS = {
    "the block's largest logit is read before all warps wrote theirs": Mutant(
        "loss.cu",
        f"if (lane == 0) room[warp] = value;\n    {BARRIER}",
        "if (lane == 0) room[warp] = value;",
        "ops/test_head_loss.py::test_losses cuda and 5x12x2305",
    ),
    "padded columns of logits have a gradient": Mutant(
        "loss.cu",
        "values[i] = c + i < V ? gradient : 0.0f;",
        "values[i] = gradient;",
        "test_parity.py::test_loss_logits_and_gradients cuda-bf16 and usual",
    ),
    "bf16 gradients are written over logits that are still to be read": Mutant(
        "loss.cu",
        f"if constexpr (sizeof(E) < sizeof(float)) {BARRIER}",
        "",
        "ops/test_head_loss.py::test_gradients cuda-bf16 and (5x12x257 or 5x12x2305)",
    ),
    "embedding gradients are added up before all warps are done": Mutant(
        "embedding.cu",
        f"sums[p]);\n            {BARRIER}",
        "sums[p]);",
        "ops/test_embedding.py::test_backward cuda",
    ),
    "the norm's gradients are added up before all rows are done": Mutant(
        "norm_backward.cu",
        f"store(piece + threadIdx.x * 4, sum);\n            {BARRIER}",
        "store(piece + threadIdx.x * 4, sum);",
        NORM,
    ),
    "threads update before they know the step's size": Mutant(
        "optimizer.cu",
        f"{BARRIER}\n    const Update update = *shared_update;",
        "const Update update = *shared_update;",
        "ops/test_adamw.py::test_one_step cuda and 1000",
    ),
    "biases decay": Mutant(
        "optimizer.cu",
        "ranges.decays[range] != 0 ? update.decayed : 1.0f",
        "update.decayed",
        "ops/test_adamw.py::test_one_step cuda and 17",
    ),
    "an update leaves the copy of the weights as it was": Mutant(
        "optimizer.cu",
        "if (arrays.prepared != nullptr) store(arrays.prepared + i, p);",
        "",
        "test_parity.py::test_ten_optimizer_steps cuda-bf16 and 0.5",
    ),
    "a sum goes past its end": Mutant(
        "reductions.cu",
        "if (whole + thread < count) sums[0]",
        "sums[0]",
        "ops/test_reductions.py::test_sum cuda and 257",
    ),
    "attention sees the future": Mutant(
        "attention.cu",
        "if (key + kTogether<kDim> - 1 > row)",
        "if (false)",
        "ops/test_attention.py::test_the_future_is_not_seen cuda-bf16",
    ),
    "attention doesn't wait for its keys": Mutant(
        "attention.cu",
        f"cp_async_wait<0>();\n        {BARRIER}",
        BARRIER,
        ATTENTION,
    ),
    "attention loads keys over those that are still read": Mutant(
        "attention.cu",
        f"{BARRIER}  // this tile is here, and no warp still reads the one before it",
        "",
        ATTENTION,
    ),
    "attention's gradient loads queries over those that are still read": Mutant(
        "attention_backward.cu",
        f"{BARRIER}  // this tile is here, and no warp still reads the one before it",
        "",
        "ops/test_attention.py::test_backward cuda-bf16 and 1x257x2x64",
    ),
    "attention's results are stored before the warp has put them together": Mutant(
        "attention_tiles.h",
        "            }\n    __syncwarp();",
        "            }",
        "ops/test_attention.py cuda-bf16 and 1x257x2x64",
    ),
    "decoding adds up what other groups haven't written": Mutant(
        "cached_attention.cu",
        f"group_total[group] = total;\n        }}\n        {BARRIER}",
        "group_total[group] = total;\n        }",
        "ops/test_cached_attention.py::test_sequences_fed_in_turn cuda and once",
    ),
    "column sums are read before they are there": Mutant(
        "elementwise.cu",
        f"room[i * kThreads + threadIdx.x] = sums[i];\n    {BARRIER}",
        "room[i * kThreads + threadIdx.x] = sums[i];",
        "ops/test_linear.py::test_backward_weight cuda and unfused and 97x193x257",
    ),
    "a thread that goes on to the next row of gates stays in its own": Mutant(
        "activation.cu",
        "column -= M;\n            ++row;",
        "column -= M;",
        "ops/test_activation.py cuda-fp32 and 300001",
    ),
    "RMSNorm's gradient is centred": Mutant(
        "norm_backward.cu",
        "mean != nullptr ? sums[0] * share : 0.0f",
        "sums[0] * share",
        "ops/test_norm_variants.py::test_backward cuda-fp32 and RMSNorm and 70x8",
    ),
}


class Workshop:
    """The sources and the build folder of a build, where only what is broken is compiled again."""

    def __init__(self, built: Path, library: Path, folder: Path) -> None:
        self.cuda = built.parent / "source" / "native" / "src" / "cuda"
        self.built = built
        self.library = library
        self.folder = folder
        self.unbroken = Path(shutil.copy2(library, folder / library.name))

    def broken(self, name: str) -> Path:
        """The library with a mutant in it, a file of its own."""
        mutant = MUTANTS[name]
        path = self.cuda / mutant.file
        compiled = (self.built / "native" / "sim").rglob("src/cuda/*.o")
        original = path.read_text("utf-8")
        found = original.count(mutant.text)
        assert found == 1, f"a stale mutant: {mutant.text!r} stands {found} times in {mutant.file}"
        kept = [(one, Path(shutil.copy2(one, f"{one}.kept"))) for one in (path, *compiled)]
        path.write_text(original.replace(mutant.text, mutant.broken), "utf-8")
        try:
            build(self.built, "microgpt_cuda_sim")
            number = list(MUTANTS).index(name)
            return Path(shutil.copy2(self.library, self.folder / f"broken-{number}.so"))
        finally:
            # With their times, so that nothing is compiled again.
            for one, copy in kept:
                os.replace(copy, one)
            shutil.copy2(self.unbroken, self.library)


@pytest.fixture(scope="module")
def workshop(
    checked_build: Path, simulated_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Workshop:
    return Workshop(checked_build, simulated_library, tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def libraries(
    workshop: Workshop, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Path]]]:
    """The broken library of each mutant of this run; one is built while another is tested."""
    cases = [getattr(item, "callspec", None) for item in request.session.items]
    names = {case.params.get("mutant"): None for case in cases if case}
    pool = ThreadPoolExecutor(1)
    yield {name: pool.submit(workshop.broken, name) for name in MUTANTS if name in names}
    pool.shutdown(cancel_futures=True)


def outcome(library: Path, *selection: str) -> tuple[int, int, str]:
    """The status, how many cases passed, and what was said."""
    # Threads in another order each time they may go: in order, a missing barrier can hide.
    done = run_tests(
        library,
        *(*selection, "-m", "gpu", "--tb=line", "--capture=sys"),
        OMP_NUM_THREADS="2",
        MGSIM_SEED="5",
    )
    return done.returncode, passed_in(done), done.stdout[-2000:] + done.stderr[-1000:]


def test_the_unbroken_library_passes(
    workshop: Workshop, libraries: dict[str, Future[Path]]
) -> None:
    """All that is to notice a mutant of this run."""
    tests = [MUTANTS[name].test.split(" ", 1) for name in libraries]
    files = sorted({test.split("::")[0] for test, _ in tests})
    cases = [f"({' and '.join(Path(test).name.split('::'))} and ({case}))" for test, case in tests]
    status, passed, said = outcome(workshop.unbroken, *files, "-k", " or ".join(cases))
    assert status == 0 and passed >= len(tests), said


# A CI run takes every second one, a complete run the others.
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(name, marks=[pytest.mark.complete] if number % 2 else [])
        for number, name in enumerate(MUTANTS)
    ],
)
def test_a_broken_line_is_noticed(libraries: dict[str, Future[Path]], mutant: str) -> None:
    test, cases = MUTANTS[mutant].test.split(" ", 1)
    status, _, said = outcome(libraries[mutant].result(), test, "-k", cases, "-x")
    # 1: a test failed. 66: the simulator ended it.
    assert status in (1, 66), f"status {status}\n{said}"
