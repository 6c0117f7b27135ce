"""One writer at a time: a lock on a run's folder; however a process ends, the system lifts it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import ModuleType

from andrea.errors import RunError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None

LOCK_NAME = "lock"


class RunLock:
    """Holds the lock of a run's folder until `release`, or until the process ends in any way.

    Raises:
        RunError: another process holds it, or the folder cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_NAME
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error
        try:
            if fcntl is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                owner = os.read(self._descriptor, 20).decode("ascii", "replace").strip()
                self.release()
                who = f"process {owner}" if owner else "another process"
                raise RunError(
                    f"{folder} is being trained by {who}: stop that first, "
                    "or choose another folder with --out"
                ) from None
            # A file system without locks must not keep anybody from training.
        # For people, and for the message above; what counts is the lock.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Let others train here; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
