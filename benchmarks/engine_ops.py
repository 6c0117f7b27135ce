"""The engine's single ops (microgpt_cuda_ops.h) and its device memory, from Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea._library import check, ffi, lib, offer_cublaslt

_BLOCK = 1 << 20  # numbers of the random block that memory is filled with, over and over


def _as_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even; values are finite."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class EngineOps:
    """One backend and the memory taken from it, which goes with it.

    On a GPU calls are queued: `synchronize` waits for them.
    """

    def __init__(self, precision: str, device: str = "cpu") -> None:
        handle = ffi.new("mg_backend **")
        offer_cublaslt(device)
        check(lib.mg_backend_create(device.encode(), precision.encode(), handle))
        self._backend = handle[0]
        self._memory: list[Any] = []
        self.precision = precision
        self.device = device
        self.is_gpu = device != "cpu"
        self._forget_copies()
        self._mark = ffi.new("void **")
        check(lib.mg_backend_allocate(self._backend, 64, self._mark))
        self._from_mark = ffi.new("char[1]")
        self.element_bytes = int(lib.mg_backend_element_bytes(self._backend))
        values = np.random.default_rng(0).standard_normal(_BLOCK, np.float32) * np.float32(0.02)
        self._float_block: NDArray[np.float32] = values
        self._element_block: NDArray[Any] = (
            values if self.element_bytes == 4 else _as_bfloat16(values)
        )

    def close(self) -> None:
        self.release()
        lib.mg_backend_release(self._backend, self._mark[0])
        lib.mg_backend_free(self._backend)

    def release(self) -> None:
        """Give all memory back."""
        while self._memory:
            lib.mg_backend_release(self._backend, self._memory.pop())
        self._forget_copies()

    def _forget_copies(self) -> None:
        """On a GPU a training step finds copies of the weights in its precision: so do ops here."""
        if self.is_gpu:
            check(lib.mg_backend_keep_copies(self._backend, 1))

    def synchronize(self) -> None:
        """Wait until all that was queued is done: a copy from the device waits for it."""
        check(lib.mg_backend_copy_out(self._backend, self._from_mark, self._mark[0], 1))

    def launches(self) -> int:
        """Kernels and products started on a GPU so far."""
        return int(lib.mg_backend_launches(self._backend))

    def call(self, op: str, *arguments: Any) -> None:
        """mg_op_<op>(backend, *arguments).

        Raises:
            AndreaError: the op failed.
        """
        check(getattr(lib, f"mg_op_{op}")(self._backend, *arguments))

    def size(self, op: str, *sizes: int) -> int:
        """Bytes that mg_op_<op>(backend, *sizes) asks for."""
        return int(getattr(lib, f"mg_op_{op}")(self._backend, *sizes))

    # ---- memory, written once so that it is really there

    def floats(self, count: int) -> Any:
        """float32 numbers, small and random."""
        return ffi.cast("float *", self._filled(self._float_block, 4 * count))

    def elements(self, count: int) -> Any:
        """The same in the backend's precision."""
        return self._filled(self._element_block, self.element_bytes * count)

    def steady_elements(self, count: int) -> Any:
        """Elements that GELU leaves as they are, however often it is applied: from 6 on."""
        block = 6 + np.abs(self._float_block)
        block = block if self.element_bytes == 4 else _as_bfloat16(block)
        return self._filled(block, self.element_bytes * count)

    def integers(self, values: NDArray[np.int32]) -> Any:
        return ffi.cast("int32_t *", self._filled(np.ascontiguousarray(values), values.nbytes))

    def opaque(self, size: int) -> Any:
        """Bytes in the backend's own layout, all 0."""
        return self._filled(np.zeros(_BLOCK, np.float32), size)

    def _filled(self, block: NDArray[Any], size: int) -> Any:
        memory = ffi.new("void **")
        check(lib.mg_backend_allocate(self._backend, size, memory))
        self._memory.append(memory[0])
        start, source = ffi.cast("char *", memory[0]), ffi.from_buffer(block)
        for begin in range(0, size, block.nbytes):
            part = min(block.nbytes, size - begin)
            check(lib.mg_backend_copy_in(self._backend, start + begin, source, part))
        return memory[0]
