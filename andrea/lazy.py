"""Names of a package that are loaded when they are first used: PEP 562, written once.

A type checker must not see what `on_first_use` returns, or it takes every name for a good one; it
is told the names by the same imports under TYPE_CHECKING.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def on_first_use(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package, by the names that each of its modules gives it."""
    module_of = {name: module for module, given in names.items() for name in given}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        # From now on the package has it, and nobody asks here again.
        setattr(sys.modules[package], name, value)
        return value

    def all_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return load, all_names
