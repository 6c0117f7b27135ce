"""The file of a bad step: a NumPy archive of its batches and, as JSON, of all else about it."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.config import ModelConfig
from andrea.errors import RunError
from andrea.training import TrainConfig, TrainState
from andrea.training.measure import KINDS, Measurement, Size

from .tensorfile import canonical_json, parse_json

_VERSION = 1
# Of one file; a step's batches take some megabytes at most.
_LARGEST = 1 << 31


@dataclass(frozen=True)
class Incident:
    """A bad step. Numbers that are not finite are as they were.

    step: counted from 1. reason: "not finite" or "outlier". z: of an outlier. loss, norm: as the
    engine told them. state: after the step, as the guards left it. device, precision, isa: where
    it ran. record: the run's, which says where its text is. measured: after the step's update, if
    there was one (`updated`). inputs, targets: int32, (micro-batches, B, T).
    """

    step: int
    reason: str
    z: float | None
    loss: float
    norm: float
    learning_rate: float
    updated: bool
    model: ModelConfig
    config: TrainConfig
    state: TrainState
    device: str
    precision: str
    isa: str
    record: Mapping[str, Any]
    measured: Measurement
    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]


def encode(incident: Incident) -> bytes:
    """The content of the incident's file."""
    arrays = {"inputs": incident.inputs, "targets": incident.targets}
    measured = incident.measured
    facts = {
        "andrea_incident": _VERSION,
        "step": incident.step,
        "reason": incident.reason,
        "z": None if incident.z is None else _number(incident.z),
        "loss": _number(incident.loss),
        "norm": _number(incident.norm),
        "learning_rate": incident.learning_rate,
        "updated": incident.updated,
        "model": incident.model.to_dict(),
        "config": incident.config.to_dict(),
        "state": incident.state.to_dict(timed=True),
        "device": incident.device,
        "precision": incident.precision,
        "isa": incident.isa,
        "record": dict(incident.record),
        "losses": [_number(loss) for loss in measured.losses],
        "first_not_finite": measured.first_not_finite,
        # Lists, for the order of names is that of computation.
        **{
            kind: [[name, *size] for name, size in getattr(measured, kind).items()]
            for kind in KINDS
        },
        "checksum": _checksum(arrays),
    }
    text = np.frombuffer(canonical_json(facts).encode("ascii"), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, inputs=incident.inputs, targets=incident.targets, metadata=text)
    return file.getvalue()


def _number(value: float) -> float | str:
    """JSON has no numbers that are not finite: "nan", "inf" and "-inf" stand for them."""
    return value if math.isfinite(value) else str(value)


def _checksum(arrays: Mapping[str, NDArray[np.int32]]) -> str:
    checksum = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        checksum.update(f"{name} {array.shape}".encode("ascii"))
        checksum.update(np.ascontiguousarray(array, dtype="<i4").tobytes())
    return checksum.hexdigest()


def read_incident(path: Path) -> Incident:
    """Read the file of a bad step.

    Raises:
        RunError: it isn't there, cannot be read, or is damaged.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        return _decode(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} isn't there") from None
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    except Exception as error:
        # Whatever a damaged archive, header or JSON text raises, of four libraries.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"{path} is damaged or no incident: {reason:.120}") from error


def _decode(data: bytes) -> Incident:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("a part of it is compressed")
        # Whole members first, for only then their checksums are looked at.
        members = {name: archive.read(name) for name in archive.namelist()}
    inputs = _array(members["inputs.npy"], np.int32)
    targets = _array(members["targets.npy"], np.int32)
    facts = parse_json(_array(members["metadata.npy"], np.uint8).tobytes())
    if facts["andrea_incident"] != _VERSION:
        raise ValueError(f"its version is {facts['andrea_incident']!r:.20}, not {_VERSION}")
    if facts["checksum"] != _checksum({"inputs": inputs, "targets": targets}):
        raise ValueError("its checksum does not match its content")
    model = ModelConfig.from_dict(facts["model"])
    _check_batches(inputs, targets, model)
    kinds = {
        kind: {str(name): _size(norm, bad) for name, norm, bad in facts[kind]} for kind in KINDS
    }
    first_bad = facts["first_not_finite"]
    step, rate = facts["step"], facts["learning_rate"]
    if type(step) is not int or step < 1 or type(rate) not in (int, float):
        raise ValueError(f"its step is {step!r:.20}, its learning rate {rate!r:.20}")
    return Incident(
        step=step,
        reason=str(facts["reason"]),
        z=None if facts["z"] is None else float(facts["z"]),
        loss=float(facts["loss"]),
        norm=float(facts["norm"]),
        learning_rate=float(rate),
        updated=bool(facts["updated"]),
        model=model,
        config=TrainConfig.from_dict(facts["config"]),
        state=TrainState.from_dict(facts["state"]),
        device=str(facts["device"]),
        precision=str(facts["precision"]),
        isa=str(facts["isa"]),
        record=dict(facts["record"]),
        measured=Measurement(
            **kinds,
            losses=tuple(float(loss) for loss in facts["losses"]),
            first_not_finite=None if first_bad is None else str(first_bad),
        ),
        inputs=inputs,
        targets=targets,
    )


def _size(norm: Any, not_finite: Any) -> Size:
    if type(norm) not in (int, float) or type(not_finite) is not int or norm < 0 or not_finite < 0:
        raise ValueError(f"a tensor's size is {norm!r:.20}, {not_finite!r:.20}")
    return Size(float(norm), not_finite)


def _array(data: bytes, dtype: type[np.generic]) -> NDArray[Any]:
    array = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(dtype):
        raise ValueError("an array is of another type")
    return array


def _check_batches(
    inputs: NDArray[np.int32], targets: NDArray[np.int32], model: ModelConfig
) -> None:
    if inputs.ndim != 3 or inputs.shape != targets.shape or inputs.size == 0:
        raise ValueError(f"its batches have shapes {inputs.shape} and {targets.shape}")
    lowest = min(int(inputs.min()), int(targets.min()))
    highest = max(int(inputs.max()), int(targets.max()))
    if lowest < 0 or highest >= model.vocab_size or inputs.shape[2] > model.block_size:
        raise ValueError("its batches are not for its model")
