"""Whether device cuda can be used here, and a skip that says why not.

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
        pytest.skip(f"no device cuda: {info.reason}")
