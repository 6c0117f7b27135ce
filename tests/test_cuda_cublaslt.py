"""cuBLASLt of Python's packages: the library is told once where it is, where that may help."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest


class FakeLibrary:
    def __init__(self) -> None:
        self.paths: list[bytes] = []

    def mg_set_cublaslt_path(self, path: bytes) -> None:
        self.paths.append(path)


@pytest.mark.parametrize("has_driver", [True, False])
def test_the_library_is_told_once_where_cublaslt_is(
    monkeypatch: pytest.MonkeyPatch, has_driver: bool
) -> None:
    from andrea import _library

    library, asked = FakeLibrary(), []

    def load(name: str) -> SimpleNamespace:
        asked.append(name)
        return SimpleNamespace(abs_path="/somewhere/libcublasLt.so.13")

    monkeypatch.setattr(_library, "lib", library)
    monkeypatch.setattr(_library, "_is_cublaslt_offered", False)
    monkeypatch.setattr(_library.os.path, "exists", lambda path: has_driver)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    pathfinder = SimpleNamespace(load_nvidia_dynamic_lib=load)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    _library.offer_cublaslt("cpu")
    assert not asked
    for device in ("cuda", "auto", "cuda:1"):
        _library.offer_cublaslt(device)
    # Without a driver nothing is looked for: that takes half a second.
    assert asked == (["cublasLt"] if has_driver else [])
    assert library.paths == ([b"/somewhere/libcublasLt.so.13"] if has_driver else [])


@pytest.mark.parametrize("error", [ImportError, RuntimeError, OSError])
def test_a_cublaslt_that_is_not_found_is_left_to_the_library(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    from andrea import _library

    def load(name: str) -> None:
        raise error("not found")

    library = FakeLibrary()
    monkeypatch.setattr(_library, "lib", library)
    monkeypatch.setattr(_library, "_is_cublaslt_offered", False)
    monkeypatch.setattr(_library.os.path, "exists", lambda path: True)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace())
    pathfinder = SimpleNamespace(load_nvidia_dynamic_lib=load)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", pathfinder)
    _library.offer_cublaslt("cuda")
    assert library.paths == []
