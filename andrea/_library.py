"""Loads the native library these bindings were made for, and turns its statuses into exceptions.

Nothing outside `_library`, `model` and `arrays` touches `ffi`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import (
    AndreaError,
    ArgumentError,
    DeviceError,
    EngineError,
    LibraryError,
    OutOfMemoryError,
    StateError,
)

try:
    from ._ffi import ffi as ffi
except ImportError as error:
    raise LibraryError(
        "andrea/_ffi.py is missing: it is made by the build; install with 'pip install .'"
    ) from error

_EXCEPTIONS: dict[int, type[AndreaError]] = {
    1: ArgumentError,  # MG_ERROR_ARGUMENT
    2: StateError,  # MG_ERROR_STATE
    3: OutOfMemoryError,  # MG_ERROR_MEMORY
    4: DeviceError,  # MG_ERROR_DEVICE
    5: EngineError,  # MG_ERROR_INTERNAL
}


def library_path() -> Path:
    """Where the native library is: ANDREA_LIBRARY if set, else inside the package.

    Raises:
        LibraryError: there is no file.
    """
    override = os.environ.get("ANDREA_LIBRARY")
    if override:
        path = Path(override)
        if not path.is_file():
            raise LibraryError(f"ANDREA_LIBRARY is {override}, but there is no such file")
        return path
    name = "libmicrogpt_cuda.dylib" if sys.platform == "darwin" else "libmicrogpt_cuda.so"
    path = Path(str(resources.files("andrea").joinpath("lib", name)))
    if not path.is_file():
        raise LibraryError(f"the native library is missing ({path}); install with 'pip install .'")
    return path


def _load() -> Any:
    path = library_path()
    try:
        # NODELETE: threads of the engine run its code until the process ends.
        library = ffi.dlopen(str(path), ffi.RTLD_NOW | ffi.RTLD_NODELETE)
    except OSError as error:
        raise LibraryError(f"the native library cannot be loaded: {error}") from error
    # cffi's ABI mode believes the declarations: a library of another version would be called with
    # wrong signatures in silence.
    try:
        version = library.mg_abi_version()
        if version != library.MG_ABI_VERSION:
            raise LibraryError(
                f"{path} has ABI version {version}, but these bindings need "
                f"{library.MG_ABI_VERSION}: rebuild with 'pip install .'"
            )
        for name in dir(library):
            getattr(library, name)
        sizes = (library.mg_config_size(), library.mg_step_options_size())
    except (AttributeError, ffi.error) as error:
        raise LibraryError(f"{path} is not the library of these bindings: {error}") from error
    expected = (ffi.sizeof("mg_config"), ffi.sizeof("mg_step_options"))
    if sizes != expected:
        raise LibraryError(f"{path} has structs of {sizes} bytes, these bindings of {expected}")
    return library


lib = _load()


def check(status: int) -> None:
    """Raise the exception of a native status; the text is the library's last error."""
    if status != 0:
        text = ffi.string(lib.mg_last_error()).decode("utf-8", "replace")
        raise _EXCEPTIONS.get(status, EngineError)(text)


def engine_version() -> str:
    """The native library's version."""
    return str(ffi.string(lib.mg_version()).decode())


def abi_version() -> int:
    """The version of the C interface, which grows whenever a signature changes."""
    return int(lib.mg_abi_version())


def instruction_set() -> str:
    """The CPU kernels in use: "generic", "avx2", "avx512" or "avx512bf16".

    Raises:
        DeviceError: MICROGPT_ISA names kernels that this build or CPU doesn't have.
    """
    name = ffi.new("const char **")
    check(lib.mg_cpu_isa(name))
    return str(ffi.string(name[0]).decode())


def available_instruction_sets() -> list[str]:
    """The CPU kernels that this build and this CPU both have, best last."""
    return str(ffi.string(lib.mg_cpu_isa_available()).decode()).split()


@dataclass(frozen=True)
class CudaInfo:
    """What the library and the machine have for GPUs; versions as CUDA counts, 13000 is 13.0.

    Name, compute capability and memory (bytes) are the first GPU's. driver_version is 0 where there
    is no driver. cublaslt: which one was loaded, or why none was. reason: why no GPU is usable.
    """

    built: bool
    usable: bool
    simulated: bool
    driver_version: int
    runtime_version: int
    device_count: int
    compute_major: int
    compute_minor: int
    memory_total: int
    memory_free: int
    device_name: str
    architectures: str
    cublaslt: str
    reason: str

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs by the names that models take: "cuda", "cuda:1", and so on."""
        if not self.usable:
            return ()
        more = (f"cuda:{number}" for number in range(1, self.device_count))
        return ("cuda", *more)


def cuda_info() -> CudaInfo:
    """What this library and machine have for GPUs; looks at the driver when it is called."""
    offer_cublaslt("cuda")
    info = ffi.new("mg_cuda_info *")
    lib.mg_get_cuda_info(info)
    values: dict[str, Any] = {}
    for name, kind in CudaInfo.__annotations__.items():
        value = getattr(info, name)
        if kind == "str":
            values[name] = ffi.string(value).decode("utf-8", "replace")
        else:
            values[name] = bool(value) if kind == "bool" else int(value)
    return CudaInfo(**values)


@cache
def has_simulated_gpu() -> bool:
    """Whether device "cuda" of this library is a simulation, whose memory no GPU library knows."""
    return cuda_info().simulated


_is_cublaslt_offered = False


def offer_cublaslt(device: str) -> None:
    """Before the first use of a GPU, tell the library which cuBLASLt Python's packages have.

    cuda.pathfinder knows the places of pip, conda and system toolkits; without it the library
    looks for the file by its usual names.
    """
    global _is_cublaslt_offered
    if _is_cublaslt_offered or device == "cpu":
        return
    _is_cublaslt_offered = True
    # Loading it takes half a second: not where the driver's devices aren't there.
    if not any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/dxg")):
        return
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("cublasLt").abs_path
    except (ImportError, RuntimeError, OSError):
        return
    if path:
        lib.mg_set_cublaslt_path(os.fsencode(path))


def set_num_threads(count: int) -> None:
    """Set the number of threads of the CPU backend (1 to 1024; 0 restores the default).

    Results are the same bits for any number. Not while another thread is inside the engine.

    Raises:
        ArgumentError: the count is out of range.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 1024:
        raise ArgumentError(
            f"the number of threads must be an integer from 0 to 1024, got {count!r}"
        )
    check(lib.mg_set_num_threads(count))


def get_num_threads() -> int:
    """The number of threads of the CPU backend."""
    return int(lib.mg_get_num_threads())
