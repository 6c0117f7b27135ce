"""Experiments: the course's claims, tried on models that are trained side by side.

Plain data out. An experiment is named, built for a vocabulary and run:

    experiment = build("residual", "quick", data.tokenizer.vocab_size)
    runner = Runner(experiment, data)
    for progress in runner.progress(): ...
    runner.results().outcome
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from andrea.lazy import on_first_use

if TYPE_CHECKING:
    from .catalogue import build
    from .experiment import Contrast, Experiment, Measure, Variant
    from .report import write_report
    from .results import Results
    from .run import Run
    from .runner import Progress, Runner
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "catalogue": ("build",),
            "experiment": ("Contrast", "Experiment", "Measure", "Variant"),
            "report": ("write_report",),
            "results": ("Results",),
            "run": ("Run",),
            "runner": ("Progress", "Runner"),
        },
    )

NAMES: dict[str, str] = {
    "residual": "with and without skip connections, at several depths",
    "residual-init": "the start of what is added to the stream, scaled and not",
    "norm": "norms before, after and nowhere; warm-up; learning rates",
    "activation": "gelu, relu, relu2 and swiglu at equal parameters",
    "mlp-ratio": "MLPs 1, 2, 4 and 8 times as wide as the model",
    "depth": "what each block adds, and what the stream holds",
    "scaling": "loss over size and training, and the next size told",
    "custom": "whatever --vary names, such as --vary n_layer=2,4,8",
}
"""The experiments that there are, with what each compares."""

__all__ = [
    "NAMES",
    "Contrast",
    "Experiment",
    "Measure",
    "Progress",
    "Results",
    "Run",
    "Runner",
    "Variant",
    "build",
    "write_report",
]
