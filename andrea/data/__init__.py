"""Data: any text to token files in bounded memory, and from there to batches."""

from __future__ import annotations

from andrea.data.batches import BatchSampler
from andrea.data.evaluation import EvaluationWindows
from andrea.data.prepare import Progress, prepare
from andrea.data.prepared import PreparedData, bits_per_byte

__all__ = [
    "BatchSampler",
    "EvaluationWindows",
    "PreparedData",
    "Progress",
    "bits_per_byte",
    "prepare",
]
