"""Starts the fresh process of each measurement, with the environment that its engine reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disturbance import Measurement

_CHILD = Path(__file__).with_name("child.py")

# The same instruction set in the words of oneDNN, of PyTorch's own kernels (and its compiler), and
# of MKL.
_TORCH_INSTRUCTIONS = {
    "generic": ("SSE41", "default", "SSE4_2"),
    "avx2": ("AVX2", "avx2", "AVX2"),
    "avx512": ("AVX512_CORE", "avx512", "AVX512"),
    "avx512bf16": ("AVX512_CORE_BF16", "avx512", "AVX512"),
}
INSTRUCTION_SETS = tuple(_TORCH_INSTRUCTIONS)


class ChildError(RuntimeError):
    """A measuring process failed; the text is the last line it wrote."""


@dataclass(frozen=True)
class Engine:
    """Something that trains or decodes: kind "andrea", "torch" or "llama.cpp".

    alone: on 1 thread, whatever the run's number is.
    """

    kind: str
    precision: str
    mode: str = ""
    alone: bool = False

    @property
    def name(self) -> str:
        parts = (self.kind, self.precision, self.mode, "1 thread" if self.alone else "")
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Launcher:
    """How processes are started: the peers' Python, instruction set, what PyTorch preloads."""

    peer_python: str
    isa: str | None = None
    torch_preload: str | None = None

    def environment(self, kind: str, threads: int | None) -> dict[str, str]:
        """The variables of a process that measures that kind of engine."""
        variables = dict(os.environ)
        if kind == "torch":
            if threads is not None:
                variables["OMP_NUM_THREADS"] = variables["MKL_NUM_THREADS"] = str(threads)
            if self.isa is not None:
                onednn, aten, mkl = _TORCH_INSTRUCTIONS[self.isa]
                variables["ONEDNN_MAX_CPU_ISA"] = onednn
                variables["ATEN_CPU_CAPABILITY"] = aten
                variables["MKL_ENABLE_INSTRUCTIONS"] = mkl
            if self.torch_preload is not None:
                variables["LD_PRELOAD"] = self.torch_preload
        elif kind == "andrea" and self.isa is not None:
            variables["MICROGPT_ISA"] = self.isa
        return variables

    def run(self, kind: str, request: dict[str, Any], threads: int | None = None) -> Measurement:
        """What child.py answers to the request.

        Raises:
            ChildError: the process failed.
        """
        python = sys.executable if kind == "andrea" else self.peer_python
        request = {**request, "engine": kind, "started": time.monotonic()}
        done = subprocess.run(
            [python, str(_CHILD), json.dumps(request)],
            capture_output=True,
            text=True,
            env=self.environment(kind, threads),
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ChildError(lines[-1])
        result: Measurement = json.loads(done.stdout.splitlines()[-1])
        return result
