"""Files of bare numbers, one tensor after the other, as the family's and llm.c's are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.closing import Closing
from andrea.errors import CheckpointError
from andrea.runs.tensorfile import Tensor
from andrea.runs.whole_file import whole_file, write_all

from .safetensors_file import bfloat16_to_float32
from .weights import LazyTensor

INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")
# NumPy has no bfloat16: its bits.
BFLOAT16 = np.dtype("<u2")
LARGEST_INT32 = 2**31 - 1


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 numbers, ties to even; NaN stays one."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: NDArray[np.uint16] = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2")
    is_nan = np.isnan(values)
    if is_nan.any():
        rounded[is_nan] = 0x7FC0
    return rounded


class RawFile(Closing):
    """A file open for reading at any place.

    Raises:
        CheckpointError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        self.size = os.fstat(self._file.fileno()).st_size

    def numbers(self, offset: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """`count` numbers from a place in bytes on.

        Raises:
            CheckpointError: the file ends before.
        """
        values = np.empty(count, dtype=dtype)
        self._file.seek(offset)
        if self._file.readinto(values.data.cast("B")) != values.nbytes:
            raise CheckpointError(f"{self.path} became shorter while it was read")
        return values

    def tensor(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT32
    ) -> LazyTensor:
        """A tensor of float32 or bfloat16 at a place, read when it is used."""
        return LazyTensor(shape, partial(self._read, offset, shape, dtype))

    def _read(
        self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[np.float32]:
        count = int(np.prod(shape, dtype=np.int64))
        values = self.numbers(offset, count, dtype)
        if dtype == BFLOAT16:
            return bfloat16_to_float32(values).reshape(shape)
        return values.astype(np.float32, copy=False).reshape(shape)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


class RawWriter:
    """Appends numbers to a file that appears when all of them are there."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def numbers(self, values: NDArray[Any]) -> None:
        """Append little-endian numbers as they are."""
        if values.size:
            write_all(self._descriptor, np.ascontiguousarray(values).data.cast("B"))

    def tensor(self, tensor: Tensor, dtype: np.dtype[Any] = FLOAT32) -> None:
        """Append a tensor as float32 or bfloat16."""
        values = np.ascontiguousarray(tensor, dtype=np.float32)
        self.numbers(
            float32_to_bfloat16(values) if dtype == BFLOAT16 else values.astype("<f4", copy=False)
        )


@contextlib.contextmanager
def raw_writer(path: Path) -> Iterator[RawWriter]:
    """A file to write in a stream, which takes its place at `path` when it is whole.

    Raises:
        CheckpointError: the disk refuses; what was at `path` is as it was.
    """
    try:
        with whole_file(path) as descriptor:
            yield RawWriter(descriptor)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
