"""A run's memory and disk, told before it begins; and what took the memory where it ran out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Failure
from .settings import refusal

if TYPE_CHECKING:
    from andrea.config import ModelConfig
    from andrea.data import PreparedData
    from andrea.planning.disk import DiskPlan
    from andrea.training import TrainConfig


@dataclass(frozen=True)
class Resources:
    """What a run takes. memory: the engine's bytes by kind. copy: bytes of the copy of the state
    that checkpoints are written from, 0 where there is no room for it. steps: their number, where
    it is known."""

    model: ModelConfig
    train: TrainConfig
    memory: dict[str, int]
    copy: int
    folder: Path
    tokenizer_bytes: int
    validates: bool
    steps: int | None = None

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        train: TrainConfig,
        memory: dict[str, int],
        *,
        device: str,
        folder: Path,
        data: PreparedData,
    ) -> Resources:
        """What a run of this model takes on this device and in this folder."""
        from andrea.planning.machine import available_memory, is_gpu
        from andrea.planning.memory import copy_bytes, copy_fits
        from andrea.planning.sizes import num_parameters
        from andrea.runs.tensorfile import canonical_json

        free = available_memory("cpu")
        if free is not None and not is_gpu(device):
            free -= memory["total"]
        parameters = num_parameters(model)
        return cls(
            model=model,
            train=train,
            memory=memory,
            copy=copy_bytes(parameters) if copy_fits(parameters, free) else 0,
            folder=folder,
            tokenizer_bytes=len(canonical_json(data.tokenizer.to_dict())),
            validates=len(data.validation) > 1,
            steps=train.steps,
        )

    @property
    def disk(self) -> DiskPlan:
        """What the run takes on the disk."""
        from andrea.planning.disk import disk_plan
        from andrea.planning.sizes import num_parameters

        return disk_plan(
            self.folder,
            parameters=num_parameters(self.model),
            tokenizer_bytes=self.tokenizer_bytes,
            train=self.train,
            steps=self.steps,
            validates=self.validates,
        )

    def refuse_full_disk(self) -> None:
        """Refuse a run that the disk has no room for.

        Raises:
            Failure: with both figures, and with a command that fits where there is one.
        """
        from andrea.planning.memory import TooLarge

        try:
            self.disk.check(self.train.keep_last)
        except TooLarge as error:
            if error.changes:
                raise refusal(error, error.changes) from error
            raise Failure(
                f"{error}: free some space, choose another folder with --out, or a smaller model"
            ) from error

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Let a lack of memory name what takes most of it, and the command that takes less."""
        from andrea.errors import AndreaError
        from andrea.planning.memory import Room, consumers

        try:
            yield
        except MemoryError as error:
            what = str(error) if isinstance(error, AndreaError) else "out of memory"
            text = f"{what}: the biggest consumers are {consumers(self.memory)}"
            train = self.train
            changes = Room(None).smaller_batch(self.model, train.batch_size, train.accumulate)
            if changes is None:
                raise Failure(f"{text}; a smaller --block-size or model needs less") from error
            raise refusal(text, changes, "this needs less") from error
