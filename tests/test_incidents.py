"""The flight recorder: what a bad step leaves on the disk, and that recording changes nothing."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.errors import RunError
from andrea.runs.incident_file import Incident, read_incident
from andrea.runs.incidents import incident_paths, pinned_checkpoints, record_incident
from andrea.runs.store import step_of_name
from andrea.training import TrainState, guards, train
from andrea.training.measure import Measurement, Size, measure, size_of
from andrea.training.step import StepWork
from gpu import require_gpu
from small_runs import small_config, small_data, small_model, small_run, state_bytes

CONFIG = small_config(accumulate=2)


def trained(steps: int = 3, **sizes: int) -> andrea.GPT:
    model = small_model(**sizes)
    for _ in train(model, small_data(), dataclasses.replace(CONFIG, steps=steps)):
        pass
    return model


def batches(model: andrea.GPT, step: int = 3) -> list[Any]:
    return StepWork(model, small_data().train, CONFIG).batches(step)


def norm_of(array: Any) -> float:
    return float(np.linalg.norm(np.asarray(array, dtype=np.float64)))


# ---- measuring


def test_sizes() -> None:
    values = np.arange(-3, 2_499_999, dtype=np.float32).reshape(3, -1)
    assert size_of(values).norm == pytest.approx(norm_of(values), rel=1e-12)
    assert size_of(np.array([3, np.nan, -4, np.inf, -np.inf], np.float32)) == Size(5.0, 3)
    assert size_of(np.full((2, 2), 1e38, np.float32)).norm == pytest.approx(2e38)
    # bfloat16 by its bits: 1.0, 2.0, NaN, infinity.
    assert size_of(np.array([0x3F80, 0x4000, 0x7FC0, 0x7F80], np.uint16)) == Size(math.sqrt(5), 2)


def test_a_measurement_is_of_the_step_and_changes_nothing() -> None:
    model = trained()
    before = state_bytes(model)
    found = measure(model, batches(model))
    assert state_bytes(model) == before
    assert model.step_count == 3
    assert not any(gradient.any() for gradient in model.gradients().values())

    assert found.first_not_finite is None
    for kind, tensors in (
        ("parameters", model.parameters()),
        ("first_moments", model.first_moments()),
        ("second_moments", model.second_moments()),
    ):
        sizes = getattr(found, kind)
        assert list(sizes) == list(tensors)
        for name, tensor in tensors.items():
            assert sizes[name] == Size(pytest.approx(norm_of(tensor), rel=1e-12), 0), name

    squares: dict[str, float] = {}
    losses = []
    for inputs, targets in batches(model):
        losses.append(model.forward(inputs, targets))
        for name, array in model.activations().items():
            squares[name] = squares.get(name, 0.0) + norm_of(array) ** 2
        model.backward(0.5)
    assert found.losses == tuple(losses)
    assert list(found.activations) == list(squares)
    for name, square in squares.items():
        assert found.activations[name].norm == pytest.approx(math.sqrt(square), rel=1e-12), name
    assert list(found.gradients) == list(model.gradients())[::-1]
    for name, gradient in model.gradients().items():
        assert found.gradients[name].norm == pytest.approx(norm_of(gradient), rel=1e-12), name
    total = math.sqrt(math.fsum(size.norm**2 for size in found.gradients.values()))
    assert model.step(0.0) == pytest.approx(total, rel=1e-6)


def test_bfloat16_activations_are_measured() -> None:
    model = andrea.GPT(small_model().config, device="cpu", precision="bf16")
    exact = andrea.GPT(small_model().config, device="cpu", precision="fp32")
    found, wanted = measure(model, batches(model)), measure(exact, batches(exact))
    for name, size in wanted.activations.items():
        assert found.activations[name] == Size(pytest.approx(size.norm, rel=0.01), 0), name


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_is_measured_as_the_cpu_is(tmp_path: Path, precision: str) -> None:
    require_gpu()
    config = small_model().config
    there, here = (
        andrea.GPT(config, device=device, precision=precision) for device in ("cuda", "cpu")
    )
    found, wanted = measure(there, batches(there)), measure(here, batches(here))
    assert found.parameters == wanted.parameters
    tolerance = 1e-5 if precision == "fp32" else 0.02
    # Without CuPy there is no way to a GPU's activations; all else can be read.
    assert list(found.activations) in ([], list(wanted.activations))
    for kind in ("gradients", "activations"):
        sizes = getattr(wanted, kind)
        for name, size in getattr(found, kind).items():
            expected = Size(pytest.approx(sizes[name].norm, rel=tolerance, abs=1e-4), 0)
            assert size == expected, f"{kind} {name}"
    assert measure(there, batches(there)) == found
    recorded = read_incident(record(tmp_path, there))
    assert (recorded.device, recorded.isa) == ("cuda", "")
    assert recorded.measured == found


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        ("parameters", "h.1.ln_1.bias", np.nan, "parameters h.1.ln_1.bias"),
        ("second_moments", "wte.weight", np.inf, "second_moments wte.weight"),
        # Finite itself, but not what comes of it.
        ("parameters", "h.1.mlp.c_fc.bias", 3e38, "activations ln_f.input"),
    ],
)
def test_the_first_tensor_that_is_not_finite_is_named(
    kind: str, name: str, value: float, expected: str
) -> None:
    model = trained()
    values = model.read(kind)
    values[name].reshape(-1)[:2] = value
    if expected.startswith("activations"):
        values["h.1.mlp.c_proj.weight"][:] = 1e9
    model.write(values, kind)
    found = measure(model, batches(model))
    assert found.first_not_finite == expected
    sizes = getattr(found, expected.split()[0])
    assert sizes[expected.split()[1]].not_finite > 0
    assert not any(gradient.any() for gradient in model.gradients().values())


# ---- the file


def record(folder: Path, model: andrea.GPT, **changes: Any) -> Path:
    settings: dict[str, Any] = {
        "model": model,
        "config": CONFIG,
        "state": TrainState(step=4, recent_losses=[2.5, 2.25], elapsed=1.5),
        "record": {"sources": ["book.txt"], "documents": 3},
        "batches": batches(model),
        "learning_rate": 0.01,
        "loss": 2.0,
        "norm": 3.0,
        "skipped": False,
        "outlier": 9.5,
    }
    return record_incident(folder, **{**settings, **changes})


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    model = trained()
    before = state_bytes(model)
    path = record(tmp_path, model)
    assert path == tmp_path / "incidents" / "step-00000004.npz"
    assert state_bytes(model) == before and model.step_count == 3
    assert [path.name for path in path.parent.iterdir()] == [path.name]
    found = read_incident(path)
    assert (found.step, found.reason, found.z, found.updated) == (4, "outlier", 9.5, True)
    assert (found.loss, found.norm, found.learning_rate) == (2.0, 3.0, 0.01)
    assert found.model == model.config and found.config == CONFIG
    assert found.state == TrainState(step=4, recent_losses=[2.5, 2.25], elapsed=1.5)
    assert (found.device, found.precision, found.isa) == ("cpu", "fp32", andrea.instruction_set())
    assert found.record == {"sources": ["book.txt"], "documents": 3}
    assert found.measured == measure(model, batches(model))
    assert list(found.measured.activations) == list(measure(model, batches(model)).activations)
    for array, index in ((found.inputs, 0), (found.targets, 1)):
        assert np.array_equal(array, np.stack([batch[index] for batch in batches(model)]))


def test_numbers_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    model = trained()
    model.parameters()["ln_f.bias"][:] = np.nan
    model.refresh()
    changes = {"loss": math.nan, "norm": -math.inf, "skipped": True, "outlier": None}
    found = read_incident(record(tmp_path, model, **changes))
    assert math.isnan(found.loss) and found.norm == -math.inf
    assert (found.reason, found.z, found.updated) == ("not finite", None, False)
    assert all(math.isnan(loss) for loss in found.measured.losses)
    assert found.measured.first_not_finite == "parameters ln_f.bias"


def same(one: Incident, other: Incident) -> bool:
    fields = [field.name for field in dataclasses.fields(Incident)]
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        if name in ("inputs", "targets")
        else getattr(one, name) == getattr(other, name)
        for name in fields
    )


def test_damage_is_refused_in_one_line(tmp_path: Path) -> None:
    path = record(tmp_path, trained())
    good, content = read_incident(path), path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for n in range(400):
        damaged = bytearray(content)
        place = int(rng.integers(len(content)))
        if n % 4 == 0:
            del damaged[place:]
        elif n % 4 == 1:
            del damaged[place : place + int(rng.integers(1, 100))]
        else:
            damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            assert same(read_incident(path), good)  # in a part that says nothing, such as a date
        except RunError as error:
            assert "\n" not in str(error) and str(path) in str(error)
            refused += 1
    assert refused > 350


@pytest.mark.parametrize("content", [b"", b"PK", b"not an archive" * 100])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "step-00000001.npz"
    with pytest.raises(RunError, match="isn't there"):
        read_incident(path)
    path.write_bytes(content)
    with pytest.raises(RunError, match="damaged or no incident"):
        read_incident(path)


def test_other_batches_than_the_models_are_refused(tmp_path: Path) -> None:
    model = trained()
    inputs, targets = batches(model)[0]
    for wrong in ((inputs + 100, targets), (inputs, targets - 200)):
        with pytest.raises(RunError, match="not for its model"):
            read_incident(_rewritten(record(tmp_path, model), *wrong))


def _rewritten(path: Path, inputs: Any, targets: Any) -> Path:
    """The file with other batches and a checksum that fits them."""
    from andrea.runs import incident_file

    incident = dataclasses.replace(read_incident(path), inputs=inputs[None], targets=targets[None])
    path.write_bytes(incident_file.encode(incident))
    return path


def test_the_first_and_the_last_ten_are_kept(tmp_path: Path) -> None:
    model = trained()
    for step in range(1, 26):
        record(tmp_path, model, state=TrainState(step=step))
    steps = [read_incident(path).step for path in incident_paths(tmp_path)]
    assert steps == [*range(1, 11), *range(16, 26)]


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    model = trained()
    before = state_bytes(model)
    (tmp_path / "incidents").write_text("a file in the way")
    with pytest.raises(RunError, match=r"cannot write .*incidents"):
        record(tmp_path, model)
    assert state_bytes(model) == before
    assert not any(gradient.any() for gradient in model.gradients().values())
    assert incident_paths(tmp_path) == []


def test_what_the_first_and_last_are_replayed_from_is_pinned(tmp_path: Path) -> None:
    paths = [tmp_path / f"step-{step:08}.safetensors" for step in (0, 10, 20, 30, 40)]
    assert pinned_checkpoints(tmp_path, paths) == set()
    (tmp_path / "incidents").mkdir()
    for step in (11, 25, 40):
        (tmp_path / "incidents" / f"step-{step:08}.npz").touch()
    (tmp_path / "incidents" / "step-00000099.npz.tmp").touch()
    assert pinned_checkpoints(tmp_path, paths) == {paths[1], paths[3]}
    assert pinned_checkpoints(tmp_path, paths[3:]) == {paths[3]}


# ---- in training


def test_training_records_what_it_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(steps=40, save_every=5, keep_last=1, outlier_z=8.0)
    plain = small_model()
    for _ in train(plain, small_data(), config):
        pass
    real = guards.limits

    def limits(state: TrainState, config: Any) -> guards.Limits:
        return guards.Limits(1e-3, math.inf) if state.step in (22, 32) else real(state, config)

    monkeypatch.setattr(guards, "limits", limits)
    model, state = small_model(), TrainState()
    with small_run(tmp_path, config, model) as run:
        for _ in train(model, small_data(), config, run=run, state=state):
            run.finish_save()  # or the next one might come a step or two late
    assert state.outliers == 2
    assert state_bytes(model) == state_bytes(plain)  # recording is no part of training
    found = [read_incident(path) for path in incident_paths(tmp_path)]
    assert [incident.step for incident in found] == [23, 33]
    assert all(incident.updated and incident.reason == "outlier" for incident in found)
    left = sorted(step_of_name(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert left == [20, 30, 40]  # those that the two are replayed from, and the newest


def test_a_loss_that_is_not_finite_is_recorded(tmp_path: Path) -> None:
    config = small_config(steps=12, max_skipped=3)
    model = small_model()
    diverges = pytest.raises(RunError, match="not finite in 3 steps in a row")
    with small_run(tmp_path, config, model) as run, diverges:
        for report in train(model, small_data(), config, run=run):
            if report.step == 4:
                model.parameters()["h.0.attn.c_attn.weight"][3, 2] = np.inf
                model.refresh()
    found = [read_incident(path) for path in incident_paths(tmp_path)]
    assert [incident.step for incident in found] == [5, 6, 7]
    for incident in found:
        assert incident.reason == "not finite" and not incident.updated
        assert not math.isfinite(incident.norm)
        assert incident.measured.first_not_finite == "parameters h.0.attn.c_attn.weight"
        assert isinstance(incident.measured, Measurement)
