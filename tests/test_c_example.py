"""The example of docs/embedding: a C program that trains through the public header alone."""

from __future__ import annotations

import os
import re
import sys
from importlib import resources
from pathlib import Path

import pytest

from andrea._library import library_path
from native_build import REPOSITORY, c_compiler, find_tool, run

EXAMPLE = REPOSITORY / "docs" / "embedding" / "train.c"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def compile_and_run(include: Path, library: Path, folder: Path, **environment: str) -> str:
    """What the example prints when it is built against a header folder and a library folder."""
    if not EXAMPLE.is_file():
        pytest.skip("no docs beside the tests")
    program = folder / "train"
    link = [f"-I{include}", f"-L{library}", "-lmicrogpt_cuda", f"-Wl,-rpath,{library}"]
    run(*c_compiler(), *STRICT, EXAMPLE, *link, "-o", program)
    return run(program, env={**os.environ, **environment})


def losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step +\d+  loss (\S+)$", printed, re.MULTILINE)]


@pytest.mark.skipif(sys.platform == "win32", reason="compiles with a Unix compiler's options")
def test_against_the_installed_package(tmp_path: Path) -> None:
    include = Path(str(resources.files("andrea") / "include"))
    printed = compile_and_run(include, library_path().parent, tmp_path)
    found = losses(printed)
    assert len(found) == 7
    assert abs(found[0] - 5.545) < 0.1, "untrained, it guesses among 256 bytes"
    assert found[-1] < 0.3
    assert "How I wonder what you are!\n" in printed


@pytest.mark.skipif(sys.platform == "win32", reason="compiles with a Unix compiler's options")
def test_against_an_installed_prefix(checked_build: Path, tmp_path: Path) -> None:
    run(find_tool("cmake"), "--install", checked_build, "--prefix", tmp_path / "prefix")
    headers = sorted(path.name for path in (tmp_path / "prefix" / "include").iterdir())
    assert headers == ["microgpt_cuda.h", "microgpt_cuda_ops.h"]
    (library,) = (tmp_path / "prefix").rglob("libmicrogpt_cuda.*")
    # That build's other kernels stand in for what this machine may not have, and are slow.
    folders = tmp_path / "prefix" / "include", library.parent
    printed = compile_and_run(*folders, tmp_path, MICROGPT_ISA="generic")
    assert losses(printed)[-1] < 0.3


def test_it_uses_the_public_header_alone() -> None:
    if not EXAMPLE.is_file():
        pytest.skip("no docs beside the tests")
    text = EXAMPLE.read_text("utf-8")
    assert set(re.findall(r'#include [<"](.+)[>"]', text)) == {
        *("microgpt_cuda.h", "stdio.h", "stdlib.h", "string.h"),
    }
    assert len(text.splitlines()) < 120
