"""Token files: one-dimensional .npy arrays as wide as the vocabulary needs, written in a stream.

They open as memory maps, so that a text larger than memory can be trained on.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.integer[Any]]
"""Tokens of any integer type, in memory or in a file, (n,)."""

TokenArray = NDArray[np.unsignedinteger[Any]]

# The header has a fixed size, so that the length can be filled in when it is known.
_HEADER_BYTES = 128


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the narrowest little-endian unsigned type that holds every id below `vocab_size`."""
    for name in ("u1", "<u2"):
        if vocab_size - 1 <= np.iinfo(name).max:
            return np.dtype(name)
    return np.dtype("<u4")


@dataclass(frozen=True)
class TokenFileFacts:
    """What a finished token file must look like: type, length and a digest of its tokens."""

    dtype: str
    length: int
    digest: str

    @property
    def num_bytes(self) -> int:
        """Bytes that the tokens take."""
        return self.length * np.dtype(self.dtype).itemsize


class TokenWriter:
    """Appends tokens to a new .npy file; `facts` describes it once it is closed."""

    def __init__(self, path: Path, vocab_size: int) -> None:
        """Create the file for ids below `vocab_size`."""
        self._dtype = token_dtype(vocab_size)
        self._length = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._file = open(path, "wb", buffering=1 << 20)  # noqa: SIM115 - closed by __exit__
        self._file.write(_header(self._dtype, 0))

    def append(self, tokens: NDArray[np.integer[Any]]) -> None:
        """Write the tokens, (n,), any integer type, at the end."""
        data = np.ascontiguousarray(tokens, dtype=self._dtype).data
        self._file.write(data)
        self._digest.update(data)
        self._length += len(tokens)

    @property
    def facts(self) -> TokenFileFacts:
        """Type, length and digest of what was written so far."""
        return TokenFileFacts(self._dtype.str, self._length, self._digest.hexdigest())

    def __enter__(self) -> TokenWriter:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Fill in the length and close."""
        with self._file:
            if error is None:
                self._file.seek(0)
                self._file.write(_header(self._dtype, self._length))


def open_tokens(
    path: Path, facts: TokenFileFacts, on_read: Callable[[int], None] = lambda num_bytes: None
) -> TokenArray | None:
    """Return the file as a read-only memory map, or None if it is not what `facts` says.

    All of it is read for that; `on_read` hears how many bytes were read since it was last called.
    """
    dtype = np.dtype(facts.dtype)
    try:
        with open(path, "rb") as file:
            if file.read(_HEADER_BYTES) != _header(dtype, facts.length):
                return None
            digest = hashlib.blake2b(digest_size=16)
            size = 0
            while chunk := file.read(1 << 20):
                digest.update(chunk)
                size += len(chunk)
                on_read(len(chunk))
        if size != facts.num_bytes or digest.hexdigest() != facts.digest:
            return None
        tokens: TokenArray = np.load(path, mmap_mode="r")
    except OSError:
        return None
    return tokens


def mapping_of(tokens: Tokens) -> mmap.mmap | None:
    """Return the memory map that the tokens, or those they are a stretch of, lie in."""
    owner: Any = tokens
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, mmap.mmap) else None


def release_pages(tokens: Tokens) -> None:
    """Let go of what is resident of a memory map; an array in memory stays as it is."""
    mapping = mapping_of(tokens)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _header(dtype: np.dtype[Any], length: int) -> bytes:
    """Return a version 1.0 header as numpy.lib.format specifies it."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({length},), }}"
    body = text.ljust(_HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode("ascii")
