"""Where this installation keeps what other programs build against: the engine as a C library.

The package is a prefix such as CMake and pkg-config know: include/, lib/ and what is below.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from .errors import LibraryError

_PKG_CONFIG = ("lib", "pkgconfig", "microgpt_cuda.pc")


def prefix() -> Path:
    """The folder that holds include/ and lib/, for CMAKE_PREFIX_PATH and the like.

    Raises:
        LibraryError: there are no such files, as in sources that were not installed.
    """
    # Not the package's own folder: an editable installation keeps what was built elsewhere.
    path = Path(str(resources.files("andrea").joinpath(*_PKG_CONFIG)))
    if not path.is_file():
        raise LibraryError(f"{path} is missing: install Andrea again, with 'pip install .'")
    return path.parents[len(_PKG_CONFIG) - 1]
