"""What all tests share: texts to learn from, and a table of measured errors at the end."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

import side_jobs

# Before NumPy loads: its products are small here, and two libraries' threads would fight for the
# cores. Not OMP_NUM_THREADS, which the engine obeys too.
for _variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# Where the first two are set, pytest shows how values differ line by line, whatever their size: on
# a build machine, one tensor's wrong bits would take it ten minutes. The others are wishes for what
# is printed, of who started the tests; a test says what it wants.
_OF_THE_CALLER = (
    *("CI", "BUILD_NUMBER", "COLUMNS", "LINES"),
    *("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
)
for _variable in _OF_THE_CALLER:
    os.environ.pop(_variable, None)

REPOSITORY = Path(__file__).resolve().parent.parent


def _shared_text(name: str) -> Path:
    path = REPOSITORY.parent / "shared" / "data" / name
    if not path.is_file():
        pytest.skip(f"no {name} in ../shared/data beside the repository")
    return path


@pytest.fixture(scope="session", autouse=True)
def _empty_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run in an empty folder: nothing is left in the checkout, and a child's `import andrea`
    finds the installed package, not the sources, which lack their library. Caches are empty, too,
    and nothing is kept in the home folder, where there may be none."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("here"))
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CACHE_HOME", "MPLCONFIGDIR"):
            patch.setenv(variable, str(tmp_path_factory.mktemp("cache")))
        yield
    os.chdir(before)


@pytest.fixture(scope="session")
def shakespeare() -> Path:
    """Tiny Shakespeare, 1.1 MB of plays, or a skip where the machine doesn't have it."""
    return _shared_text("tinyshakespeare.txt")


@pytest.fixture(scope="session")
def names() -> Path:
    """32,000 given names, one a line, or a skip where the machine doesn't have them."""
    return _shared_text("names.txt")


def _checked_build() -> Path:
    import native_build

    folder = Path(tempfile.mkdtemp(prefix="andrea-checked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = native_build.copy_sources(folder)
    native_build.configure(
        source,
        folder / "build",
        MICROGPT_WERROR="ON",
        MICROGPT_EMULATE_AVX512="ON",
        MICROGPT_SIM="ON",
    )
    native_build.build(folder / "build", processors=1)
    return folder / "build"


side_jobs.job("checked build", _checked_build)


@pytest.fixture(scope="session")
def checked_build() -> Path:
    """A folder with the whole library built: warnings are errors, 16-lane kernels run on AVX2, and
    beside it the library whose CUDA backend runs on the simulator."""
    return Path(side_jobs.result("checked build"))


@pytest.fixture(scope="session")
def simulated_library(checked_build: Path) -> Path:
    """The library that runs the CUDA backend's kernels on the CPU."""
    return checked_build / "native" / "libmicrogpt_cuda_sim.so"


def _turn(item: pytest.Item) -> int:
    """Tests that wait for work of other processes come last: it goes on beside the others."""
    uses = set(getattr(item, "fixturenames", ()))
    if {"workshop", "simulated_library"} <= uses:
        return 2  # it breaks a library that the jobs of others use
    return 1 if "checked_build" in uses or item.get_closest_marker("awaits") else 0


def pytest_collection_finish(session: pytest.Session) -> None:
    """Long work of other processes starts at once, and goes on beside the tests."""
    names: dict[str, None] = {}
    for item in session.items:
        if {"checked_build", "simulated_library"} & set(getattr(item, "fixturenames", ())):
            names.setdefault("checked build")
        for mark in item.iter_markers("awaits"):
            names.update(dict.fromkeys(mark.args))
    if not session.config.getoption("collectonly"):
        side_jobs.start(names)


def pytest_sessionfinish() -> None:
    side_jobs.close()


def pytest_configure(config: pytest.Config) -> None:
    """Tests that name no device mean the CPU: a GPU is for `pytest -m gpu`."""
    if config.getoption("markexpr") != "gpu":
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


# ---- what takes minutes waits until it is asked for; fewer cases, for builds in which each is slow


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-of",
        type=int,
        default=1,
        metavar="N",
        help="of each test's cases on each device run one of N, in their order from the first on",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    share = int(config.getoption("--one-of"))
    is_complete = "complete" in config.getoption("markexpr")
    seen: dict[tuple[str, str], int] = {}
    kept, left_out = [], []
    for item in items:
        if item.get_closest_marker("complete") and not is_complete:
            left_out.append(item)
            continue
        case = getattr(item, "callspec", None)
        device = str(case.params.get("device", case.params.get("kind", ""))) if case else ""
        key = item.nodeid.split("[")[0], device
        seen[key] = seen.get(key, -1) + 1
        (left_out if seen[key] % share else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


# ---- the table of errors: what compare.assert_close measured, the worst of each kind of tensor


def _table_row(test: str, name: str) -> tuple[str, str]:
    """Which row of the table a comparison belongs to."""
    file = test.split("::")[0].removeprefix("tests/").removesuffix(".py").replace("test_", "")
    if file.startswith("reference"):
        return "reference", file.removeprefix("reference_") + ", analytic"
    # "h.2.ln_1.bias, moved" is one of many tensors that moved; a gradient keeps its tensor's name.
    name = name.split(", ")[-1]
    name = re.sub(r"\bh\.\d+\.", "h.*.", name)
    name = re.sub(r" (of step )?\d+$", r"", name)
    return file.removeprefix("ops/"), name


def _table_lines() -> list[str]:
    """Two rows of the table a line, so that all of it fits a screen."""
    from reference.compare import MEASURED

    worst: dict[tuple[str, str], tuple[float, float, float]] = {}
    for one in MEASURED:
        used = one.measured / one.tolerance if one.tolerance else float(one.measured > 0)
        row = _table_row(one.test, one.name)
        worst[row] = max(worst.get(row, (-1.0, 0.0, 0.0)), (used, one.measured, one.tolerance))
    cells = [
        f"{file[:16]:16} {name[:22]:22} {measured:8.1e} /{tolerance:6.0e} {100 * used:3.0f}%"
        for (file, name), (used, measured, tolerance) in sorted(worst.items())
    ]
    half = -(-len(cells) // 2)
    rows = zip_longest(cells[:half], cells[half:], fillvalue="")
    return ["   ".join(row).rstrip() for row in rows]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = _table_lines()
    if not lines:
        return
    terminalreporter.section("largest relative errors: measured / tolerance, share of it")
    for line in lines:
        terminalreporter.line(line)
