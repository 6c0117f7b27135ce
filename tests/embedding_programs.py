"""Compiles what docs/embedding has, and the program that reads checkpoints with it, for tests.

Against an installed prefix, found through pkg-config or find_package, as other programs do.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from andrea.config import CHOICES
from andrea.runs import Checkpoint
from andrea.runs.checkpoint import tokenizer_of
from native_build import REPOSITORY, c_compiler, cxx_compiler, find_tool, run

SOURCES = REPOSITORY / "docs" / "embedding"
READER = (
    "checkpoint.c",
    "checkpoint_save.c",
    "json.c",
    "settings.c",
    "sha256.c",
    "vocabulary.c",
)
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")


def sources() -> Path:
    """The folder of the examples, or a skip."""
    if not SOURCES.is_dir():
        pytest.skip("no docs beside the tests")
    return SOURCES


@cache
def sanitizers() -> tuple[str, ...]:
    """Options for AddressSanitizer and UndefinedBehaviorSanitizer, or a skip."""
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O0")
    with TemporaryDirectory() as folder:
        source, program = Path(folder) / "probe.c", Path(folder) / "probe"
        source.write_text("int main(void) { return 0; }\n")
        command = [*c_compiler(), *flags, str(source), "-o", str(program)]
        works = not subprocess.run(command, capture_output=True).returncode
        if not works or subprocess.run([program], capture_output=True).returncode:
            pytest.skip("the compiler's sanitizers don't work here")
    return flags


def pkg_config(prefix: Path, *asked: str) -> list[str]:
    """What pkg-config says of the library under a prefix, as words."""
    (file,) = prefix.rglob("microgpt_cuda.pc")
    tool = find_tool("pkg-config", "pkgconf")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(file.parent)}
    return shlex.split(run(tool, *asked, "microgpt_cuda", env=environment))


def compile_c(prefix: Path, program: Path, *files: Path, options: tuple[str, ...] = ()) -> Path:
    """Compile C files with the library that pkg-config finds under the prefix."""
    (library,) = pkg_config(prefix, "--variable=libdir")
    link = [*pkg_config(prefix, "--cflags", "--libs"), "-lm", f"-Wl,-rpath,{library}"]
    include = f"-I{sources()}"
    run(*c_compiler(), "-std=c99", *WARNINGS, *options, include, *files, *link, "-o", program)
    return program


def compile_cxx(prefix: Path, program: Path, folder: Path) -> Path:
    """Compile the C++ example, with the readers compiled as C."""
    (library,) = pkg_config(prefix, "--variable=libdir")
    found = pkg_config(prefix, "--cflags", "--libs")
    objects = []
    for name in READER:
        objects.append(folder / f"{name}.o")
        compile_one = ["-std=c99", *WARNINGS, *pkg_config(prefix, "--cflags"), "-c"]
        run(*c_compiler(), *compile_one, sources() / name, "-o", objects[-1])
    source = [f"-I{sources()}", sources() / "continue.cpp", *objects]
    link = [*found, f"-Wl,-rpath,{library}"]
    run(*cxx_compiler(), "-std=c++17", *WARNINGS, *source, *link, "-o", program)
    return program


def build_examples(prefix: Path, folder: Path, *options: str) -> Path:
    """Build docs/embedding's own CMake project, which finds the library by its CMake package."""
    # A copy: a project that looked beside itself for the checkout would find nothing.
    source = shutil.copytree(sources(), folder / "examples", dirs_exist_ok=True)
    make = find_tool("ninja", "make")
    kind = "Ninja" if Path(make).name == "ninja" else "Unix Makefiles"
    flags = " ".join((*WARNINGS, *options))
    settings = [
        *("-G", kind, f"-DCMAKE_MAKE_PROGRAM={make}", f"-DCMAKE_PREFIX_PATH={prefix}"),
        *(f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"),
    ]
    run(find_tool("cmake"), "-S", source, "-B", folder / "build", *settings)
    run(find_tool("cmake"), "--build", folder / "build")
    return folder / "build"


def described(path: Path) -> str:
    """What tests/read_checkpoint.c must print of a checkpoint, from what Python reads.

    Raises:
        AndreaError: Python refuses it.
    """
    import andrea

    with Checkpoint(path) as checkpoint:
        config = checkpoint.info.model
        tokenizer = tokenizer_of(path, checkpoint.info)
        model = andrea.GPT(config, device="cpu", precision="fp32")
        checkpoint.load(model, moments=checkpoint.has_moments)
    kinds = (model.parameters(), model.first_moments(), model.second_moments())
    numbers = [hashlib.sha256(b"".join(t.tobytes() for t in kind.values())) for kind in kinds]
    words = hashlib.sha256()
    for token in range(tokenizer.vocab_size):
        data = tokenizer.decode_bytes([token])
        words.update(len(data).to_bytes(2, "big") + data)
    settings = [_printed(name, value) for name, value in config.to_full_dict().items()]
    sums = [each.hexdigest() for each in (*numbers, words)]
    return " ".join(map(str, [*settings, model.step_count, *sums]))


def _printed(name: str, value: Any) -> str:
    """A setting as the engine has it, in C's way of printing it."""
    if name in CHOICES:
        return str(CHOICES[name].index(value))
    if isinstance(value, bool):
        return "1" if value else "2"  # MG_ON, MG_OFF
    return f"{np.float32(value):.9g}" if isinstance(value, float) else str(value)
