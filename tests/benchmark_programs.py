"""Runs the programs of benchmarks/, and reads modules of theirs, for the tests of both.

They run as programs: benchmarks/ is no package, and one of its modules is called like a folder
here.
"""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from patience import PATIENCE

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
SMALL = "V65,T32,L2,d32,h2,B2"


def run(script: str, *arguments: object) -> str:
    """What a program prints; it must end well."""
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def refusal(script: str, *arguments: object) -> str:
    """What a program that can't do as it is told says, in one line and without a traceback."""
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    return line


def module(name: str) -> ModuleType:
    """A module of benchmarks/ that imports nothing else from there."""
    full_name = f"benchmarks_{name}"
    spec = importlib.util.spec_from_file_location(full_name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    return made


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a JSON value, with the names that lead to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def check_figures(told: dict[str, Any], may_be_zero: set[str]) -> None:
    """All numbers are finite, and above 0 but for those of some names."""
    for path, value in numbers(told):
        assert math.isfinite(value) and value >= 0, path
        assert value > 0 or path.split("/")[-1] in may_be_zero, path


def check_table(text: str) -> None:
    """It fits a terminal and has no colours."""
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
