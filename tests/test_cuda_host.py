"""The CUDA backend's host side: GPUs that a build fits, finding cuBLASLt, staging, recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import andrea
from gpu import require_gpu
from native_build import cxx_compiler, run
from parity_pair import GPUS, Kind, name_of

NATIVE = Path(__file__).resolve().parent.parent / "native"
INCLUDES = [f"-I{NATIVE / name}" for name in ("src", "include", "sim/include")]

ARCHITECTURES = """
#include <cstdio>
#include <cstdlib>
#include "cuda/architectures.h"
int main(int, char** a) {
    std::puts(mg::cuda::runs_on(a[1], atoi(a[2]), atoi(a[3])) ? "yes" : "no");
}
"""

LOADER = """
#include <cstdio>
#include "cuda/create.h"
#include "cuda/cublaslt_loader.h"
#include "error.h"
int main(int, char** a) {
    mg::cuda::set_cublaslt_path(a[1]);
    try {
        std::puts(mg::cuda::cublaslt_version().c_str());
    } catch (const mg::Error& error) {
        std::puts(error.what());
    }
}
"""

# A library with the names of cuBLASLt's functions, of which only the version can be called.
STAND_IN = """
#include "cuda/cublaslt_api.h"
#define FUNCTION(member, name, result, parameters) extern "C" size_t name() { return 130203; }
#if defined(OLD)
FUNCTION(version, cublasLtGetVersion, size_t, ())
#else
MG_CUBLASLT_FUNCTIONS(FUNCTION)
#endif
"""


def compiled(folder: Path, text: str, *options: str | Path) -> Path:
    if not NATIVE.is_dir():
        pytest.skip("no native sources beside the tests")
    source, made = folder / "main.cpp", folder / "made"
    source.write_text(text, "utf-8")
    run(*cxx_compiler(), "-std=c++17", *INCLUDES, source, *options, "-o", made)
    return made


@pytest.fixture(scope="module")
def runs_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("architectures")
    return compiled(folder, ARCHITECTURES, NATIVE / "src/cuda/architectures.cpp")


# CUDA's rules: code runs on its major version from its minor one on; with an "a" on that GPU alone,
# with an "f" on its family; PTX, which "-real" leaves out, on everything newer.
@pytest.mark.parametrize(
    ("built_for", "gpu", "fits"),
    [
        ("80-real;90a-real", "9.0", True),
        ("80-real;90a-real", "8.6", True),
        ("80-real;90a-real", "7.5", False),
        ("80-real;90a-real", "10.0", False),
        ("90a", "10.0", False),
        ("86-real", "8.0", False),
        ("80-real 90-real 100-real 120", "12.1", True),
        ("80-real 90-real 100-real 120", "11.0", False),
        ("80", "9.0", True),
        ("80-virtual", "9.0", True),
        ("90-virtual", "8.0", False),
        ("100f-real", "10.3", True),
        ("100f-real", "11.0", False),
        ("native", "7.0", True),
    ],
)
def test_gpus_that_a_build_runs_on(runs_on: Path, built_for: str, gpu: str, fits: bool) -> None:
    assert run(runs_on, built_for, *gpu.split(".")).strip() == ("yes" if fits else "no")


def test_the_cublaslt_that_is_found(tmp_path: Path) -> None:
    for folder in ("loader", "whole", "old"):
        (tmp_path / folder).mkdir()
    loader = compiled(tmp_path / "loader", LOADER, NATIVE / "src/cuda/cublaslt_loader.cpp", "-ldl")
    whole = compiled(tmp_path / "whole", STAND_IN, "-shared", "-fPIC")
    old = compiled(tmp_path / "old", STAND_IN, "-shared", "-fPIC", "-DOLD")
    assert run(loader, whole).strip() == "13.2.3"
    assert "has no cublasLt" in run(loader, old) and "too old" in run(loader, old)
    told = run(loader, tmp_path / "nowhere.so").strip()
    if "not found" in told:  # else this machine has one of its own, which comes after the path
        assert "\n" not in told and "nowhere.so" in told and "libcublasLt.so.12" in told
    else:
        assert told.split(".")[0] in ("12", "13")


on_gpu = pytest.mark.parametrize("kind", GPUS, ids=name_of)


@pytest.mark.gpu
@on_gpu
def test_more_goes_to_the_gpu_than_is_staged_at_once(kind: Kind) -> None:
    """Weights of 25 MB pass through 16 MB of pinned memory, whose slots are used again."""
    require_gpu()
    config = andrea.ModelConfig(20001, 8, 1, 1, 311)
    weights = andrea.GPT(config, device="cpu", seed=5).read("parameters")
    model = andrea.GPT(config, device=kind.device, precision=kind.precision, seed=5)
    for name, tensor in model.read("parameters").items():
        np.testing.assert_array_equal(tensor, weights[name], err_msg=name)
    turned = {name: tensor[::-1].copy() for name, tensor in weights.items()}
    model.write(turned)
    for name, tensor in model.read("parameters").items():
        np.testing.assert_array_equal(tensor, turned[name], err_msg=name)


@pytest.mark.gpu
@on_gpu
def test_more_shapes_than_are_kept_recorded(kind: Kind) -> None:
    """The first pass of a shape runs as it is, the second is recorded, later ones are replayed."""
    require_gpu()
    config = andrea.ModelConfig(50, 24, 1, 2, 16)
    model = andrea.GPT(config, device=kind.device, precision=kind.precision, seed=2)
    tokens = np.random.default_rng(6).integers(0, 50, (2, 24)).astype(np.int32)
    seen: dict[int, list[float]] = {}
    for lengths in (range(1, 21), range(20, 0, -1), range(10, 21), range(10, 21), range(1, 21)):
        for length in lengths:
            batch = tokens[:, :length].copy()
            seen.setdefault(length, []).append(model.forward(batch, batch))
    for length, losses in seen.items():
        assert len(set(losses)) == 1, f"{length} tokens: {losses}"
    assert len({losses[0] for losses in seen.values()}) == len(seen)
