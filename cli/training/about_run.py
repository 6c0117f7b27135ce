"""What a run tells about itself when it begins, in its log and its report: machine, plan, text."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from andrea.data import PreparedData
    from andrea.model import GPT
    from andrea.planning.plan import Plan

    from ..texts import TextRequest
    from .resources import Resources


def environment(model: GPT) -> dict[str, Any]:
    """Versions, and what the model runs on."""
    import numpy as np

    import andrea

    engine = andrea.engine_info()
    return {
        "andrea": andrea.__version__,
        "engine": engine["version"],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": model.device,
        "description": model.description,
        "precision": model.precision,
        "isa": engine["isa"],
        "threads": engine["threads"],
        "processors": os.cpu_count(),
    }


def planned(plan: Plan, resources: Resources) -> dict[str, Any]:
    """What was planned; bytes of memory by kind, of the copy for checkpoints and of the disk."""
    return {
        "steps": plan.steps,
        "seconds": _rounded(plan.seconds),
        "tokens": plan.tokens,
        "epochs": _rounded(plan.epochs),
        "parameters": plan.parameters,
        "tokens_per_second": _rounded(plan.tokens_per_second),
        "memory": plan.memory,
        "checkpoint_copy": resources.copy,
        "disk": resources.disk.total,
        "notes": list(plan.notes),
    }


def text_summary(request: TextRequest, data: PreparedData) -> dict[str, Any]:
    """The text in figures, by the names of its files without their folders."""
    return {
        "text": request.describe(),
        "documents": data.documents,
        "bytes": data.num_bytes,
        "train_tokens": len(data.train),
        "validation_tokens": len(data.validation),
        "tokenizer": data.tokenizer.describe(),
        "vocab_size": data.tokenizer.vocab_size,
        "fingerprint": data.fingerprint,
        "unigram_entropy": _rounded(data.unigram_entropy),
        **({"repetition": asdict(data.repetition)} if data.repetition is not None else {}),
        "notes": list(data.notes),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.6g}")
