"""The library as a file: symbols, headers, a build without warnings, emulation, sanitizers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from cffi import FFI

import sanitized_builds
import side_jobs
from andrea import _library
from native_build import (
    REPOSITORY,
    c_compiler,
    cxx_compiler,
    find_tool,
    kernel_objects,
    passed_in,
    run,
    run_tests,
)
from sanitized_builds import ACCESSES, RACES, SANITIZERS

HEADERS = ("microgpt_cuda.h", "microgpt_cuda_ops.h")
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into ELF files")
x86_only = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="AVX-512 is emulated with AVX2"
)


def header(name: str) -> Path:
    return Path(str(resources.files("andrea") / "include" / name))


def symbols(*arguments: str | Path) -> list[tuple[str, str]]:
    """The type letter and the name of each symbol that nm lists."""
    lines = run(find_tool("nm"), *arguments).splitlines()
    return [(line.split()[-2], line.split()[-1]) for line in lines if len(line.split()) >= 2]


def declared_functions() -> set[str]:
    text = "".join(header(name).read_text("utf-8") for name in HEADERS)
    return set(re.findall(r"^MG_API [^(]*?\b(mg_\w+)\(", text, re.MULTILINE))


# ---- symbols


@linux_only
def test_kernels_share_no_code_between_instruction_sets(checked_build: Path) -> None:
    """A weak symbol has one copy for the whole library, with any instruction set's instructions."""
    objects = kernel_objects(checked_build)
    assert "generic" in objects and (len(objects) == 4 or platform.machine() != "x86_64")
    for isa, path in objects.items():
        found = symbols("--defined-only", path)
        assert len(found) > 10
        shared = [name for kind, name in found if kind in "WwVvuiC"]
        assert not shared, f"kernels_{isa} shares {shared}"
        public = [name for kind, name in found if kind.isupper()]
        assert public == [f"_ZN2mg3cpu{len(f'kernels_{isa}')}kernels_{isa}E"]


@linux_only
def test_only_the_declared_functions_are_exported(checked_build: Path) -> None:
    built = checked_build / "native" / "libmicrogpt_cuda.so"
    for library in {built, _library.library_path()}:
        exported = {name for _, name in symbols("-D", "--defined-only", library)}
        assert exported == declared_functions(), library


@linux_only
def test_the_installed_library_needs_nothing_but_the_c_library() -> None:
    """It must load where the compiler's runtime is older or absent, and without a driver."""
    needed = run(find_tool("readelf"), "-d", _library.library_path())
    names = re.findall(r"NEEDED.*\[(.+)\]", needed)
    extra = {name.split(".so")[0] for name in names} - {"libc", "libm", "libpthread", "libdl"}
    assert {name for name in extra if not name.startswith("ld-linux")} == set()


# ---- headers


def test_bindings_are_those_of_the_header() -> None:
    bound = {name for name in dir(_library.lib) if name.startswith("mg_")}
    assert len(bound) > 50
    assert bound == declared_functions()


@pytest.mark.parametrize("name", HEADERS)
def test_header_parses_without_a_preprocessor(name: str) -> None:
    """What emit_ffi.py passes to cffi: the header less its lines with # and the C++ brace."""
    script = REPOSITORY / "native" / "emit_ffi.py"
    if not script.is_file():
        pytest.skip("no native sources beside the tests")
    variables: dict[str, object] = {"__name__": "emit_ffi"}
    exec(compile(script.read_text("utf-8"), str(script), "exec"), variables)
    declarations = variables["declarations"]
    assert callable(declarations)
    parsed = FFI()
    for each in HEADERS[: HEADERS.index(name) + 1]:
        parsed.cdef(declarations(header(each).read_text("utf-8")))
    assert parsed.typeof("mg_status").kind == "enum"
    assert parsed.sizeof("mg_config") == _library.ffi.sizeof("mg_config")


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("standard", ["c99", "c11", "c++17"])
def test_header_compiles_alone(standard: str, name: str, tmp_path: Path) -> None:
    in_c = standard.startswith("c9") or standard.startswith("c1")
    source = tmp_path / ("alone.c" if in_c else "alone.cpp")
    # Twice: the second time must add nothing.
    source.write_text(f'#include "{name}"\n#include "{name}"\nint main(void) {{ return 0; }}\n')
    compiler = c_compiler() if in_c else cxx_compiler()
    strict = ["-Wstrict-prototypes"] if in_c else ["-Wold-style-cast"]
    include = f"-I{header(name).parent}"
    run(*compiler, f"-std={standard}", *WARNINGS, *strict, "-fsyntax-only", include, source)


# ---- builds


def test_it_builds_without_warnings(checked_build: Path) -> None:
    """The fixture built it with MICROGPT_WERROR; here, that the compiler really was told."""
    cache = (checked_build / "CMakeCache.txt").read_text("utf-8")
    assert "MICROGPT_WERROR:BOOL=ON" in cache
    source = checked_build.parent / "source"
    export = "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"
    summary = run(find_tool("cmake"), "-S", source, "-B", checked_build, export)
    assert "backends cpu (generic" in summary
    listed = (checked_build / "compile_commands.json").read_text("utf-8")
    # Kernels of GPUs read bits as other types and mix widths, as CUDA's own idioms do.
    files = [line for line in re.findall(r'"command": "(.*)"', listed) if "/sim/" not in line]
    assert len(files) > 15
    for command in files:
        assert all(flag in command for flag in ("-Werror", "-Wall", "-Wextra", "-Wconversion"))


def _emulated(selection: tuple[str, ...], environment: dict[str, str]) -> side_jobs.Work:
    def work() -> subprocess.CompletedProcess[str]:
        built: Path = side_jobs.result("checked build")
        return run_tests(built / "native" / "libmicrogpt_cuda.so", *selection, **environment)

    return work


# The instruction sets of 16 lanes: their ops, and the model with them.
# In fp32 those with bf16's own products are the others.
EMULATED = {
    "avx512": ("cpu-avx512 and not cpu-avx512bf16", 2000),
    "avx512bf16": ("cpu-avx512bf16-bf16", 1000),
}
MODEL_TESTS = ("test_parity.py", "test_parity_decoding.py", "-m", "not gpu")
for _isa, (_cases, _) in EMULATED.items():
    for _name, _work in (
        (f"emulated ops, {_isa}", _emulated(("ops", "-k", _cases), {})),
        (f"emulated model, {_isa}", _emulated(MODEL_TESTS, {"MICROGPT_ISA": _isa})),
    ):
        side_jobs.job(_name, _work, "checked build")


@x86_only
@pytest.mark.parametrize(
    ("name", "isa", "at_least"),
    [
        pytest.param(name, isa, count, marks=pytest.mark.awaits(name), id=name)
        for isa, (_, ops) in EMULATED.items()
        for name, count in ((f"emulated ops, {isa}", ops), (f"emulated model, {isa}", 50))
        # Where the CPU has them, the tests of this run use the compiler's own.
        if isa not in _library.available_instruction_sets()
    ],
)
def test_16_lane_kernels(name: str, isa: str, at_least: int) -> None:
    """Their code, compiled for AVX2, against the reference, on a CPU that doesn't have them."""
    if "avx2" not in _library.available_instruction_sets():
        pytest.skip("this CPU has no AVX2")
    done: subprocess.CompletedProcess[str] = side_jobs.result(name)
    assert done.returncode == 0, done.stdout[-3000:]
    assert passed_in(done) >= at_least, done.stdout[-3000:]
    assert "skipped" not in done.stdout.rstrip().splitlines()[-1]


@x86_only
@linux_only
@pytest.mark.parametrize(
    ("isa", "instruction"),
    [
        ("avx2", r"vfmadd\d+ps .*%ymm"),
        ("avx512", r"vfmadd\d+ps .*%zmm"),
        ("avx512bf16", r"vdpbf16ps .*%zmm"),
    ],
)
def test_products_use_the_instruction_set(isa: str, instruction: str) -> None:
    """The library as built for users, on any machine: the instructions the tiles are made for."""
    built = built_instruction_sets()
    if isa not in built:
        pytest.skip(f"the compiler of this library doesn't know {isa}")
    code = run(find_tool("objdump"), "-d", "--no-show-raw-insn", _library.library_path())
    # A tile's loop has kTileRows x 2 of them: 12 or 28, in a row but for the loads.
    streaks = [
        len(re.findall(instruction, streak))
        for streak in re.findall(rf"(?:[^\n]*(?:{instruction}|vbroadcastss)[^\n]*\n)+", code)
    ]
    assert max(streaks, default=0) >= (12 if isa == "avx2" else 28)


def built_instruction_sets() -> list[str]:
    """The instruction sets in the library, as it names them when asked for one that isn't there."""
    asked = "import andrea; andrea.engine_info()"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, "MICROGPT_ISA": "none"},
        capture_output=True,
        text=True,
    )
    assert "this library has only: " in done.stderr
    return done.stderr.split("this library has only: ")[1].split()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.awaits(name)) for name in (ACCESSES, RACES)],
)
@linux_only
def test_stress_program_is_clean_with_the(name: str, tmp_path: Path) -> None:
    """tests/stress.c calls everything with odd shapes and buffers of the exact size."""
    flags = [f"-fsanitize={SANITIZERS[name]}", "-fno-sanitize-recover=all"]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    compiled = subprocess.run(
        [*c_compiler(), *flags, str(probe), "-o", str(tmp_path / "probe")], capture_output=True
    )
    if compiled.returncode or subprocess.run([tmp_path / "probe"], capture_output=True).returncode:
        pytest.skip(f"the compiler's {SANITIZERS[name]} sanitizers don't work here")
    built: Path = side_jobs.result(name)
    program, folder = tmp_path / "stress", built / "native"
    link = [f"-L{folder}", f"-l{sanitized_builds.LIBRARY}", f"-Wl,-rpath,{folder}"]
    stress = REPOSITORY / "tests" / "stress.c"
    include = f"-I{built.parent / 'source' / 'native' / 'include'}"
    run(*c_compiler(), "-std=c99", "-g", *WARNINGS, *flags, include, stress, *link, "-o", program)
    isas = set(_library.available_instruction_sets()) & set(kernel_objects(built))
    assert "generic" in isas
    for isa in isas:
        printed = run(program, env={**os.environ, "MICROGPT_ISA": isa})
        assert printed == f"clean with {isa} kernels\n"
