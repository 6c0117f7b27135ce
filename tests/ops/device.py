"""A device to run single ops on, through the C API of microgpt_cuda_ops.h, for the op tests.

One Device is one instruction set of one backend. An op runs once for each number of threads, and
every run must give the same bits. Buffers lie between guards; what an op must not write is compared
before and after.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from andrea import _library
from reference.ops import Array

ISAS = ("generic", "avx2", "avx512")
THREAD_COUNTS = (1, 2, 3)

# Not a multiple of any vector: a tensor of the model's table may start at any float.
_GUARD_WORDS = 17
# As a float a NaN, which spreads when it is read; as a token or target far out of range.
_GUARD = np.uint32(0x7FC00000)


class OpError(Exception):
    """An op returned a status other than MG_OK; the text is mg_last_error's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, eq=False)
class Written:
    """A buffer that an op may write, and what it holds before."""

    initial: Array


def output(*shape: int) -> Written:
    """A float32 buffer full of NaN, for an op that writes (=) all of it."""
    return Written(np.full(shape, np.nan, np.float32))


def opaque(size: int) -> Written:
    """A buffer of size bytes in the backend's own layout, full of NaN."""
    return output(-(-size // 4))


def added(initial: Array) -> Written:
    """A float32 buffer with known values, for an op that adds (+=) to it."""
    return Written(np.ascontiguousarray(initial, np.float32))


class Device:
    """One backend of a copy of the engine's library that was loaded for one instruction set."""

    def __init__(self, isa: str, folder: Path) -> None:
        self.ffi = _library.ffi
        # The instruction set is chosen once per loaded library, so each gets a copy of its own.
        path = shutil.copy(_library.library_path(), folder / f"engine_{isa}.so")
        before = os.environ.get("MICROGPT_ISA")
        os.environ["MICROGPT_ISA"] = isa
        try:
            self.library = self.ffi.dlopen(str(path))
            name = self.ffi.new("const char**")
            self._check(self.library.mg_cpu_isa(name))
        finally:
            if before is None:
                del os.environ["MICROGPT_ISA"]
            else:
                os.environ["MICROGPT_ISA"] = before
        assert self.ffi.string(name[0]).decode() == isa
        handle = self.ffi.new("mg_backend**")
        self._check(self.library.mg_backend_create(b"cpu", b"fp32", handle))
        self._backend = handle[0]

    def close(self) -> None:
        """Free the backend."""
        self.library.mg_backend_free(self._backend)

    def run(self, op: str, *arguments: Any) -> tuple[Array, ...]:
        """Call mg_op_<op>(backend, *arguments) and return what the Written buffers hold, in order.

        Arrays are inputs; numbers, None and cffi pointers are passed on. A Written given twice
        is one buffer.

        Raises:
            OpError: the op refused its arguments.
            AssertionError: a guard or an input was changed, or the bits vary with the threads.
        """
        first: tuple[Array, ...] = ()
        for threads in THREAD_COUNTS:
            self._check(self.library.mg_set_num_threads(threads))
            results = self._run_once(op, arguments)
            first = first or results
            for number, (expected, result) in enumerate(zip(first, results, strict=True)):
                assert expected.tobytes() == result.tobytes(), (
                    f"{op}: output {number} has other bits with {threads} threads than with 1"
                )
        return first

    def size(self, op: str, *sizes: int) -> int:
        """What mg_op_<op>(backend, *sizes) says a buffer needs, in bytes."""
        return int(getattr(self.library, f"mg_op_{op}")(self._backend, *sizes))

    def _run_once(self, op: str, arguments: tuple[Any, ...]) -> tuple[Array, ...]:
        buffers: dict[int, _Guarded] = {}
        try:
            passed = []
            for argument in arguments:
                if isinstance(argument, np.ndarray | Written):
                    if id(argument) not in buffers:
                        buffers[id(argument)] = _Guarded(self, argument)
                    passed.append(buffers[id(argument)].pointer)
                else:
                    passed.append(self.ffi.NULL if argument is None else argument)
            self._check(getattr(self.library, f"mg_op_{op}")(self._backend, *passed))
            results = []
            for number, buffer in enumerate(buffers.values()):
                values = buffer.read(f"{op}, buffer {number}")
                if buffer.written:
                    results.append(values)
            return tuple(results)
        finally:
            for buffer in buffers.values():
                self.library.mg_backend_release(self._backend, buffer.memory)

    def _check(self, status: int) -> None:
        if status != self.library.MG_OK:
            raise OpError(status, self.ffi.string(self.library.mg_last_error()).decode())


class _Guarded:
    """Device memory that holds one array between two guards."""

    def __init__(self, device: Device, source: Array | Written) -> None:
        self.written = isinstance(source, Written)
        self.initial = source.initial if isinstance(source, Written) else source
        assert self.initial.dtype in (np.float32, np.int32) and self.initial.flags.c_contiguous
        guard = np.full(_GUARD_WORDS, _GUARD)
        content = np.concatenate([guard, self.initial.reshape(-1).view(np.uint32), guard])
        self.device = device
        self.size = content.nbytes
        memory = device.ffi.new("void**")
        device._check(device.library.mg_backend_allocate(device._backend, self.size, memory))
        self.memory = memory[0]
        device._check(
            device.library.mg_backend_copy_in(
                device._backend, self.memory, device.ffi.from_buffer(content), self.size
            )
        )
        kind = "int32_t*" if self.initial.dtype == np.int32 else "float*"
        self.pointer = device.ffi.cast(kind, self.memory) + _GUARD_WORDS

    def read(self, name: str) -> Array:
        """What the array holds now; the guards, and an input altogether, must be as they were."""
        content = np.empty(self.size // 4, np.uint32)
        self.device._check(
            self.device.library.mg_backend_copy_out(
                self.device._backend, self.device.ffi.from_buffer(content), self.memory, self.size
            )
        )
        assert (content[:_GUARD_WORDS] == _GUARD).all(), f"{name}: written before its begin"
        assert (content[-_GUARD_WORDS:] == _GUARD).all(), f"{name}: written past its end"
        values = content[_GUARD_WORDS:-_GUARD_WORDS].view(self.initial.dtype)
        values = values.reshape(self.initial.shape)
        if not self.written:
            assert values.tobytes() == self.initial.tobytes(), f"{name}: an input was written"
        return values
