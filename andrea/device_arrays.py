"""Arrays in a GPU's memory: views of the engine's, and those that callers hand in.

CuPy is imported when an array of a GPU is made or taken from DLPack, never earlier.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .errors import ArgumentError, DeviceError, DTypeError

# DLDeviceType of the DLPack header: memory that kernels of an NVIDIA GPU can read.
_DLPACK_GPU = {2, 13}  # kDLCUDA, kDLCUDAManaged
_LEGACY_DEFAULT_STREAM = 1  # in __cuda_array_interface__; the CUDA runtime takes 0 for it, too


def import_cupy(wish: str) -> ModuleType:
    """CuPy; `wish` begins the sentence that says what it is needed for.

    Raises:
        DeviceError: it is not installed, or cannot be loaded.
    """
    try:
        import cupy
    except ImportError as error:
        why = " ".join(str(error).split())[:160]  # of a broken installation CuPy tells a page
        raise DeviceError(
            f'{wish} needs CuPy ({why}): pip install "andrea[cuda]"; '
            "read() and write() of a model copy to and from NumPy arrays without it"
        ) from error
    module: ModuleType = cupy
    return module


def gpu_view(
    owner: object, address: int, shape: tuple[int, ...], dtype: Any, device_id: int
) -> Any:
    """A CuPy array over a GPU's memory, without a copy, that keeps `owner` alive.

    Args:
        owner: whatever must live as long as the memory is used.
        address: where the memory begins on the GPU.
        shape: of the array, whose rows follow each other.
        dtype: anything that NumPy takes for a dtype, bfloat16 of ml_dtypes too.
        device_id: which GPU, counted from 0.

    Raises:
        DeviceError: CuPy is not installed.
    """
    cupy = import_cupy("an array of a model on a GPU")
    dtype = cupy.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    # With its device named, nothing is asked of the driver.
    memory = cupy.cuda.UnownedMemory(address, size, owner, device_id)
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


def current_stream() -> int | None:
    """The stream that CuPy queues on in this thread, as a number; None where CuPy isn't in use."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return None
    try:
        return int(cupy.cuda.get_current_stream().ptr)
    except RuntimeError:  # it found no driver or GPU: so it has queued nothing
        return None


@dataclass(frozen=True)
class DeviceArray:
    """A C-contiguous int32 array in a GPU's memory.

    stream: where its values are being written, as a number, 0 for the default stream; None: they
    are there. owner keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    stream: int | None
    owner: object


def device_array(name: str, value: Any, *, ndim: int) -> DeviceArray | None:
    """What `value` is on a GPU, or None where it is none of a GPU's arrays.

    Takes whatever has `__cuda_array_interface__` (version 2 or newer: CuPy, PyTorch, Numba) or,
    with CuPy installed, speaks DLPack.

    Raises:
        DTypeError: its numbers are not int32.
        ArgumentError: it has another number of dimensions, or gaps between its rows.
        DeviceError: it takes CuPy to read it, which is not installed.
    """
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None and _is_dlpack_of_a_gpu(value):
        value = import_cupy(f"{name} from DLPack").from_dlpack(value)
        interface = value.__cuda_array_interface__
    if interface is None:
        return None
    version = interface.get("version", 0)
    if version < 2:
        raise ArgumentError(
            f"{name} has version {version} of __cuda_array_interface__, 2 or newer is needed"
        )
    typestr = str(interface["typestr"])
    if typestr not in ("<i4", "=i4", "|i4"):
        raise DTypeError(
            f"{name} must hold int32 numbers where it is on a GPU, got {typestr}: convert it there"
        )
    shape = tuple(int(length) for length in interface["shape"])
    if len(shape) != ndim:
        raise ArgumentError(f"{name} must have {ndim} dimensions, got shape {shape}")
    if 0 in shape:
        raise ArgumentError(f"{name} is empty, its shape is {shape}")
    if interface.get("mask") is not None or not _is_contiguous(shape, interface.get("strides")):
        raise ArgumentError(
            f"{name} must be C-contiguous where it is on a GPU, without a mask or gaps: "
            "copy it there, as with cupy.ascontiguousarray"
        )
    # Version 2 does not say where the values are written: on the default stream, as a rule.
    stream = interface.get("stream") if version >= 3 else 0
    if stream == _LEGACY_DEFAULT_STREAM:
        stream = 0
    address = int(interface["data"][0])
    return DeviceArray(address, shape, None if stream is None else int(stream), value)


def _is_dlpack_of_a_gpu(value: Any) -> bool:
    ask = getattr(value, "__dlpack_device__", None)
    return callable(ask) and int(ask()[0]) in _DLPACK_GPU


def _is_contiguous(shape: tuple[int, ...], strides: Any) -> bool:
    if strides is None:
        return True
    expected = 4
    for length, stride in zip(reversed(shape), reversed(tuple(strides)), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
