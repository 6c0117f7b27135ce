"""NumPy arrays over the engine's memory, and checked pointers to the caller's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._library import ffi
from .errors import ArgumentError, DTypeError


class EngineMemory:
    """float32 memory of the engine with its owner, in the form NumPy takes without copying.

    An array made from it holds this object, and this object holds the owner: the memory lives as
    long as any view of it.
    """

    def __init__(self, owner: object, pointer: Any, shape: tuple[int, ...]) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<f4",
            "shape": shape,
            "data": (int(ffi.cast("uintptr_t", pointer)), False),
        }


def view(owner: object, pointer: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A zero-copy float32 array over engine memory that keeps `owner` alive."""
    return np.asarray(EngineMemory(owner, pointer, shape))


def token_array(name: str, tokens: Any, *, ndim: int) -> NDArray[np.int32]:
    """Token ids as a C-contiguous int32 array.

    Accepts int32 arrays, other integer arrays and sequences of integers whose values fit in int32.

    Raises:
        DTypeError: the values are not integers.
        ArgumentError: the number of dimensions is wrong, or a value doesn't fit in int32.
    """
    try:
        array = np.asarray(tokens)
    except ValueError as error:
        raise ArgumentError(f"{name} is not a rectangular array of token ids") from error
    if array.size == 0 and array.dtype == np.float64:  # an empty list
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name} must hold integers (int32), got dtype {array.dtype}")
    if array.ndim != ndim:
        raise ArgumentError(f"{name} must have {ndim} dimensions, got shape {array.shape}")
    if array.dtype != np.int32:
        limits = np.iinfo(np.int32)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise ArgumentError(f"{name} holds values that are no token ids: they exceed int32")
        array = array.astype(np.int32)
    return np.ascontiguousarray(array)


def int32_pointer(array: NDArray[np.int32]) -> Any:
    """The cffi pointer of a C-contiguous int32 array; the caller keeps the array alive."""
    return ffi.cast("const int32_t *", array.ctypes.data)


def float32_pointer(array: NDArray[np.float32]) -> Any:
    """The cffi pointer of a C-contiguous float32 array; the caller keeps the array alive."""
    return ffi.cast("float *", array.ctypes.data)
