"""The work of one training step: its batches, forward and backward, the update.

For the training loop, and for the replay of a recorded step, which must do the very same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from andrea.data import BatchSampler
from andrea.data.batches import Batch
from andrea.data.token_file import Tokens

if TYPE_CHECKING:
    from andrea.model import GPT

    from .config import TrainConfig
    from .guards import Limits


class StepWork:
    """Does steps, in any order: step n is a pure function of n and the model.

    Raises:
        DataError: the text is too short for the model's block_size.
    """

    def __init__(self, model: GPT, tokens: Tokens, config: TrainConfig) -> None:
        """Take the training tokens, (n,), any integer type."""
        self._model, self._config = model, config
        block_size = model.config.block_size
        self._sampler = BatchSampler(tokens, config.batch_size, block_size, config.seed)
        self._next: tuple[int, Batch | None] = (-1, None)

    def batches(self, step: int) -> list[Batch]:
        """The micro-batches of the step that comes after `step` steps."""
        first = step * self._config.accumulate
        return [self._batch(micro) for micro in range(first, first + self._config.accumulate)]

    def do(self, step: int, learning_rate: float, limits: Limits) -> tuple[float, float]:
        """Do the step that comes after `step` steps: (mean loss in nats, gradient norm).

        All of it is queued first; while a GPU works, the next batch is made.
        """
        config, model = self._config, self._model
        first = step * config.accumulate
        for micro in range(first, first + config.accumulate):
            inputs, targets = self._batch(micro)
            model.forward_backward(inputs, targets, 1.0 / config.accumulate, wait=False)
        # Where loss or gradient are not finite, or too large, the engine updates nothing.
        model.step(
            learning_rate,
            wait=False,
            **config.adamw,
            **limits.for_step(config),
        )
        self._next = first + config.accumulate, self._sampler.batch(first + config.accumulate)
        return model.update_loss(), model.last_gradient_norm

    def _batch(self, n: int) -> Batch:
        """Batch n of the run: made already, unless a run begins here."""
        made, batch = self._next
        return batch if made == n and batch is not None else self._sampler.batch(n)
