"""What an installation is: its files, its entry points, and the libraries that it says it needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest

import andrea
from andrea.cli import main

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parent.parent
PYPROJECT = REPOSITORY / "pyproject.toml"
needs_sources = pytest.mark.skipif(
    not (REPOSITORY / "andrea").is_dir(), reason="no sources beside the tests"
)


def test_the_module_is_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "andrea", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"andrea {andrea.__version__}, engine {andrea.engine_version()}\n"


def test_the_program_is_the_command_line() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="andrea")
    assert script.load() is main


def test_nothing_but_the_package_is_installed() -> None:
    """No second top-level package, as cli/ would be, and no tests."""
    files = metadata.distribution("andrea").files
    assert files
    own = {"andrea", f"andrea-{andrea.__version__}.dist-info"}
    for file in files:
        is_ours = file.parts[0] in own
        # The program lies outside; an editable installation has a module that finds the sources.
        assert is_ours or file.name in ("andrea", "andrea.exe") or "_editable_" in file.name, file
    assert not [file for file in files if "tests" in file.parts]


def test_type_checkers_may_use_the_annotations() -> None:
    assert (resources.files("andrea") / "py.typed").is_file()


# ---- what it needs


def imported(path: Path) -> Iterator[str]:
    """The top-level modules that a file imports, by statement or by name."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            if called == "import_module":
                yield str(node.args[0].value).split(".")[0]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", text)[0].lower() for text in requirements}


# Distributions that are called otherwise than the module, and those that are no Python module.
MODULES = {"cuda-pathfinder": "cuda", "cupy-cuda13x": "cupy", "nvidia-cublas": ""}
# What an installation without extras has; every other module waits until it is asked for.
EXTRAS = ("cuda", "gguf", "parquet", "plots", "serve", "tensorboard")


@needs_sources
def test_every_library_that_is_imported_is_declared_and_no_other() -> None:
    paths = [path for folder in ("andrea", "cli") for path in (REPOSITORY / folder).rglob("*.py")]
    paths = [path for path in paths if path.name != "_ffi.py"]
    used = {name for path in paths for name in imported(path)}
    used -= {"andrea", *sys.stdlib_module_names}
    used.discard("tomllib")  # from Python 3.11 on; tomli before
    found = project()
    declared = names(found["dependencies"])
    for extra in EXTRAS:
        declared |= names(found["optional-dependencies"][extra])
    # _ffi.py, which the build makes, is what imports cffi.
    assert used | {"cffi"} == {MODULES.get(name, name) for name in declared} - {""}


# The first versions that have what is used, found by trying.
LEAST = {
    "safetensors": (0, 6, 1),  # safe_open's offset_keys
    "hypothesis": (6, 86),  # characters(codec=..., exclude_categories=...)
    "matplotlib": (3, 9),  # Axis.minorticks_off
    "openai": (1, 55, 3),  # the first that goes with today's httpx
    "gguf": (0, 17, 1),  # the first that can be imported without sentencepiece
}


@needs_sources
@pytest.mark.parametrize("name", LEAST)
def test_versions_that_lack_what_is_used_are_not_let_in(name: str) -> None:
    found = project()
    groups = [found["dependencies"], *found["optional-dependencies"].values()]
    texts = [text for group in groups for text in group if names([text]) == {name}]
    assert texts
    for text in texts:
        least = re.search(r">=([\d.]+)", text)
        assert least and tuple(map(int, least[1].split("."))) >= LEAST[name]
