"""Whether device cuda can be used here, and a skip that says why not. `pytest -m gpu` shows a GPU
to the tests, which is hidden from them otherwise (conftest.py).

Tests marked `gpu` run with whatever GPU the loaded library can use: a real one, or the simulated
one of a library that was built on native/sim.
"""

from __future__ import annotations

import pytest


def require_gpu() -> None:
    """Skip where the library can't use a GPU."""
    from andrea._library import cuda_info

    info = cuda_info()
    if not info.usable:
        hint = "; a GPU is for pytest -m gpu" if info.driver_version else ""
        pytest.skip(f"no device cuda: {info.reason}{hint}")
