"""The dependency rule and the habits of the house, read from the sources themselves."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
NATIVE = REPOSITORY / "native" / "src"
SIM = REPOSITORY / "native" / "sim"
ANDREA, CLI, TESTS = (REPOSITORY / name for name in ("andrea", "cli", "tests"))

pytestmark = pytest.mark.skipif(not NATIVE.is_dir(), reason="no sources beside the tests")


CPP = (".h", ".cpp", ".inc", ".cu")


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def native_sources(folder: Path = NATIVE) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in CPP)


def python_sources(folder: Path) -> list[Path]:
    # _ffi.py is made by the build, never part of the tree.
    return sorted(path for path in folder.rglob("*.py") if path.name != "_ffi.py")


# ---- native: who includes what


def includes(path: Path) -> list[str]:
    """The engine's own files that a file includes, relative to native/src."""
    found = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text("utf-8"), re.MULTILINE)
    return [str(name) for name in found]


def floor(name: str) -> str:
    """The part of the engine that a file belongs to."""
    parts = name.split("/")
    return parts[0] if len(parts) > 1 else "top"


def code_of(path: Path) -> str:
    """A C++ file without comments and texts."""
    text = re.sub(r'"(\\.|[^"\\])*"', '""', path.read_text("utf-8"))
    return re.sub(r"//.*|/\*.*?\*/", "", text)


FORBIDDEN = {
    "model": {"cpu", "cuda"},
    "cpu": {"model", "cuda"},
    "cuda": {"model", "cpu"},
}


@pytest.mark.parametrize("path", native_sources(), ids=lambda path: path.name)
def test_no_file_includes_what_its_floor_may_not(path: Path) -> None:
    own = path.relative_to(NATIVE).as_posix()
    for name in includes(path):
        if (own, name) == ("cuda/ptx.h", "sim_ptx.h"):
            continue  # what stands for its assembly where there is no nvcc
        assert (NATIVE / name).is_file() or (NATIVE.parent / "include" / name).is_file(), (
            f"{own} includes {name}, which is not named from native/src or native/include"
        )
        assert floor(name) not in FORBIDDEN.get(floor(own), set()), f"{own} includes {name}"
        if floor(own) == "top" and own != "backend.cpp":
            assert floor(name) not in {"cpu", "cuda"}, f"{own} includes {name}"
        if own == "backend.cpp" and floor(name) == "cuda":
            assert name == "cuda/create.h", "all that the engine may know of the CUDA backend"
        if own in ("backend.h", "backend.cpp"):
            assert floor(name) != "model", "a backend knows nothing of the model"


def test_kernels_know_nothing_but_their_table() -> None:
    """cpu/ops and the files compiled per instruction set: no backend, no threads, no std::."""
    kernels = [*native_sources(NATIVE / "cpu" / "ops"), *sorted(NATIVE.glob("cpu/kernels_*.cpp"))]
    assert len(kernels) > 8
    for path in kernels:
        for name in includes(path):
            allowed = ("cpu/ops/", "cpu/element.h", "cpu/kernels.h", "cpu/kernels.inc")
            assert name.startswith(allowed) or name == "activation.h", (
                f"{relative(path)} includes {name}"
            )
        # Templates of the standard library would be shared between instruction sets.
        assert "std::" not in code_of(path), relative(path)


def test_only_backend_cpp_names_a_backend() -> None:
    """Only backend.cpp may name a backend's class; a new one is added there and nowhere else."""
    for path in native_sources():
        for folder, backend in (("cpu", "CpuBackend"), ("cuda", "CudaBackend")):
            if not path.is_relative_to(NATIVE / folder) and path.name != "backend.cpp":
                assert backend not in code_of(path), relative(path)


def test_kernels_can_be_compiled_for_the_simulator() -> None:
    """Launches and shared arrays through macros, assembly in one file: docs/cuda.md."""
    kernels = sorted((NATIVE / "cuda").glob("*.cu"))
    assert len(kernels) > 8
    own = {"kernel.h", "ptx.h"}
    for path in native_sources(NATIVE / "cuda"):
        code = code_of(path)
        if path.name not in own:
            for word in ("asm", "__shared__", "__asm__"):
                assert not re.search(rf"\b{word}\b", code), f"{relative(path)}: {word}"
            assert "<<<" not in code, relative(path)
        # Headers of templates take longer to compile than all kernels together.
        heavy = re.search(r"#\s*include\s*<(cub|thrust|cooperative_groups|cuda/std)\b", code)
        assert not heavy, f"{relative(path)}: {heavy and heavy.group()}"


def test_the_product_knows_nothing_of_the_simulator() -> None:
    """But where the loader of cuBLASLt asks it for its products, and the description says so."""
    knowing = {path.name for path in native_sources() if "MG_CUDA_SIM" in code_of(path)}
    assert knowing <= {"cublaslt_loader.cpp", "status.cpp", "cuda_backend.cpp", "device.cpp"}
    for path in native_sources(SIM):
        for name in includes(path):
            assert not name.startswith(("cpu/", "model/", "backend.h")) or "cublaslt" in path.name


def test_the_environment_is_read_in_two_places() -> None:
    readers = {path.name for path in native_sources() if "getenv" in code_of(path)}
    assert readers == {"isa.cpp", "processors.cpp"}
    of_the_simulator = {path.name for path in native_sources(SIM) if "getenv" in code_of(path)}
    assert of_the_simulator == {"settings.cpp"}


def test_the_engine_never_exits_aborts_or_prints() -> None:
    bad = re.compile(
        r"\b(exit|_exit|quick_exit|abort|terminate|assert|printf|fprintf|puts|fputs|putchar|perror"
        r"|cout|cerr|clog)\b\s*[(<]|std::(cout|cerr|clog|terminate|abort|exit)|<iostream>"
    )
    for path in native_sources():
        found = bad.search(code_of(path))
        assert not found, f"{relative(path)}: {found and found.group()}"


def test_only_c_api_defines_c_functions() -> None:
    """The extern "C" bodies are in c_api*.cpp, and nothing else is there by that name."""
    for path in native_sources():
        defines = re.search(r"^mg_status mg_\w+\(|^\w+ mg_\w+\(", code_of(path), re.MULTILINE)
        assert bool(defines) == path.name.startswith("c_api"), relative(path)


# ---- Python: who imports what


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each import of a file; relative ones as the absolute they mean."""
    is_cli = path.is_relative_to(CLI)
    root = ("andrea", "cli") if is_cli else ("andrea",)
    inside = path.relative_to(CLI if is_cli else ANDREA).parent.parts
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            package = [*root, *inside]
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield module, alias.name


def names_used(path: Path) -> set[str]:
    """Calls and attributes of a file, such as print and os.environ."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
    return found


FFI_FILES = {"_library.py", "arrays.py", "decoder.py", "memory.py", "model.py", "tensors.py"}


@pytest.mark.parametrize("path", python_sources(CLI), ids=lambda path: path.name)
def test_the_command_line_never_touches_the_native_library(path: Path) -> None:
    for module, name in imported(path):
        for whole in (module, f"{module}.{name}"):
            assert whole not in ("andrea._library", "andrea._ffi", "andrea.arrays"), relative(path)
        assert module.split(".")[0] not in ("cffi", "ctypes", "cli"), f"{relative(path)}: {module}"


@pytest.mark.parametrize("path", python_sources(ANDREA), ids=lambda path: path.name)
def test_the_package(path: Path) -> None:
    """Knows nothing of the command line, never prints, and leaves ffi and variables to few."""
    pairs = list(imported(path))
    used = names_used(path)
    assert not any(module.startswith(("andrea.cli", "cli")) for module, _ in pairs)
    assert not any((module, name) == ("andrea", "cli") for module, name in pairs)
    printing = {"print", "input", "sys.stdout", "sys.stderr", "sys.stdin"}
    allowed = {"sys.stdin"} if path.name == "sources.py" else set()  # a text may come from there
    assert not used & (printing - allowed), f"{relative(path)}: {used & printing}"
    if path.name not in FFI_FILES:
        native = [pair for pair in pairs if pair[0] in ("andrea._ffi", "cffi", "ctypes")]
        raw = {("andrea._library", name) for name in ("ffi", "lib", "check")} & set(pairs)
        assert not native and not raw, f"{relative(path)} imports {[*native, *raw]}"
        assert not used & {"_library.ffi", "_library.lib"}, relative(path)
    reads = used & {"os.environ", "os.getenv", "os.environb"}
    assert not reads or path == ANDREA / "_library.py", f"{relative(path)} reads {reads}"


def test_one_variable_is_read() -> None:
    text = (ANDREA / "_library.py").read_text("utf-8")
    assert re.findall(r"environ\S*?[\"'](\w+)", text) == ["ANDREA_LIBRARY"]


def needed_at_import(path: Path, modules: dict[str, Path]) -> set[Path]:
    """The package's own files, by the names of modules, that a file imports when it is imported."""
    inside = path.relative_to(ANDREA).parent.parts
    found: set[Path] = set()

    def look(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
                look(node.body)
            if not isinstance(node, ast.ImportFrom):
                continue
            above = ["andrea", *inside][: len(inside) + 2 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = {module, *(f"{module}.{alias.name}" for alias in node.names)}
            found.update(modules[name] for name in names & modules.keys())

    look(tree_of(path).body)
    return found


def test_files_of_the_package_import_each_other_in_one_direction() -> None:
    """So that each can be read, and imported, after those that it needs."""
    modules = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path
        for path in python_sources(ANDREA)
    }
    needs = {path: needed_at_import(path, modules) for path in modules.values()}
    assert len(needs[ANDREA / "training" / "loop.py"]) > 6
    order = list(TopologicalSorter(needs).static_order())  # CycleError names a circle
    assert order.index(ANDREA / "errors.py") < order.index(ANDREA / "model.py")


LAZY = [
    path for path in python_sources(ANDREA) if "__dir__ = on_first_use(" in path.read_text("utf-8")
]


@pytest.mark.parametrize("path", LAZY, ids=relative)
def test_a_type_checker_is_told_the_names_that_are_loaded_when_they_are_used(path: Path) -> None:
    """And not of a package's `__getattr__`, or it would take every name for a good one."""
    told, given = set(), set()
    (choice,) = (node for node in tree_of(path).body if isinstance(node, ast.If))
    assert ast.unparse(choice.test) == "TYPE_CHECKING"
    for line in choice.body:
        if isinstance(line, ast.ImportFrom) and line.level:
            told |= {(line.module, alias.name) for alias in line.names}
    (hooks,) = choice.orelse
    assert isinstance(hooks, ast.Assign) and isinstance(hooks.value, ast.Call)
    package, names = hooks.value.args
    assert ast.unparse(package) == "__name__"
    given = {(module, name) for module, some in ast.literal_eval(names).items() for name in some}
    assert told == given


def test_the_reference_needs_numpy_alone() -> None:
    for path in python_sources(TESTS / "reference"):
        text = path.read_text("utf-8")
        found = re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE)
        for top in set(found) - {"numpy", "reference"}:
            assert top in sys.stdlib_module_names, f"{relative(path)} imports {top}"


# ---- the page


def test_the_page_on_adding_a_dialect_names_the_files_that_it_takes() -> None:
    """All of them exist, and those of the engine are all that know an activation by its name."""
    page = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    section = page.split("## Adding a dialect")[1].split("\n## ")[0]
    named = set(re.findall(r"`((?:native|andrea|cli|tests)/[\w/.]+)`", section))
    assert len(named) > 12
    assert not [name for name in named if not (REPOSITORY / name).is_file()]
    sources = [*native_sources(), *native_sources(REPOSITORY / "native" / "include")]
    knowing = {
        relative(path) for path in sources if re.search(r"\brelu2\b|MG_RELU2", code_of(path))
    }
    assert knowing <= named and len(knowing) == 4


def test_the_page_names_every_folder_of_the_package_and_no_other() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    section = page.split("## The package")[1].split("\n## ")[0]
    folders = set(re.findall(r"^ +(\w+)/  ", section, re.MULTILINE))
    assert folders == {path.parent.name for path in ANDREA.glob("*/__init__.py")}
    modules = set(re.findall(r"\w+", " ".join(re.findall(r"^ {6}([\w, ]+?)   ", section, re.M))))
    assert {f"{name}.py" for name in modules} >= FFI_FILES
    assert not [name for name in modules if not (ANDREA / f"{name}.py").is_file()]


# ---- sizes and flags


def test_files_hold_one_idea_each() -> None:
    sources = [*native_sources(), *native_sources(SIM)]
    sources += native_sources(REPOSITORY / "native" / "include")
    sources += [path for folder in (ANDREA, CLI, TESTS) for path in python_sources(folder)]
    long = {}
    for path in sources:
        lines = len(path.read_text("utf-8").splitlines())
        if lines > (550 if path.is_relative_to(TESTS) else 400):
            long[relative(path)] = lines
    assert not long


def test_nothing_relaxes_arithmetic() -> None:
    """-ffast-math at the link would flush denormals to zero in the whole Python process."""
    # In two pieces, so that this file isn't found.
    relaxed = re.compile(
        "-f"
        + "fast-math|-O"
        + "fast|-f(unsafe-math|finite-math|associative-math)|use_fast"
        + "_math"
    )
    files = [*native_sources(NATIVE.parent), *REPOSITORY.glob("*.toml"), *REPOSITORY.glob(".ci/*")]
    files += [REPOSITORY / "CMakeLists.txt", NATIVE.parent / "CMakeLists.txt"]
    files += NATIVE.parent.rglob("*.cmake")
    for path in files:
        found = relaxed.search(path.read_text("utf-8"))
        assert not found, f"{relative(path)}: {found and found.group()}"


def test_no_file_names_a_place_of_one_machine() -> None:
    folders = [ANDREA, CLI, TESTS, NATIVE.parent, REPOSITORY / "docs"]
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    home = re.compile("/(home|Users|work|root)" + r"/\w+")
    for path in [*paths, REPOSITORY / "README.md"]:
        if path.suffix in (".py", *CPP, ".c", ".md", ".txt", ".toml", ".cmake"):
            found = home.search(path.read_text("utf-8"))
            assert not found, f"{relative(path)}: {found and found.group()}"
