"""Training: how a run trains and how far it got, the loop, its schedule and its guards."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .config import TrainConfig
from .state import TrainState

if TYPE_CHECKING:
    from .loop import evaluate, train
    from .reports import Evaluation, StepReport

__all__ = ["Evaluation", "StepReport", "TrainConfig", "TrainState", "evaluate", "train"]

# The loop needs data and tokenizers; who reads a run's configuration shall not wait for them.
_LAZY = {"train": "loop", "evaluate": "loop", "Evaluation": "reports", "StepReport": "reports"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
