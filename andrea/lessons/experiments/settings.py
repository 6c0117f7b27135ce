"""What the experiments' small models have in common: one place for their sizes and training."""

from __future__ import annotations

from typing import Any

from andrea.config import ModelConfig
from andrea.errors import ArgumentError
from andrea.training import TrainConfig

from .experiment import MODES


def is_quick(mode: str) -> bool:
    """Whether it is the quick one of MODES.

    Raises:
        ArgumentError: there is no such mode.
    """
    if mode not in MODES:
        raise ArgumentError(f"mode must be one of {', '.join(MODES)}, got {mode!r:.60}")
    return mode == "quick"


def small_model(vocab_size: int, **changes: Any) -> ModelConfig:
    """A model of which some ten can be trained in minutes: 4 blocks of width 64."""
    sizes = {"block_size": 64, "n_layer": 4, "n_head": 4, "n_embd": 64}
    return ModelConfig(vocab_size=vocab_size, **{**sizes, **changes})


def training(steps: int, **changes: Any) -> TrainConfig:
    """Training by so many steps of 512 tokens; the warm-up is a tenth of them."""
    settings: dict[str, Any] = {
        "batch_size": 8,
        # At 3e-3 one of some ten runs stays far above the others, at 1.5e-3 all are slower.
        "learning_rate": 2e-3,
        "warmup": steps // 10,
        "steps": steps,
        "eval_every": max(steps // 8, 1),
        "eval_windows": 64,
    }
    return TrainConfig(**{**settings, **changes})
