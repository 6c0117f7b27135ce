"""Evaluation windows: the same ones each time, so that validation losses can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from andrea.data.batches import Batch
from andrea.data.token_file import Tokens
from andrea.errors import ArgumentError, DataError

_IGNORED = -1


class EvaluationWindows:
    """At most `max_windows` windows of a text, evenly spaced; all of them if there are no more.

    Windows lie side by side from the first token on; the last may be partial: it is filled up with
    input 0 and target -1, which the loss ignores.
    """

    def __init__(
        self, tokens: Tokens, batch_size: int, block_size: int, max_windows: int = 64
    ) -> None:
        """Take the tokens, (n,), any integer type; DataError if there is no token to predict."""
        if min(batch_size, block_size, max_windows) < 1:
            raise ArgumentError(
                f"batch_size is {batch_size}, block_size is {block_size} and max_windows is "
                f"{max_windows}: all must be at least 1"
            )
        if len(tokens) < 2:
            raise DataError(
                f"the validation text has {len(tokens)} tokens and needs 2: use a longer text"
            )
        fitting = -(-(len(tokens) - 1) // block_size)
        self.num_windows = min(fitting, max_windows)
        self._starts = (
            np.arange(self.num_windows, dtype=np.int64) * fitting // self.num_windows * block_size
        )
        self._tokens = tokens
        self._batch_size = batch_size
        self._block_size = block_size
        self.num_targets = int(np.minimum(len(tokens) - 1 - self._starts, block_size).sum())

    def batches(self) -> Iterator[Batch]:
        """Yield inputs and targets, int32 (at most batch_size, block_size) each."""
        for first in range(0, self.num_windows, self._batch_size):
            yield self._windows(self._starts[first : first + self._batch_size])

    def mean_loss(self, loss: Callable[[NDArray[np.int32], NDArray[np.int32]], float]) -> float:
        """Return the mean of `loss(inputs, targets)`, nats per token, over targets that count."""
        total = 0.0
        for inputs, targets in self.batches():
            total += loss(inputs, targets) * int(np.count_nonzero(targets != _IGNORED))
        return total / self.num_targets

    def _windows(self, starts: NDArray[np.int64]) -> Batch:
        inputs = np.zeros((len(starts), self._block_size), dtype=np.int32)
        targets = np.full_like(inputs, _IGNORED)
        for row, start in enumerate(starts):
            window = self._tokens[start : start + self._block_size + 1]
            inputs[row, : len(window) - 1] = window[:-1]
            targets[row, : len(window) - 1] = window[1:]
        return inputs, targets
