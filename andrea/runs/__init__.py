"""Runs on the disk: their folder, its checkpoints and its log, from which they can go on."""

from __future__ import annotations

from .checkpoint import Checkpoint, CheckpointInfo, save_checkpoint
from .folder import RunFolder

__all__ = ["Checkpoint", "CheckpointInfo", "RunFolder", "save_checkpoint"]
