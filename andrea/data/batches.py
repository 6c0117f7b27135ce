"""Training batches: those of step n are a pure function of (seed, n), so that resume is exact."""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray

from andrea.data.permutation import mix, permute
from andrea.data.token_file import Tokens, mapping_of, release_pages
from andrea.errors import ArgumentError, DataError

Batch = tuple[NDArray[np.int32], NDArray[np.int32]]

# Pages of the token file are given back after this many windows: each may map a megabyte around it.
_RELEASE_AFTER_WINDOWS = 64
# Window starts are computed for this many rows at a time.
_ROWS_AHEAD = 1024


class BatchSampler:
    """Draws windows of a text in an endless sequence of rows, in a new order each epoch.

    An epoch has `windows_per_epoch` windows side by side, from a random offset below `block_size`
    on; it visits each once. Row r of batch n is row n * batch_size + r of the sequence, which
    depends on tokens, block size and seed alone. So micro-batch k of A in step n is
    `batch(n * A + k)`, and 16 micro-batches of 1 row see the same rows as 2 of 8.
    """

    def __init__(self, tokens: Tokens, batch_size: int, block_size: int, seed: int = 0) -> None:
        """Take the tokens, (n,), any integer type; DataError if no window fits into them."""
        if batch_size < 1 or block_size < 1:
            raise ArgumentError(
                f"batch_size is {batch_size}, block_size is {block_size}: both must be at least 1"
            )
        if len(tokens) < block_size + 1:
            raise DataError(
                f"the training text has {len(tokens)} tokens, a context of {block_size} needs "
                f"{block_size + 1}: use a longer text or a smaller context"
            )
        self.batch_size = batch_size
        self.block_size = block_size
        # One window fewer than fits leaves room for the random offset.
        self.windows_per_epoch = max((len(tokens) - block_size) // block_size, 1)
        self._num_offsets = min(block_size, len(tokens) - self.windows_per_epoch * block_size)
        self._tokens = tokens
        self._seed_key = mix(np.array([seed & (2**64 - 1)], dtype=np.uint64))
        self._windows_since_release = 0
        self._expect_random_reads()
        self._ahead_first = 0
        self._ahead_starts = np.zeros(0, dtype=np.int64)

    def batch(self, n: int) -> Batch:
        """Return inputs and targets of batch n >= 0: int32 (batch_size, block_size) each."""
        return self.sequences(n * self.batch_size, self.batch_size)

    def sequences(self, first: int, count: int) -> Batch:
        """Return rows from `first` on of the sequence: int32 (count, block_size) each."""
        if first < 0 or count < 0:
            raise ArgumentError(f"rows {first} to {first + count - 1}: rows are counted from 0")
        starts = self._starts_of_rows(first, count)
        positions = starts[:, None] + np.arange(self.block_size + 1)
        windows = self._tokens[positions].astype(np.int32)
        self._release_pages(count)
        return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])

    def epoch(self, n: int) -> float:
        """Return how many epochs are done before batch n."""
        return n * self.batch_size / self.windows_per_epoch

    def _starts_of_rows(self, first: int, count: int) -> NDArray[np.int64]:
        """Take the rows' window starts from those computed ahead, or compute more.

        For a few rows NumPy's calls cost as much as for a thousand.
        """
        known = self._ahead_first
        if not known <= first <= first + count <= known + len(self._ahead_starts):
            rows = np.arange(first, first + max(count, _ROWS_AHEAD), dtype=np.uint64)
            self._ahead_first, self._ahead_starts = first, self._window_starts(rows)
        offset = first - self._ahead_first
        return self._ahead_starts[offset : offset + count]

    def _window_starts(self, rows: NDArray[np.uint64]) -> NDArray[np.int64]:
        epochs, indices = np.divmod(rows, np.uint64(self.windows_per_epoch))
        keys = mix(self._seed_key + epochs)
        windows = permute(indices, self.windows_per_epoch, keys)
        offsets = mix(~keys) % np.uint64(self._num_offsets)
        return (windows * np.uint64(self.block_size) + offsets).astype(np.int64)

    def _expect_random_reads(self) -> None:
        """Keep the system from reading ahead in a file that does not stay in memory.

        It would read up to megabytes for each window. Of a smaller file it will be glad of them.
        """
        mapping = mapping_of(self._tokens)
        if mapping is None or not hasattr(mmap, "MADV_RANDOM"):
            return
        if len(mapping) > _physical_memory() // 2:
            mapping.madvise(mmap.MADV_RANDOM)

    def _release_pages(self, num_windows: int) -> None:
        """Let go of mapped pages now and then: resident memory must not grow to the file's size."""
        self._windows_since_release += num_windows
        if self._windows_since_release >= _RELEASE_AFTER_WINDOWS:
            self._windows_since_release = 0
            release_pages(self._tokens)


def _physical_memory() -> int:
    """Return the machine's memory in bytes; POSIX systems alone are asked."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
