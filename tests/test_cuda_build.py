"""The library as nvcc builds it, on any machine: no spills, small, and it loads without a driver.

What the kernels compute is tested on the simulator; here, what they were compiled to. The installed
library has code for a virtual GPU, which ptxas makes code for a real one of, as the driver does.
Where it has no kernels, and in a complete run, they are compiled for the real one from the sources.
Skipped by name where there is no nvcc, or no cuobjdump (pip: nvidia-cuda-cuobjdump,
nvidia-cuda-nvdisasm).
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import side_jobs
from andrea import _library
from andrea._library import cuda_info
from native_build import (
    REPOSITORY,
    build,
    configure,
    copy_sources,
    cxx_compiler,
    find_tool,
    run,
)
from patience import PATIENCE
from test_library_build import declared_functions, linux_only, symbols


def nvidia_folders(*parts: str) -> list[Path]:
    """Folders of NVIDIA's Python packages, such as nvidia/cu13/bin."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in spec.submodule_search_locations or []] if spec else []
    return [folder for place in places for folder in place.glob("/".join(("*", *parts)))]


def find_nvcc() -> Path:
    found = shutil.which(os.environ.get("CUDACXX", "nvcc"))
    if not found:
        pytest.skip("no nvcc on PATH")
    return Path(found)


def _cuda_build() -> Path:
    find_nvcc()
    folder = Path(tempfile.mkdtemp(prefix="andrea-cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    configure(
        copy_sources(folder),
        folder / "build",
        MICROGPT_CUDA="ON",
        MICROGPT_CUDA_ARCHITECTURES="90a-real",
        MICROGPT_ISA="generic",
        MICROGPT_WERROR="ON",
        CMAKE_EXPORT_COMPILE_COMMANDS="ON",
    )
    build(folder / "build", "microgpt_cuda", processors=1)
    return folder / "build"


CUDA_BUILD = side_jobs.job("build by nvcc", _cuda_build)


def _architectures_built() -> str:
    """What the installed library's kernels were compiled for."""
    info = cuda_info()
    return info.architectures if info.built and not info.simulated else ""


def with_toolkit() -> dict[str, str]:
    """The environment, with the programs of NVIDIA's Python packages on PATH."""
    folders = [str(folder) for folder in nvidia_folders("bin")]
    return {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", ""), *folders])}


def program(name: str) -> str:
    found = shutil.which(name, path=with_toolkit()["PATH"])
    if not found:
        pytest.skip(f"no {name} (pip: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm)")
    return found


def _cubins_of_the_installed() -> list[Path]:
    """A file of sm_90a for each of its files of PTX; a kernel that spills registers fails."""
    ptxas = find_nvcc().resolve().parent / "ptxas"
    folder = Path(tempfile.mkdtemp(prefix="andrea-ptx-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = _library.library_path()
    run(program("cuobjdump"), "-xptx", "all", library, cwd=folder, env=with_toolkit())
    cubins = []
    for ptx in sorted(folder.glob("*.ptx")):
        cubins.append(ptx.with_suffix(".cubin"))
        run(ptxas, "-arch=sm_90a", "--warn-on-spills", "-Werror", ptx, "-o", cubins[-1])
    return cubins


CUBINS = side_jobs.job("assembly by ptxas", _cubins_of_the_installed)
ARCHITECTURES = _architectures_built()
HAS_PTX = ARCHITECTURES.endswith("virtual")
from_sources = [pytest.mark.awaits(CUDA_BUILD), *([pytest.mark.complete] if HAS_PTX else [])]
KINDS = [
    *([pytest.param("installed", marks=pytest.mark.awaits(CUBINS))] if HAS_PTX else []),
    pytest.param("from sources", marks=from_sources),
]
pytestmark = linux_only


@pytest.fixture(scope="module")
def cuda_build() -> Path:
    """A folder with the library for sm_90a; a kernel that spills registers fails to compile."""
    return Path(side_jobs.result(CUDA_BUILD))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def library(kind: str, request: pytest.FixtureRequest) -> Path:
    if kind == "installed":
        return _library.library_path()
    return Path(request.getfixturevalue("cuda_build")) / "native" / "libmicrogpt_cuda.so"


@pytest.mark.parametrize("_", [pytest.param("from sources", marks=from_sources)])
def test_every_kernel_was_compiled_with_spills_as_errors(_: str, cuda_build: Path) -> None:
    """The fixture compiled them; here, that nvcc really was told."""
    commands = (cuda_build / "compile_commands.json").read_text("utf-8")
    kernels = [command for command in commands.splitlines() if re.search(r"-c \S+\.cu\b", command)]
    assert len(kernels) > 10
    for command in kernels:
        assert "--warn-on-spills" in command and "all-warnings" in command, command
        assert "sm_90a" in command


def test_declarations_are_those_of_the_real_header() -> None:
    """cublaslt_check.cpp compares every signature and number with cublasLt.h at compile time."""
    toolkit = find_nvcc().resolve().parent.parent / "include"
    places = [toolkit, *nvidia_folders("include")]
    found = next((folder for folder in places if (folder / "cublasLt.h").is_file()), None)
    if found is None:
        pytest.skip("no cublasLt.h in the toolkit or beside this Python (pip: nvidia-cublas)")
    native = REPOSITORY / "native"
    theirs = [word for folder in (found, toolkit) for word in ("-isystem", folder)]
    ours = [
        f"-I{native / 'src'}",
        f"-I{native / 'include'}",
        native / "src/cuda/cublaslt_check.cpp",
    ]
    run(*cxx_compiler(), "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", *theirs, *ours)


def test_only_the_declared_functions_are_exported(library: Path) -> None:
    exported = {name for _, name in symbols("-D", "--defined-only", library)}
    assert exported == declared_functions()


def test_it_needs_no_driver_and_no_library_of_the_toolkit(library: Path) -> None:
    needed = re.findall(r"NEEDED.*\[(.+)\]", run(find_tool("readelf"), "-d", library))
    extra = {name.split(".so")[0] for name in needed}
    # The CUDA runtime inside the library uses librt's clocks.
    extra -= {"libc", "libm", "libpthread", "libdl", "librt"}
    assert {name for name in extra if not name.startswith("ld-linux")} == set()


def python(library: Path, code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        # No GPU that this machine may have.
        env={
            **os.environ,
            "ANDREA_LIBRARY": str(library),
            "CUDA_VISIBLE_DEVICES": "",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WITHOUT_GPU = """
import andrea
from andrea._library import cuda_info
config = andrea.ModelConfig(3, 2, 1, 1, 2)
print(andrea.GPT(config).device)
try:
    andrea.GPT(config, device="cuda")
except andrea.DeviceError as error:
    print(error)
info = cuda_info()
print(info.built, info.usable, info.simulated, info.runtime_version, info.architectures)
"""


def test_without_a_gpu_it_falls_back_to_the_cpu_and_says_why(kind: str, library: Path) -> None:
    auto, refused, info = python(library, WITHOUT_GPU).splitlines()
    assert auto == "cpu"
    assert re.search("no NVIDIA driver|sees no GPU|driver is for CUDA", refused), refused
    built, usable, simulated, runtime, architectures = info.split(maxsplit=4)
    assert (built, usable, simulated) == ("True", "False", "False")
    assert int(runtime) >= 12080
    assert architectures == ("90a-real" if kind == "from sources" else ARCHITECTURES)


def test_it_loads_in_a_few_milliseconds(library: Path) -> None:
    """A library linked to cuBLASLt would take half a second, and a process of its own."""
    code = (
        "import ctypes, sys, time; begin = time.process_time(); ctypes.CDLL(sys.argv[1]);"
        "print(time.process_time() - begin)"
    )
    seconds = []
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", code, library], capture_output=True, text=True, check=True
        )
        seconds.append(float(done.stdout))
    assert min(seconds) < 0.05
    assert library.stat().st_size < 16 << 20


# ---- what the GPU runs


@pytest.fixture(scope="module")
def machine_code(kind: str, library: Path) -> dict[str, set[str]]:
    """The instructions, with their suffixes, by the mangled name of the kernel."""
    program("nvdisasm")  # which cuobjdump calls
    files = side_jobs.result(CUBINS) if kind == "installed" else [library]
    texts = [run(program("cuobjdump"), "-sass", file, env=with_toolkit()) for file in files]
    return {
        function.split(maxsplit=1)[0]: set(INSTRUCTION.findall(function))
        for text in texts
        for function in re.split(r"^\s*Function : ", text, flags=re.MULTILINE)[1:]
    }


INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def test_no_kernel_uses_local_memory(machine_code: dict[str, set[str]]) -> None:
    assert len(machine_code) > 20
    for name, used in machine_code.items():
        assert len(used) > 3, name
        local = {one for one in used if one.split(".")[0] in ("LDL", "STL")}
        assert not local, f"{name}: {local}"


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_attention_runs_on_tensor_cores(machine_code: dict[str, set[str]], direction: str) -> None:
    """Those kernels that have the scores' products in bf16; ldmatrix and cp.async feed them."""
    flash = {
        name: used
        for name, used in machine_code.items()
        if "attention" in name and direction in name and any("HMMA" in one for one in used)
    }
    assert flash, [name for name in machine_code if "attention" in name]
    for name, used in flash.items():
        assert any(one.startswith("HMMA.16816.F32.BF16") for one in used), name
        assert any(one.startswith("LDSM") for one in used), name
