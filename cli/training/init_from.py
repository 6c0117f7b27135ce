"""`andrea train TEXT --init-from PATH`: a new run that begins with weights that learned before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..recorded import check_record
from ..screen.display import Display
from .changes import refuse_new_shape
from .follow import shell_path

if TYPE_CHECKING:
    from andrea.formats.weights import Weights as OpenedWeights
    from andrea.tokenizers import Tokenizer


@dataclass(frozen=True)
class Weights:
    """What a new run begins with: a run's, a file's, or those of a model from elsewhere.

    path: the very checkpoint, as its run may train on, or the folder. steps: they learned for so
    many; None: that isn't known.
    """

    opened: OpenedWeights
    tokenizer: Tokenizer
    path: str
    steps: int | None

    def shape(self, block_size: int | None) -> dict[str, Any]:
        """The settings that a model for them has, the vocabulary aside, which the tokenizer has;
        the context is the one that is asked for."""
        sizes = self.opened.config.to_full_dict()
        del sizes["vocab_size"]
        return sizes if block_size is None else sizes | {"block_size": block_size}

    def describe(self, block_size: int) -> str:
        """Where they come from, how much they learned, and what becomes of their context."""
        text = f"those of {shell_path(Path(self.path))}"
        if self.steps is not None:
            text += f", after {self.steps:,} steps"
        before = self.opened.config.block_size
        if block_size != before:
            text += f"; their context of {before} becomes {block_size}"
        return text


@contextlib.contextmanager
def open_weights(options: Mapping[str, Any], display: Display) -> Iterator[Weights]:
    """Open what --init-from names, and refuse options that ask for another shape.

    Raises:
        RunError: there is no run.
        CheckpointError: it is damaged, or a model that Andrea can't hold.
        Failure: an option contradicts it.
    """
    path = Path(options["init_from"])
    with _opened(path, display) as weights:
        from andrea.runs.checkpoint import CheckpointInfo

        info = CheckpointInfo(weights.opened.config, weights.tokenizer.to_dict())
        # The context is the one size that may differ.
        asked = {**options, "block_size": None}
        refuse_new_shape(asked, info, "these weights", "leave out --init-from")
        yield weights


@contextlib.contextmanager
def _opened(path: Path, display: Display) -> Iterator[Weights]:
    from andrea.formats.hf import HFFolder, is_hf_folder
    from andrea.formats.weights import of_run
    from andrea.runs.folder import RunFolder

    if is_hf_folder(path):
        with HFFolder(path) as folder:
            yield Weights(folder.weights, folder.tokenizer, os.path.abspath(path), None)
        return
    with RunFolder.open(path) as run:
        check_record(run)
        for line in run.damaged:
            display.line(line, style="yellow")
        steps = None if run.info.state is None else run.state().step
        place = os.path.abspath(run.checkpoint_path)
        yield Weights(of_run(run), run.tokenizer(), place, steps)
