"""The experiments by name."""

from __future__ import annotations

from collections.abc import Callable

from andrea.errors import ArgumentError

from . import NAMES
from .activation import activation
from .depth import depth
from .experiment import Experiment
from .mlp_ratio import mlp_ratio
from .norm import norm
from .residual import residual
from .residual_init import residual_init
from .scaling import scaling

# mode, vocab_size, steps -> what is to be done.
_BUILDERS: dict[str, Callable[[str, int, int | None], Experiment]] = {
    "residual": residual,
    "residual-init": residual_init,
    "norm": norm,
    "activation": activation,
    "mlp-ratio": mlp_ratio,
    "depth": depth,
    "scaling": scaling,
}


def build(name: str, mode: str, vocab_size: int, steps: int | None = None) -> Experiment:
    """An experiment for a vocabulary; "custom", which needs to be told more, is `custom`.

    Args:
        name: of NAMES.
        mode: "quick" or "full".
        vocab_size: of the text's tokenizer.
        steps: of each run, instead of the experiment's own.

    Raises:
        ArgumentError: there is no such experiment or mode.
        ConfigError: steps or vocab_size is out of its range.
    """
    if name not in _BUILDERS:
        raise ArgumentError(f"no experiment is called {name!r:.60}; there is {', '.join(NAMES)}")
    return _BUILDERS[name](mode, vocab_size, steps)
