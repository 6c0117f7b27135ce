"""A device to run single ops on, through the C API of microgpt_cuda_ops.h, for the op tests.

One Device is one instruction set and one precision of the CPU backend. An op runs once for each
number of threads, and every run must give the same bits. Buffers lie between guards; what an op
must not write is compared before and after.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from andrea import _library
from reference import bfloat16
from reference.ops import Array

ISAS = ("generic", "avx2", "avx512", "avx512bf16")
PRECISIONS = ("fp32", "bf16")
THREAD_COUNTS = (1, 2, 3)

# Not a multiple of any vector: a tensor of the model's table may start at any number.
_GUARD_LENGTH = 17
# As a float a NaN, which spreads when it is read; as a token or target far out of range.
_GUARD = np.uint32(0x7FC00000)
_ELEMENT_GUARD = np.uint16(0x7FC0)


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


def added(initial: Array) -> Written:
    """A float32 buffer with known values, for an op that adds (+=) to it."""
    return Written(np.ascontiguousarray(initial, np.float32))


class Device:
    """One backend of a copy of the engine's library that was loaded for one instruction set.

    unit: what rounding to an Element may change, as a share of the number (0 in fp32, where an
    Element is a float32 and holds all that float32 holds).
    """

    def __init__(self, isa: str, precision: str, folder: Path) -> None:
        self.ffi = _library.ffi
        self.precision = precision
        self.unit = bfloat16.UNIT if precision == "bf16" else 0.0
        # The instruction set is chosen once per loaded library, so each gets a copy of its own.
        path = shutil.copy(_library.library_path(), folder / f"engine_{isa}_{precision}.so")
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
        self._check(self.library.mg_backend_create(b"cpu", precision.encode(), handle))
        self._backend = handle[0]
        element_bytes = self.library.mg_backend_element_bytes(self._backend)
        assert element_bytes == (2 if precision == "bf16" else 4)

    def close(self) -> None:
        """Free the backend."""
        self.library.mg_backend_free(self._backend)

    def rounded(self, values: Array) -> Array:
        """float32 values as they are in an Element, or in a weight that enters a product."""
        values = np.asarray(values, np.float32)
        return bfloat16.rounded(values) if self.precision == "bf16" else values

    def opaque(self, op: str, *sizes: int) -> Written:
        """A buffer as large as mg_op_<op>(backend, *sizes) says, in the backend's own layout.

        It is full of NaN in the backend's precision; its values are passed on as they are.
        """
        size = int(getattr(self.library, f"mg_op_{op}")(self._backend, *sizes))
        nan = _ELEMENT_GUARD if self.precision == "bf16" else _GUARD
        return Written(np.resize(nan.reshape(1).view(np.uint8), size))

    def run(self, op: str, *arguments: Any) -> tuple[Array, ...]:
        """Call mg_op_<op>(backend, *arguments) and return what the Written buffers hold, in order.

        Arrays are inputs; numbers, None and cffi pointers are passed on. A Written given twice
        is one buffer. A float32 array where the op takes void* is converted to Elements, which
        must not change it, and comes back as float32.

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

    def _run_once(self, op: str, arguments: tuple[Any, ...]) -> tuple[Array, ...]:
        function = getattr(self.library, f"mg_op_{op}")
        takes = self.ffi.typeof(function).args[1:]
        buffers: dict[int, _Guarded] = {}
        try:
            passed = []
            for argument, kind in zip(arguments, takes, strict=True):
                if isinstance(argument, np.ndarray | Written):
                    if id(argument) not in buffers:
                        elements = kind is self.ffi.typeof("void*")
                        buffers[id(argument)] = _Guarded(self, argument, elements)
                    passed.append(self.ffi.cast(kind, buffers[id(argument)].pointer))
                else:
                    passed.append(self.ffi.NULL if argument is None else argument)
            self._check(function(self._backend, *passed))
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

    def __init__(self, device: Device, source: Array | Written, elements: bool) -> None:
        self.written = isinstance(source, Written)
        self.initial = source.initial if isinstance(source, Written) else source
        assert self.initial.dtype in (np.float32, np.int32, np.uint8)
        assert self.initial.flags.c_contiguous
        self.converted = (
            elements and self.initial.dtype == np.float32 and device.precision == "bf16"
        )
        guard = np.full(_GUARD_LENGTH, _ELEMENT_GUARD if self.converted else _GUARD).view(np.uint8)
        held = bfloat16.to_bits(self.initial) if self.converted else self.initial
        if self.converted:
            back = bfloat16.from_bits(held)
            assert np.array_equal(back, self.initial, equal_nan=True), "Elements are not rounded"
        self.begin, self.end = guard.nbytes, guard.nbytes + held.nbytes
        self.content = np.concatenate([guard, held.reshape(-1).view(np.uint8), guard])
        self.device = device
        memory = device.ffi.new("void**")
        size = self.content.nbytes
        device._check(device.library.mg_backend_allocate(device._backend, size, memory))
        self.memory = memory[0]
        device._check(
            device.library.mg_backend_copy_in(
                device._backend, self.memory, device.ffi.from_buffer(self.content), size
            )
        )
        self.pointer = device.ffi.cast("char*", self.memory) + self.begin

    def read(self, name: str) -> Array:
        """What the array holds now; the guards, and an input altogether, must be as they were."""
        content = np.empty_like(self.content)
        self.device._check(
            self.device.library.mg_backend_copy_out(
                self.device._backend,
                self.device.ffi.from_buffer(content),
                self.memory,
                content.nbytes,
            )
        )
        same = content == self.content
        assert same[: self.begin].all(), f"{name}: written before its begin"
        assert same[self.end :].all(), f"{name}: written past its end"
        if not self.written:
            assert same.all(), f"{name}: an input was written"
        held = content[self.begin : self.end]
        values = bfloat16.from_bits(held.view(np.uint16)) if self.converted else held
        return values.view(self.initial.dtype).reshape(self.initial.shape)
