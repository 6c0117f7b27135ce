"""The device fixture: every op test runs for each instruction set and precision there is.

What isn't there is skipped by its name. Both precisions must be there: tests/test_precision.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from andrea import _library
from ops.device import ISAS, PRECISIONS, Device, OpError

DEVICES = [(isa, precision) for isa in ISAS for precision in PRECISIONS]


@pytest.fixture(scope="session", params=DEVICES, ids=[f"cpu-{i}-{p}" for i, p in DEVICES])
def device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Device]:
    isa, precision = request.param
    available = _library.available_instruction_sets()
    if isa not in available:
        pytest.skip(f"no device cpu-{isa}: this library and CPU have {', '.join(available)}")
    try:
        device = Device(isa, precision, tmp_path_factory.mktemp("engine"))
    except OpError as error:
        if error.status != _library.lib.MG_ERROR_DEVICE:
            raise
        pytest.skip(f"no device cpu-{isa}-{precision}: {error}")
    yield device
    device.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(40)
