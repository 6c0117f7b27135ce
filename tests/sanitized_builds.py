"""Builds with sanitizers that several tests share, made known as side jobs.

The library with the CUDA backend on the simulator has the whole CPU engine too, so that one build
is enough for what runs on either. Each job's result is its build folder.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import side_jobs
from native_build import (
    UNDEFINED,
    build,
    compile_together,
    configure,
    copy_sources,
    sanitizer_runtimes,
)

ACCESSES, RACES = "build for accesses", "build for races"
RUNTIMES = {ACCESSES: ("asan", "ubsan"), RACES: ("tsan",)}
SANITIZERS = {ACCESSES: f"address,{UNDEFINED}", RACES: "thread"}
LIBRARY = "microgpt_cuda_sim"


def _sanitized_build(name: str, **isas: str) -> None:
    def work() -> Path:
        sanitizer_runtimes(*RUNTIMES[name])  # or a skip, before the work
        folder = Path(tempfile.mkdtemp(prefix="andrea-sanitized-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        options = {"MICROGPT_SANITIZE": SANITIZERS[name], "MICROGPT_SIM": "ON", **isas}
        source = copy_sources(folder)
        compile_together(source)
        configure(source, folder / "build", **options)
        build(folder / "build", LIBRARY, processors=1)
        return folder / "build"

    side_jobs.job(name, work)


# What reads past an end depends on the vector's width; 16 lanes take too long to compile.
_sanitized_build(ACCESSES, MICROGPT_HAVE_AVX512="OFF")
_sanitized_build(RACES, MICROGPT_ISA="generic")
