"""The device fixture: every op test runs for each instruction set and precision, and on a GPU.

The CUDA backend's cases are marked `gpu` and are there with `-m gpu` alone; they run where the
library can use a GPU, a simulated one included (test_cuda_simulated.py). Of the CPU there are the
cases of what it has: tests/test_precision.py skips the others by name, one skip instead of
thousands, and says that both precisions must be there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from andrea import _library
from gpu import require_gpu
from ops.device import CPUS, GPUS, UNFUSED_GPUS, Device, Kind, OpError

# Their ops are products with something around them.
UNFUSED_TOO = ("ops/test_linear.py", "ops/test_gelu.py", "ops/test_rounding.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" not in metafunc.fixturenames:
        return
    # Thousands of cases that would be left out or skipped take long to collect.
    if metafunc.config.getoption("markexpr") == "gpu":
        is_unfused = metafunc.definition.path.as_posix().endswith(UNFUSED_TOO)
        kinds = [*GPUS, *UNFUSED_GPUS] if is_unfused else GPUS
    else:
        available = _library.available_instruction_sets()
        kinds = [kind for kind in CPUS if kind.isa in available]
    on_gpu = [pytest.mark.gpu]
    metafunc.parametrize(
        "device",
        [pytest.param(kind, id=str(kind), marks=[] if kind.isa else on_gpu) for kind in kinds],
        indirect=True,
        scope="session",
    )


@pytest.fixture(scope="session")
def device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Device]:
    kind: Kind = request.param
    if kind.backend == "cuda":
        require_gpu()
    try:
        device = Device(kind, tmp_path_factory.mktemp("engine"))
    except OpError as error:
        # A GPU that can be used has both precisions: what is missing there is a failure.
        if error.status != _library.lib.MG_ERROR_DEVICE or kind.backend == "cuda":
            raise
        pytest.skip(f"no device {kind}: {error}")
    yield device
    device.close()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(40)
