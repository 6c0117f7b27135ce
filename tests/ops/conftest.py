"""The device fixture: every op test runs for each instruction set, or is skipped by its name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ops.device import ISAS, Device, OpError


@pytest.fixture(scope="session", params=ISAS, ids=[f"cpu-{isa}" for isa in ISAS])
def device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Device]:
    try:
        device = Device(request.param, tmp_path_factory.mktemp("engine"))
    except OpError as error:
        pytest.skip(f"no device cpu-{request.param}: {error}")
    yield device
    device.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(40)
