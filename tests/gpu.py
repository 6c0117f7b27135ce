"""Whether device cuda can be used here, and a skip that says why not.

Tests marked `gpu` run with whatever GPU the loaded library can use: a real one, or the simulated
one of a library that was built on native/sim.
"""

from __future__ import annotations

from typing import Any

import pytest


def cuda_info() -> Any:
    """The library's mg_cuda_info."""
    from andrea import _library

    info = _library.ffi.new("mg_cuda_info *")
    _library.lib.mg_get_cuda_info(info)
    return info


def text(field: Any) -> str:
    """A char array of a struct."""
    from andrea import _library

    return str(_library.ffi.string(field).decode())


def require_gpu() -> None:
    """Skip where the library can't use a GPU."""
    info = cuda_info()
    if not info.usable:
        pytest.skip(f"no device cuda: {text(info.reason)}")


def is_simulated() -> bool:
    """Whether the GPU is one of native/sim."""
    return bool(cuda_info().simulated)
