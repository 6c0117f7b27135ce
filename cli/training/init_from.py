"""`andrea train TEXT --init-from RUN`: a new run that begins with the weights of another."""

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
    from andrea.runs.folder import RunFolder


@dataclass(frozen=True)
class Weights:
    """A run, or a file of weights, that a new run begins with."""

    run: RunFolder

    @property
    def path(self) -> str:
        """The very checkpoint: its run may train on."""
        return os.path.abspath(self.run.checkpoint_path)

    def shape(self) -> dict[str, int]:
        """The sizes that a model for them has, the vocabulary aside, which the tokenizer has."""
        sizes = self.run.info.model.to_dict()
        return {name: size for name, size in sizes.items() if name != "vocab_size"}

    def describe(self) -> str:
        """Where they come from, and how much they learned."""
        text = f"those of {shell_path(self.run.checkpoint_path)}"
        if self.run.info.state is None:
            return text
        return f"{text}, after {self.run.state().step:,} steps"


@contextlib.contextmanager
def open_weights(options: Mapping[str, Any], display: Display) -> Iterator[Weights]:
    """Open what --init-from names, and refuse options that ask for another shape.

    Raises:
        RunError: there is no run.
        CheckpointError: it is damaged.
        Failure: an option contradicts it.
    """
    from andrea.runs.folder import RunFolder

    with RunFolder.open(Path(options["init_from"])) as run:
        check_record(run)
        for line in run.damaged:
            display.line(line, style="yellow")
        refuse_new_shape(options, run.info, "these weights", "leave out --init-from")
        yield Weights(run)
