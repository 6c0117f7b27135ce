"""Files of named float32 tensors: safetensors, written without a copy, never half, with a checksum.

The safetensors library reads these files and checks their headers here; it is not used for writing,
because it orders the metadata at random (equal states would give unequal files) and does not sync.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from andrea.closing import Closing
from andrea.errors import CheckpointError

from .whole_file import whole_file, write_all


class Tensor(Protocol):
    """A float32 array, or what NumPy can read as one, such as a tensor on a GPU."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""

    @property
    def size(self) -> int:
        """Numbers in all."""

    def __array__(self, dtype: Any = ..., /) -> NDArray[Any]: ...


Tensors = Mapping[str, Tensor]

_CHUNK = 1 << 20
_LENGTH_BYTES = 8
_CHECKSUM_KEY = "checksum"
# Quotes inside metadata are escaped, so the first match is the entry itself.
_CHECKSUM_ENTRY = f'"{_CHECKSUM_KEY}":"'.encode()
_NO_CHECKSUM = b"0" * 64


def canonical_json(value: Any) -> str:
    """The one way to write a value as JSON: sorted keys, no spaces, ASCII.

    Raises:
        ValueError: the value holds a float that is not finite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, which `canonical_json` can write again.

    Raises:
        ValueError: it is no JSON, or holds a number that is not finite.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_float=_finite_number, parse_constant=_finite_number)


def _finite_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.20} is not finite")
    return value


def write_tensor_file(path: Path, tensors: Tensors, metadata: Mapping[str, str]) -> int:
    """Write tensors and metadata to a safetensors file, and return its size in bytes.

    Equal tensors and metadata give equal bytes. The file appears whole or not at all: it is written
    beside `path`, synced to the disk and renamed. Its checksum is SHA-256 over the whole
    file with the 64 digits of the checksum itself as zeros.

    Raises:
        CheckpointError: the disk is full, or refuses for another reason; `path` is as it was.
    """
    try:
        with whole_file(path) as descriptor:
            return _write(descriptor, _header(tensors, metadata), tensors)
    except OSError as error:
        kept = "; the checkpoint before it is intact" if path.exists() else ""
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}{kept}") from error


def _header(tensors: Tensors, metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {
        "__metadata__": {**dict(sorted(metadata.items())), _CHECKSUM_KEY: _NO_CHECKSUM.decode()}
    }
    offset = 0
    for name, tensor in tensors.items():
        size = 4 * tensor.size
        entries[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _write(descriptor: int, header: bytes, tensors: Tensors) -> int:
    checksum = hashlib.sha256(header)
    write_all(descriptor, header)
    size = len(header)
    for tensor in tensors.values():
        # No copy of arrays that the host can read, on little-endian machines.
        data = np.ascontiguousarray(tensor, dtype="<f4").data.cast("B")
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK]
            checksum.update(chunk)
            write_all(descriptor, chunk)
        size += len(data)
    os.lseek(descriptor, header.index(_CHECKSUM_ENTRY) + len(_CHECKSUM_ENTRY), os.SEEK_SET)
    write_all(descriptor, checksum.hexdigest().encode("ascii"))
    return size


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]
    offset: int


class TensorFile(Closing):
    """A file of tensors, open for reading and verified; a new file at its path does not change it.

    Raises:
        CheckpointError: the file is missing, unreadable, not of this kind, truncated or altered.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # To open a pipe that nobody writes to would wait for ever.
            if not stat.S_ISREG(path.stat().st_mode):
                raise CheckpointError(f"cannot read {path}: it is not a file")
            self._file = path.open("rb")
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        try:
            with _reading(path):
                self._read_header()
                self._verify()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        from safetensors import safe_open

        while True:
            with safe_open(self.path, framework="numpy") as reader:
                if not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path)):
                    # Replaced meanwhile by a run that is still training.
                    self._file.close()
                    self._file = self.path.open("rb")
                    continue
                self.metadata: dict[str, str] = reader.metadata() or {}
                self._data_start = _LENGTH_BYTES + _header_length(self._file)
                offset = self._data_start
                self._entries: dict[str, _Entry] = {}
                for name in reader.offset_keys():
                    piece = reader.get_slice(name)
                    shape = tuple(piece.get_shape())
                    if piece.get_dtype() != "F32":
                        raise CheckpointError(
                            f"{self.path}: {name} is {piece.get_dtype()}, expected F32"
                        )
                    self._entries[name] = _Entry(shape, offset)
                    offset += 4 * int(np.prod(shape, dtype=np.int64))
                return

    def _verify(self) -> None:
        recorded = self.metadata.get(_CHECKSUM_KEY)
        if recorded is None:
            raise CheckpointError(f"{self.path} is not an Andrea checkpoint: it has no checksum")
        self._file.seek(0)
        header = bytearray(self._file.read(self._data_start))
        start = header.find(_CHECKSUM_ENTRY) + len(_CHECKSUM_ENTRY)
        header[start : start + len(_NO_CHECKSUM)] = _NO_CHECKSUM
        checksum = hashlib.sha256(header)
        while chunk := self._file.read(_CHUNK):
            checksum.update(chunk)
        if checksum.hexdigest() != recorded:
            raise CheckpointError(
                f"{self.path} is damaged: its checksum does not match its content"
            )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read_into(self, name: str, array: NDArray[np.float32]) -> None:
        """Fill a contiguous float32 array of the tensor's shape, without another copy."""
        entry = self._entries[name]
        with _reading(self.path):
            self._file.seek(entry.offset)
            data = array.data.cast("B")
            if self._file.readinto(data) != len(data):
                raise CheckpointError(f"{self.path} became shorter while it was read")
        if sys.byteorder == "big":
            array.byteswap(inplace=True)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def _header_length(file: BinaryIO) -> int:
    file.seek(0)
    return int.from_bytes(file.read(_LENGTH_BYTES), "little")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        seen = " ".join(str(error).split())
        raise CheckpointError(f"{path} is truncated, altered or no checkpoint: {seen}") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
