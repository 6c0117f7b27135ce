"""Looks whether this installation works: versions, devices, memory, and numbers against NumPy's.

For `andrea doctor`. Nothing here raises for what it looks at: what is broken is a finding.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from .errors import AndreaError
from .words import size

Verdict = Literal["ok", "missing", "problem"]

_LITTLE_SPACE = 200 * 10**6
_CUPY_NAMES = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    "ok": works; "missing": not here, and Andrea works without; "problem": should work and doesn't.
    """

    section: str
    name: str
    verdict: Verdict
    text: str


def examine(folders: Iterable[tuple[str, Path]]) -> Iterator[Finding]:
    """Look at everything, one finding after the other; folders: (name, path) to look for space."""
    from . import __version__

    yield Finding("versions", "andrea", "ok", __version__)
    yield Finding("versions", "python", "ok", f"{platform.python_version()}, {sys.platform}")
    yield _guarded("versions", "numpy", _numpy)
    engine = _guarded("versions", "engine", _engine)
    yield engine
    yield _guarded("machine", "memory", _memory)
    for name, path in folders:
        yield _guarded("machine", name, lambda path=path: _space(path))  # type: ignore[misc]
    if engine.verdict != "ok":
        return
    yield _guarded("cpu", "kernels", _kernels)
    yield _guarded("cpu", "threads", _threads)
    yield from _comparisons("cpu", "cpu")
    yield from _gpu()


def _guarded(section: str, name: str, look: Callable[[], tuple[Verdict, str]]) -> Finding:
    try:
        verdict, text = look()
    except (AndreaError, ImportError, OSError, ValueError) as error:
        verdict, text = "problem", " ".join(str(error).split()) or type(error).__name__
    return Finding(section, name, verdict, text)


def _numpy() -> tuple[Verdict, str]:
    import numpy

    return "ok", numpy.__version__


def _engine() -> tuple[Verdict, str]:
    from . import _library

    abi = _library.abi_version()
    return "ok", f"{_library.engine_version()}, ABI {abi}, {_library.library_path()}"


def _memory() -> tuple[Verdict, str]:
    from .planning.machine import available_memory

    free = available_memory("cpu")
    return "ok", "unknown" if free is None else f"{size(free)} available"


def _space(path: Path) -> tuple[Verdict, str]:
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    verdict: Verdict = "ok" if free > _LITTLE_SPACE else "problem"
    advice = "" if verdict == "ok" else ": too little for checkpoints, free some"
    return verdict, f"{size(free)} free in {path}{_prepared_texts(path)}{advice}"


def _prepared_texts(path: Path) -> str:
    from .data.cache import CACHE_LIMIT, cache_size

    texts, taken = cache_size(path)
    if not texts:
        return ""
    return f"; prepared texts there: {texts:,}, {size(taken)} of at most {size(CACHE_LIMIT)}"


def _kernels() -> tuple[Verdict, str]:
    from . import _library

    known = ", ".join(_library.available_instruction_sets())
    return "ok", f"{_library.instruction_set()} (of {known})"


def _threads() -> tuple[Verdict, str]:
    from . import _library

    return "ok", str(_library.get_num_threads())


def _gpu() -> Iterator[Finding]:
    from . import _library

    info = _library.cuda_info()
    if not info.built:
        yield Finding("gpu", "cuda", "missing", info.reason)
        return
    kernels = f"in this build, with kernels for {info.architectures or 'no architecture'}"
    if info.simulated:
        kernels = "simulated on the CPU, for tests"
    yield Finding("gpu", "cuda", "ok", f"runtime {_version(info.runtime_version)}, {kernels}")
    if info.driver_version:
        text = f"for CUDA {_version(info.driver_version)}"
        yield Finding("gpu", "driver", "ok", text)
    else:
        yield Finding("gpu", "driver", "missing", "no NVIDIA driver was found")
    if info.device_count == 0:
        if info.driver_version:
            yield Finding("gpu", "gpus", "missing", info.reason)
        return
    capability = f"compute capability {info.compute_major}.{info.compute_minor}"
    memory = f"{size(info.memory_total)} of memory"
    if info.memory_free:
        memory += f", {size(info.memory_free)} free"
    count = "" if info.device_count == 1 else f"{info.device_count}, the first is "
    text = f"{count}{info.device_name}, {capability}, {memory}"
    # A GPU that is there and can't be used is what a person calls a doctor for.
    if info.usable:
        yield Finding("gpu", "gpus", "ok", text)
    else:
        yield Finding("gpu", "gpus", "problem", f"{text}; not usable: {info.reason}")
    if info.cublaslt:
        verdict: Verdict = "ok" if info.usable else "problem"
        yield Finding("gpu", "cublaslt", verdict, info.cublaslt)
    yield _cupy()
    for device in info.devices:
        yield from _comparisons("gpu", device, has_bf16=info.compute_major >= 8)


def _cupy() -> Finding:
    for name in _CUPY_NAMES:
        try:
            return Finding("gpu", "cupy", "ok", f"{metadata.version(name)} ({name})")
        except metadata.PackageNotFoundError:
            continue
    if util.find_spec("cupy") is not None:
        return Finding("gpu", "cupy", "ok", "of unknown version")
    how = 'not installed: pip install "andrea[cuda]" gives zero-copy arrays of a model\'s memory'
    return Finding("gpu", "cupy", "missing", how)


def _comparisons(section: str, device: str, *, has_bf16: bool = True) -> Iterator[Finding]:
    from .selfcheck import compare

    for precision in ("fp32", "bf16") if has_bf16 else ("fp32",):
        yield _guarded(
            section,
            f"{device} {precision}",
            lambda precision=precision: compare(device, precision),  # type: ignore[misc]
        )


def _version(number: int) -> str:
    """A version as CUDA counts it: 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"
