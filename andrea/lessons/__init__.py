"""Lessons: what a transformer's blocks are made of and do, counted, traced and tried.

Plain data, computed from a configuration or by the engine; nothing here prints. Names are loaded
when they are first used, so that no lesson waits for the libraries of another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .counting import (
        Comparison,
        Count,
        Kind,
        Operations,
        changed_config,
        count_operations,
        count_parameters,
    )
    from .shares import draw_shares

_LAZY = {
    "Comparison": "counting",
    "Count": "counting",
    "Kind": "counting",
    "Operations": "counting",
    "changed_config": "counting",
    "count_operations": "counting",
    "count_parameters": "counting",
    "draw_shares": "shares",
}

__all__ = [
    "Comparison",
    "Count",
    "Kind",
    "Operations",
    "changed_config",
    "count_operations",
    "count_parameters",
    "draw_shares",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
