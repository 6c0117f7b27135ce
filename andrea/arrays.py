"""Arrays over the engine's memory, and checked pointers to the caller's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._library import ffi
from .device_arrays import gpu_view
from .errors import ArgumentError, DTypeError

__all__ = [
    "address",
    "bfloat16",
    "float32_pointer",
    "gpu_view",
    "int32_pointer",
    "token_array",
    "view",
]


class EngineMemory:
    """Memory of the engine that the host can read, in the form NumPy takes without copying.

    An array made from it holds this object, and this object holds the owner: the memory lives as
    long as any view of it.
    """

    def __init__(self, owner: object, pointer: Any, shape: tuple[int, ...], typestr: str) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "shape": shape,
            "data": (address(pointer), False),
        }


def view(owner: object, pointer: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """A zero-copy NumPy array over engine memory that keeps `owner` alive.

    Types that NumPy does not know by itself, such as bfloat16 of ml_dtypes, are fine.
    """
    dtype = np.dtype(dtype)
    raw = np.dtype(f"<u{dtype.itemsize}")
    return np.asarray(EngineMemory(owner, pointer, shape, raw.str)).view(dtype)


def bfloat16() -> np.dtype[Any]:
    """The dtype of bfloat16 numbers: that of ml_dtypes where it is installed, else their bits."""
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def address(pointer: Any) -> int:
    """A cffi pointer as a number."""
    return int(ffi.cast("uintptr_t", pointer))


def token_array(name: str, tokens: Any, *, ndim: int) -> NDArray[np.int32]:
    """Token ids as a C-contiguous, aligned int32 array.

    Accepts int32 arrays, other integer arrays, those that DLPack shares from the host's memory, and
    sequences of integers whose values fit in int32.

    Raises:
        DTypeError: the values are not integers.
        ArgumentError: the number of dimensions is wrong, or a value doesn't fit in int32.
    """
    try:
        if hasattr(tokens, "__dlpack__") and not hasattr(tokens, "__array__"):
            tokens = np.from_dlpack(tokens)
        array = np.asarray(tokens)
    except (BufferError, RuntimeError) as error:
        raise ArgumentError(f"{name} cannot be shared through DLPack: {error}") from error
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
    # Aligned, too: an array may lie across the middle of its numbers, as in a file that was read.
    return np.require(array, requirements=["C", "ALIGNED"])


def int32_pointer(array: NDArray[np.int32] | int) -> Any:
    """The cffi pointer of a C-contiguous int32 array, or of an address; the caller keeps the memory
    alive."""
    return ffi.cast("const int32_t *", array if isinstance(array, int) else array.ctypes.data)


def float32_pointer(array: NDArray[np.float32] | int) -> Any:
    """The cffi pointer of a C-contiguous float32 array, or of an address, as `int32_pointer`."""
    return ffi.cast("float *", array if isinstance(array, int) else array.ctypes.data)
