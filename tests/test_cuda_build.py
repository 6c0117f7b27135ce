"""The library as nvcc builds it, on any machine: no spills, small, and it loads without a driver.

What the kernels compute is tested on the simulator; here, what they were compiled to. Skipped by
name where there is no nvcc, or no cuobjdump (pip: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm).
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
from collections.abc import Iterator
from pathlib import Path

import pytest

import side_jobs
from native_build import build, configure, copy_sources, find_tool, run
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


def find_cublaslt_include() -> str:
    """The folder of cuBLASLt's own header, or an empty text."""
    folders = [find_nvcc().resolve().parent.parent / "include", *nvidia_folders("include")]
    return next((str(folder) for folder in folders if (folder / "cublasLt.h").is_file()), "")


def _cuda_build() -> Path:
    cublaslt_include = find_cublaslt_include()
    folder = Path(tempfile.mkdtemp(prefix="andrea-cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    header = {"MICROGPT_CUBLASLT_INCLUDE": cublaslt_include} if cublaslt_include else {}
    configure(
        copy_sources(folder),
        folder / "build",
        MICROGPT_CUDA="ON",
        MICROGPT_CUDA_ARCHITECTURES="90a-real",
        MICROGPT_ISA="generic",
        MICROGPT_WERROR="ON",
        CMAKE_EXPORT_COMPILE_COMMANDS="ON",
        **header,
    )
    build(folder / "build", "microgpt_cuda", processors=1)
    return folder / "build"


CUDA_BUILD = side_jobs.job("build by nvcc", _cuda_build)
pytestmark = [linux_only, pytest.mark.awaits(CUDA_BUILD)]


@pytest.fixture(scope="module")
def cuda_build() -> Path:
    """A folder with the library for sm_90a; a kernel that spills registers fails to compile."""
    return Path(side_jobs.result(CUDA_BUILD))


@pytest.fixture(scope="module")
def cublaslt_include() -> str:
    """The folder of cuBLASLt's own header, or an empty text."""
    return find_cublaslt_include()


@pytest.fixture(scope="module")
def library(cuda_build: Path) -> Path:
    return cuda_build / "native" / "libmicrogpt_cuda.so"


def test_every_kernel_was_compiled_with_spills_as_errors(cuda_build: Path) -> None:
    """The fixture compiled them; here, that nvcc really was told."""
    commands = (cuda_build / "compile_commands.json").read_text("utf-8")
    kernels = [command for command in commands.splitlines() if re.search(r"-c \S+\.cu\b", command)]
    assert len(kernels) > 10
    for command in kernels:
        assert "--warn-on-spills" in command and "all-warnings" in command, command
        assert "sm_90a" in command


def test_declarations_are_those_of_the_real_header(cuda_build: Path, cublaslt_include: str) -> None:
    """cublaslt_check.cpp compares every signature and number with cublasLt.h at compile time."""
    if not cublaslt_include:
        pytest.skip("no cublasLt.h in the toolkit or beside this Python (pip: nvidia-cublas)")
    build(cuda_build, "mg_cublaslt_check")


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


def test_without_a_gpu_it_falls_back_to_the_cpu_and_says_why(library: Path) -> None:
    auto, refused, info = python(library, WITHOUT_GPU).splitlines()
    assert auto == "cpu"
    assert re.search("no NVIDIA driver|sees no GPU|driver is for CUDA", refused), refused
    built, usable, simulated, runtime, architectures = info.split(maxsplit=4)
    assert (built, usable, simulated) == ("True", "False", "False")
    assert int(runtime) >= 12080 and architectures == "90a-real"


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
def machine_code(library: Path) -> dict[str, str]:
    """SASS by the mangled name of the kernel."""
    folders = [str(folder) for folder in nvidia_folders("bin")]
    path = os.pathsep.join([os.environ.get("PATH", ""), *folders])
    tools = [shutil.which(name, path=path) for name in ("cuobjdump", "nvdisasm")]
    if None in tools:
        pytest.skip("no cuobjdump or nvdisasm (pip: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm)")
    text = run(str(tools[0]), "-sass", library, env={**os.environ, "PATH": path})
    functions = re.split(r"^\s*Function : ", text, flags=re.MULTILINE)[1:]
    return {one.split(maxsplit=1)[0]: one for one in functions}


def instructions(code: str) -> Iterator[str]:
    """The name of each instruction, with its suffixes."""
    for found in re.finditer(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", code):
        yield found.group(1)


def test_no_kernel_uses_local_memory(machine_code: dict[str, str]) -> None:
    assert len(machine_code) > 20
    for name, code in machine_code.items():
        used = set(instructions(code))
        assert len(used) > 3, name
        local = {one for one in used if one.split(".")[0] in ("LDL", "STL")}
        assert not local, f"{name}: {local}"


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_attention_runs_on_tensor_cores(machine_code: dict[str, str], direction: str) -> None:
    """Those kernels that have the scores' products in bf16; ldmatrix and cp.async feed them."""
    flash = {
        name: set(instructions(code))
        for name, code in machine_code.items()
        if "attention" in name
        and direction in name
        and any("HMMA" in one for one in instructions(code))
    }
    assert flash, [name for name in machine_code if "attention" in name]
    for name, used in flash.items():
        assert any(one.startswith("HMMA.16816.F32.BF16") for one in used), name
        assert any(one.startswith("LDSM") for one in used), name
