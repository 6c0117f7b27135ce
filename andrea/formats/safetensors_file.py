"""Safetensors files of other programs: any float type, in one file or in shards with an index.

Checkpoints of Andrea's own are read by runs/tensorfile.py, which knows their checksum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from andrea.closing import Closing
from andrea.errors import CheckpointError
from andrea.words import size

from .weights import LazyTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Name in the file -> the type of NumPy that holds its bits: of parameters, and of buffers, too.
_FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}
_WHOLE = {"I64": "<i8", "U64": "<u8", "I32": "<i4", "U32": "<u4", "I16": "<i2", "U16": "<u2"}
_TYPES = {**_FLOATS, **_WHOLE, "I8": "i1", "U8": "u1", "BOOL": "u1"}
_LARGEST_JSON = 64 << 20


@dataclass(frozen=True)
class _Place:
    dtype: str
    shape: tuple[int, ...]
    offset: int


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers whose upper halves these are; exact."""
    wide: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CheckpointError: it is missing, too large to be meant, no JSON or no object.
    """
    try:
        length = path.stat().st_size
        if length > _LARGEST_JSON:
            raise CheckpointError(f"{path} is {size(length)}: too large for what it should be")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is no JSON: {error!s:.100}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no named values")
    return value


class SafetensorsFile(Closing):
    """One file, open for reading; its header was checked.

    Raises:
        CheckpointError: the file is missing, truncated or damaged.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        try:
            offset = 8 + int.from_bytes(self._file.read(8), "little")
            self.places: dict[str, _Place] = {}
            with safe_open(path, framework="numpy") as reader:
                for name in reader.offset_keys():
                    piece = reader.get_slice(name)
                    place = _Place(piece.get_dtype(), tuple(piece.get_shape()), offset)
                    self.places[name] = place
                    offset += _bytes_of(path, name, place)
            if offset != os.fstat(self._file.fileno()).st_size:
                raise CheckpointError(f"{path} changed while it was read")
        except BaseException as error:
            self.close()
            if isinstance(error, (SafetensorError, OSError)):
                seen = " ".join(str(error).split())
                raise CheckpointError(f"{path} is truncated or no safetensors: {seen}") from error
            raise

    def tensor(self, name: str) -> LazyTensor:
        """A tensor as float32, read when it is used.

        Raises:
            CheckpointError: it is of another type than floating point.
        """
        dtype = self.places[name].dtype
        if dtype not in _FLOATS:
            raise CheckpointError(
                f"{self.path}: {name!r:.80} is {dtype}; floating point is needed: "
                f"{', '.join(_FLOATS)}"
            )
        return self.buffer(name)

    def buffer(self, name: str) -> LazyTensor:
        """What is no parameter, of any type, as float32."""
        place = self.places[name]
        return LazyTensor(place.shape, partial(self._read, place))

    def _read(self, place: _Place) -> NDArray[np.float32]:
        count = int(np.prod(place.shape, dtype=np.int64))
        values = np.empty(count, dtype=_TYPES[place.dtype])
        self._file.seek(place.offset)
        if self._file.readinto(values.data.cast("B")) != values.nbytes:
            raise CheckpointError(f"{self.path} became shorter while it was read")
        if place.dtype == "BF16":
            return bfloat16_to_float32(values).reshape(place.shape)
        return values.astype(np.float32, copy=False).reshape(place.shape)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def _bytes_of(path: Path, name: str, place: _Place) -> int:
    if place.dtype not in _TYPES:
        raise CheckpointError(f"{path}: {name!r:.80} is {place.dtype}, which Andrea can't read")
    return np.dtype(_TYPES[place.dtype]).itemsize * int(np.prod(place.shape, dtype=np.int64))


class SafetensorsFolder(Closing):
    """All tensors of a model's folder: of model.safetensors, or of the shards that its index names.

    Raises:
        CheckpointError: a file is missing or damaged, or index and shards disagree.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[SafetensorsFile] = []
        self._file_of: dict[str, SafetensorsFile] = {}
        try:
            if (folder / INDEX).exists():
                self._open_shards(_weight_map(folder / INDEX))
            else:
                self._add(SafetensorsFile(folder / SINGLE))
        except BaseException:
            self.close()
            raise

    def _open_shards(self, shard_of: Mapping[str, str]) -> None:
        for shard in sorted(set(shard_of.values())):
            self._add(SafetensorsFile(self.folder / shard))
            for name in self._files[-1].places:
                if shard_of.get(name) != shard:
                    raise CheckpointError(
                        f"{self.folder / shard} holds {name!r:.80}, which {INDEX} has in "
                        f"{shard_of.get(name, 'no file')!r:.80}"
                    )
        missing = next((name for name in shard_of if name not in self._file_of), None)
        if missing is not None:
            raise CheckpointError(f"{self.folder / shard_of[missing]} lacks {missing!r:.80}")

    def _add(self, file: SafetensorsFile) -> None:
        self._files.append(file)
        self._file_of.update(dict.fromkeys(file.places, file))

    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._file_of)

    def tensor(self, name: str) -> LazyTensor:
        """A tensor as float32, read when it is used."""
        return self._file_of[name].tensor(name)

    def buffer(self, name: str) -> LazyTensor:
        """What is no parameter, of any type, as float32."""
        return self._file_of[name].buffer(name)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in self._files:
            file.close()


def _weight_map(path: Path) -> dict[str, str]:
    shard_of = read_json(path).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise CheckpointError(f"{path} has no weight_map")
    for name, shard in shard_of.items():
        is_plain = isinstance(shard, str) and shard.endswith(".safetensors")
        if not is_plain or not shard.isprintable() or any(mark in shard for mark in "/\\:"):
            raise CheckpointError(
                f"{path}: {name!r:.80} is in {shard!r:.80}, which is no name of a file beside it"
            )
    return shard_of
