"""A device to run single ops on, through the C API of microgpt_cuda_ops.h, for the op tests.

One Device is one precision of one instruction set of the CPU backend, or of the CUDA backend. An op
runs once for each number of threads, on a GPU twice, and every run must give the same bits. Buffers
lie between guards; what an op must not write is compared before and after.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
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
_ODD_GUARD = 17
# As a GPU's kernels like it best: their vector loads and stores need aligned memory.
_ALIGNED_GUARD = 256
# As a float a NaN, which spreads when it is read; as a token or target far out of range.
_GUARD = np.uint32(0x7FC00000)
_ELEMENT_GUARD = np.uint16(0x7FC0)


@dataclass(frozen=True)
class Kind:
    """What a Device is made of.

    isa: of the CPU backend. On a GPU, buffers are aligned, or lie at odd places; and products take
    bias, GELU and the bias' gradient along, or leave them to kernels of their own.
    """

    backend: str
    precision: str
    isa: str = ""
    aligned: bool = False
    fused: bool = True

    def __str__(self) -> str:
        parts = [self.backend, self.isa, self.precision]
        if self.backend == "cuda":
            parts += ["" if self.aligned else "odd", "" if self.fused else "unfused"]
        return "-".join(part for part in parts if part)


CPUS = [Kind("cpu", precision, isa) for isa in ISAS for precision in PRECISIONS]
GPUS = [
    Kind("cuda", precision, aligned=aligned)
    for precision in PRECISIONS
    for aligned in (True, False)
]
UNFUSED_GPUS = [Kind("cuda", precision, aligned=True, fused=False) for precision in PRECISIONS]


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
    """One backend of the engine's library.

    unit: what rounding to an Element may change, as a share of the number (0 in fp32, where an
    Element is a float32 and holds all that float32 holds).
    """

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.ffi = _library.ffi
        self.kind = kind
        self.precision = kind.precision
        self.unit = bfloat16.UNIT if kind.precision == "bf16" else 0.0
        self.library = self._cpu_library(folder) if kind.isa else _library.lib
        handle = self.ffi.new("mg_backend**")
        names = kind.backend.encode(), kind.precision.encode()
        self._check(self.library.mg_backend_create(*names, handle))
        self._backend = handle[0]
        element_bytes = self.library.mg_backend_element_bytes(self._backend)
        assert element_bytes == (2 if kind.precision == "bf16" else 4)

    def _cpu_library(self, folder: Path) -> Any:
        """The instruction set is chosen once per loaded library, so each gets a copy of its own."""
        isa = self.kind.isa
        path = shutil.copy(_library.library_path(), folder / f"engine_{self.kind}.so")
        before = os.environ.get("MICROGPT_ISA")
        os.environ["MICROGPT_ISA"] = isa
        try:
            library = self.ffi.dlopen(str(path))
            name = self.ffi.new("const char**")
            if library.mg_cpu_isa(name) != library.MG_OK:
                raise OpError(
                    library.MG_ERROR_DEVICE, self.ffi.string(library.mg_last_error()).decode()
                )
        finally:
            if before is None:
                del os.environ["MICROGPT_ISA"]
            else:
                os.environ["MICROGPT_ISA"] = before
        assert self.ffi.string(name[0]).decode() == isa
        return library

    def close(self) -> None:
        """Free the backend."""
        self.library.mg_backend_free(self._backend)

    def rounded(self, values: Array) -> Array:
        """float32 values as they are in an Element, or in a weight that enters a product."""
        values = np.asarray(values, np.float32)
        return bfloat16.rounded(values) if self.precision == "bf16" else values

    def rounded_bias(self, bias: Array) -> Array:
        """A bias as a product adds it whose result is Elements: a GPU's take it as Elements."""
        return self.rounded(bias) if self.kind.backend == "cuda" else bias

    def rounds_between(self, columns: int) -> bool:
        """Whether GELU's gradient is multiplied into a product's result after that was rounded.

        On a GPU, where cuBLASLt doesn't do both: it wants aligned rows that are whole groups of 8.
        """
        fused = self.kind.fused and self.kind.aligned and columns % 8 == 0
        return self.kind.backend == "cuda" and not fused

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
            AssertionError: a guard or an input was changed, or the bits vary from run to run.
        """
        first: tuple[Array, ...] = ()
        for run in self._runs():
            results = self._run_once(op, arguments)
            first = first or results
            for number, (expected, result) in enumerate(zip(first, results, strict=True)):
                assert expected.tobytes() == result.tobytes(), (
                    f"{op}: output {number} has other bits {run} than at first"
                )
        return first

    def _runs(self) -> Iterator[str]:
        """Once for each number of threads; on a GPU, whose blocks run in any order, twice."""
        if self.kind.backend == "cuda":
            self.library.mg_set_fused_epilogues(self.kind.fused)
            yield from ("in the first run", "in the second run")
            return
        for threads in THREAD_COUNTS:
            self._check(self.library.mg_set_num_threads(threads))
            yield f"with {threads} threads"

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
        number = _ELEMENT_GUARD if self.converted else _GUARD
        length = _ALIGNED_GUARD // number.nbytes if device.kind.aligned else _ODD_GUARD
        guard = np.full(length, number).view(np.uint8)
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
