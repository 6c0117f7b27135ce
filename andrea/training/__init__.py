"""Training: how a run trains and how far it got, the loop, its schedule and its guards.

The loop needs data and tokenizers; who reads a run's configuration shall not wait for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from andrea.lazy import on_first_use

from .config import TrainConfig
from .state import TrainState

if TYPE_CHECKING:
    from .loop import evaluate, train
    from .reports import Evaluation, StepReport
else:
    __getattr__, __dir__ = on_first_use(
        __name__, {"loop": ("evaluate", "train"), "reports": ("Evaluation", "StepReport")}
    )

__all__ = ["Evaluation", "StepReport", "TrainConfig", "TrainState", "evaluate", "train"]
