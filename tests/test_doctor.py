"""`andrea doctor`: its report, its verdicts, and that it sees kernels that count wrong."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import andrea
from andrea import _library, doctor, selfcheck
from andrea.cli import main
from cli_process import Shell
from reference import gpt as reference

NO_CUDA = _library.CudaInfo(
    built=False,
    usable=False,
    simulated=False,
    driver_version=0,
    runtime_version=0,
    device_count=0,
    compute_major=0,
    compute_minor=0,
    memory_total=0,
    memory_free=0,
    device_name="",
    architectures="",
    cublaslt="",
    reason="this build has no CUDA",
)
BUILT = dataclasses.replace(
    NO_CUDA,
    built=True,
    runtime_version=13000,
    architectures="80 90a",
    reason="no NVIDIA driver was found",
)
WITH_GPU = dataclasses.replace(
    BUILT,
    usable=True,
    driver_version=13010,
    device_count=2,
    compute_major=9,
    memory_total=150 * 10**9,
    memory_free=149 * 10**9,
    device_name="NVIDIA H200",
    cublaslt="13.1.0",
    reason="",
)
BROKEN = dataclasses.replace(
    WITH_GPU, usable=False, reason="the driver is for CUDA 12.2, this build for 13.0"
)


def findings(patch: pytest.MonkeyPatch, info: Any) -> dict[str, doctor.Finding]:
    """What the doctor finds on a machine with these GPUs; their numbers are taken for right."""
    real = selfcheck.compare

    def compare(device: str, precision: str) -> Any:
        return real(device, precision) if device == "cpu" else ("ok", f"{device} was compared")

    patch.setattr(_library, "cuda_info", lambda: info)
    patch.setattr(selfcheck, "compare", compare)
    return {finding.name: finding for finding in doctor.examine([("folder", Path.cwd())])}


def verdicts(found: dict[str, doctor.Finding]) -> set[str]:
    return {finding.verdict for finding in found.values()}


def test_a_machine_without_a_gpu_is_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, NO_CUDA)
    assert found["cuda"].verdict == "missing" and "no CUDA" in found["cuda"].text
    assert "problem" not in verdicts(found) and "driver" not in found
    assert found["cpu fp32"].verdict == found["cpu bf16"].verdict == "ok"
    assert f"ABI {_library.abi_version()}" in found["engine"].text
    assert found["kernels"].text.startswith(_library.instruction_set())
    found = findings(monkeypatch, BUILT)
    assert "80 90a" in found["cuda"].text and "13.0" in found["cuda"].text
    assert found["driver"].verdict == "missing" and "problem" not in verdicts(found)


def test_a_gpu_is_described_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, WITH_GPU)
    assert found["driver"].text == "for CUDA 13.1"
    for part in ("2, the first is NVIDIA H200", "9.0", "150 GB of memory", "149 GB free"):
        assert part in found["gpus"].text
    assert found["cublaslt"].text == "13.1.0" and found["cublaslt"].verdict == "ok"
    for device in ("cuda", "cuda:1"):
        for precision in ("fp32", "bf16"):
            assert found[f"{device} {precision}"].verdict == "ok"
    cupy = found["cupy"]
    assert cupy.verdict == "ok" or 'pip install "andrea[cuda]"' in cupy.text
    old = dataclasses.replace(WITH_GPU, compute_major=7, device_count=1)
    assert "cuda bf16" not in findings(monkeypatch, old)


def test_a_gpu_that_cannot_be_used_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(monkeypatch, BROKEN)
    assert found["gpus"].verdict == "problem" and BROKEN.reason in found["gpus"].text
    assert "cuda fp32" not in found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_wrong_numbers_are_a_problem(monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    assert selfcheck.compare("cpu", precision)[0] == "ok"
    real = andrea.GPT.logits

    def wrong(model: andrea.GPT, tokens: Any) -> Any:
        logits = real(model, tokens)
        logits[0, 0] *= 1.1
        return logits

    monkeypatch.setattr(andrea.GPT, "logits", wrong)
    verdict, text = selfcheck.compare("cpu", precision)
    assert verdict == "problem" and "\n" not in text


def test_a_device_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: str, precision: str) -> Any:
        raise andrea.DeviceError("the device is\nlost")

    monkeypatch.setattr(selfcheck, "compare", fail)
    found = {finding.name: finding for finding in doctor.examine([])}
    assert (found["cpu fp32"].verdict, found["cpu fp32"].text) == ("problem", "the device is lost")


def test_a_full_disk_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from types import SimpleNamespace

    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    monkeypatch.setattr(selfcheck, "compare", lambda device, precision: ("ok", ""))
    missing = tmp_path / "not" / "made" / "yet"
    found = {finding.name: finding for finding in doctor.examine([("cache", missing)])}
    assert found["cache"].verdict == "problem" and str(missing) in found["cache"].text


def test_what_the_cache_holds_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from andrea.data import prepare

    monkeypatch.setattr(selfcheck, "compare", lambda device, precision: ("ok", ""))
    (tmp_path / "book.txt").write_text("All work and no play makes Jack a dull boy. " * 100)
    prepare([tmp_path / "book.txt"], cache_dir=tmp_path / "cache", tokenizer="byte")
    folders = [("folder", tmp_path), ("cache", tmp_path / "cache")]
    found = {finding.name: finding.text for finding in doctor.examine(folders)}
    assert re.search(r"; prepared texts there: 1, 9\.\d KB of at most 20\.0 GB$", found["cache"])
    assert "prepared" not in found["folder"]


def test_the_arithmetic_beside_the_engine_is_the_reference() -> None:
    config = andrea.ModelConfig(vocab_size=13, block_size=7, n_layer=2, n_head=2, n_embd=8)
    random = np.random.default_rng(3)
    model = andrea.GPT(config, device="cpu", precision="fp32")
    weights = {name: random.normal(size=v.shape).astype("f4") for name, v in model.read().items()}
    tokens = random.integers(13, size=(2, 5), dtype=np.int32)
    ours = selfcheck.numpy_logits(config, weights, tokens)
    doubles = {name: values.astype(np.float64) for name, values in weights.items()}
    theirs = reference.logits(doubles, config, tokens)
    assert np.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


# ---- the command


def test_the_command_tells_each_finding_in_columns(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    for columns in ("80", "200"):
        lines = shell.succeed("doctor", COLUMNS=columns).splitlines()
        # A path is whole, to be copied, wherever the library lies.
        assert all(len(line) <= int(columns) or " " not in line.strip() for line in lines)
        assert lines[-1] == "Everything that is here works."
        assert not any("\x1b" in line for line in lines)
        assert any(re.match(r"cpu fp32 +ok +logits of a 2-layer model", line) for line in lines)
    report = json.loads(shell.succeed("doctor", "--json"))
    assert report["healthy"] is True
    names = [finding["name"] for finding in report["findings"]]
    assert names[:4] == ["andrea", "python", "numpy", "engine"] and "cpu bf16" in names
    assert {"folder", "cache", "memory", "cuda"} <= set(names)


def test_a_problem_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "compare", lambda device, precision: ("problem", "wrong"))
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "cpu fp32     problem  wrong" in result.output
    assert "problems: cpu fp32, cpu bf16" in result.output
    assert json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)["healthy"] is False


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "compare", lambda device, precision: ("ok", "fine"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32mok" in CliRunner().invoke(main, ["doctor"], color=True).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in CliRunner().invoke(main, ["doctor"], color=True).output
