"""Files that appear whole or not at all, and are on the disk when they do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[int]:
    """A descriptor for the content of a file, which is written beside `path`, synced and renamed.

    Raises:
        OSError: the disk is full, or refuses for another reason; `path` is as it was.
    """
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666
    )
    try:
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def write_all(descriptor: int, data: memoryview | bytes) -> None:
    """Write all of the data, in as many calls as the disk wants.

    Raises:
        OSError: the disk takes no more.
    """
    data = memoryview(data)
    while len(data):
        written = os.write(descriptor, data)
        if written == 0:
            raise OSError(errno.EIO, "the disk took no data")
        data = data[written:]


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, on the file systems that can."""
    if os.name == "nt":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
