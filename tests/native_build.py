"""Builds the native engine from the source tree, for tests that need a build of their own.

What isn't there (sources, CMake, a compiler) skips the test by name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
TIMEOUT = 12 * PATIENCE  # a build's, or that of a run of tests


def find_tool(*names: str) -> str:
    """The first of some programs on PATH or beside this Python; a skip where there is none."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    for name in names:
        found = shutil.which(name, path=places)
        if found:
            return found
    pytest.skip(f"no {' or '.join(names)} on PATH")


def c_compiler() -> list[str]:
    """The command of the C compiler."""
    return os.environ["CC"].split() if os.environ.get("CC") else [find_tool("cc", "gcc", "clang")]


def cxx_compiler() -> list[str]:
    """The command of the C++ compiler."""
    return os.environ["CXX"].split() if os.environ.get("CXX") else [find_tool("c++", "g++")]


def run(*command: str | Path, **options: object) -> str:
    """Run a command and return what it printed; a failure shows all of it."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
    return str(done.stdout)


# Those of UBSan that arithmetic and pointers can break: all of them take twice as long to compile.
UNDEFINED = "alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero"


def copy_sources(folder: Path) -> Path:
    """A copy of the native sources whose kernels are compiled quickly instead of for speed."""
    if not (REPOSITORY / "native" / "CMakeLists.txt").is_file():
        pytest.skip("no native sources beside the tests")
    source = folder / "source"
    shutil.copytree(REPOSITORY / "native", source / "native")
    shutil.copy(REPOSITORY / "CMakeLists.txt", source)
    # -O3 takes minutes for the emulated 16-lane kernels.
    for name in ("CMakeLists.txt", "sim/CMakeLists.txt"):
        lists = source / "native" / name
        text, changes = re.subn(r"-O3\b", "-O1", lists.read_text("utf-8"))
        assert changes, f"native/{name} no longer sets the kernels' optimisation"
        lists.write_text(text, "utf-8")
    return source


# Files of these targets are compiled together: most of the time of each goes into the same headers.
TOGETHER = """
set_target_properties(mg_model mg_cpu mg_api PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
set_source_files_properties(src/cpu/cpu_products.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
"""
SIM_TOGETHER = """
set_target_properties(mg_cuda_sim PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
set_source_files_properties(${MICROGPT_NATIVE}/src/cuda/cuda_products.cpp
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_target_properties(mg_sim PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
foreach(source IN LISTS sim_sources)
  get_filename_component(folder ${source} DIRECTORY)
  get_filename_component(folder ${folder} NAME)
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
endforeach()
"""


def compile_together(source: Path) -> None:
    """Let a copy of the sources compile in half the time. A name that two files of a target have
    for themselves is an error then."""
    for name, lines in (("CMakeLists.txt", TOGETHER), ("sim/CMakeLists.txt", SIM_TOGETHER)):
        path = source / "native" / name
        path.write_text(path.read_text("utf-8") + lines, "utf-8")


def configure(source: Path, folder: Path, **options: str) -> None:
    """Run CMake's first half, with -D<option>=<value> for each option; without nvcc unless told."""
    make = find_tool("ninja", "make")
    kind = "Ninja" if Path(make).name == "ninja" else "Unix Makefiles"
    generator = ["-G", kind, f"-DCMAKE_MAKE_PROGRAM={make}"]
    options = {"MICROGPT_CUDA": "OFF", **options}
    settings = [f"-D{name}={value}" for name, value in options.items()]
    quick = "-DCMAKE_CXX_FLAGS_RELEASE=-O1"
    run(find_tool("cmake"), "-S", source, "-B", folder, *generator, quick, *settings)


def build(folder: Path, target: str = "", processors: int = 0) -> Path:
    """Compile what changed in a configured folder, or a target's part of it; returns the library.

    Target: "microgpt_cuda_sim" is the library whose CUDA backend runs on the simulator.
    """
    if not processors:
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    only = ["--target", target] if target else []
    run(find_tool("cmake"), "--build", folder, "--parallel", str(processors), *only)
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return folder / "native" / f"lib{target or 'microgpt_cuda'}.{suffix}"


def kernel_objects(folder: Path) -> dict[str, Path]:
    """The object file of each instruction set in a build folder, by its name."""
    objects = {path.name.split(".")[0]: path for path in folder.rglob("kernels_*.cpp.o")}
    return {name.removeprefix("kernels_"): path for name, path in objects.items()}


def run_tests(
    library: Path, *selection: str, seconds: float = TIMEOUT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run some of the tests with another build of the library, in a process of their own.

    Selection: paths relative to tests/, node ids, or options of pytest. A build with sanitizers
    needs their runtimes in LD_PRELOAD (sanitizer_runtimes).
    """
    # Plugins that these tests don't need take longer to load than many of them to run.
    without = [
        word for name in ("cacheprovider", "hypothesispytest") for word in ("-p", f"no:{name}")
    ]
    # From tests/: at the top of the tree, `andrea` would be the sources without their library.
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, *selection],
        cwd=TESTS,
        env={**os.environ, "ANDREA_LIBRARY": str(library), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def passed_in(done: subprocess.CompletedProcess[str]) -> int:
    """How many cases passed in a run of tests."""
    last = done.stdout.rstrip().splitlines()[-1] if done.stdout.strip() else ""
    passed = re.search(r"(\d+) passed", last)
    return int(passed[1]) if passed else 0


def sanitizer_runtimes(*names: str) -> str:
    """LD_PRELOAD for a Python that is to load a library built with sanitizers, such as "asan"."""
    files = [*(f"lib{name}.so" for name in names), "libstdc++.so"]
    found = [run(*cxx_compiler(), f"-print-file-name={file}").strip() for file in files]
    for path in found:
        if not Path(path).is_absolute():
            pytest.skip(f"the compiler has no {path}")
    return ":".join(found)
