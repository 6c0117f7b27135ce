"""Names of a package that are loaded when they are first used."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCES = {
    "__init__": """from andrea.lazy import on_first_use
__getattr__, __dir__ = on_first_use(__name__, {"heavy": ("one", "two"), "missing": ("three",)})
here = 0
""",
    "heavy": "one, two = object(), object()\n",
    "missing": "import no_such_library_anywhere\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "lazy_example"
    folder.mkdir()
    for name, text in SOURCES.items():
        (folder / f"{name}.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module(folder.name)


def test_a_module_is_loaded_with_the_first_of_its_names(package: ModuleType) -> None:
    assert "lazy_example.heavy" not in sys.modules and "one" not in vars(package)
    first = package.one
    assert first is sys.modules["lazy_example.heavy"].one
    # The package has it now, and nothing is asked again.
    assert vars(package)["one"] is first and "two" not in vars(package)


def test_all_names_are_listed_though_none_is_loaded(package: ModuleType) -> None:
    assert {"here", "one", "two", "three"} <= set(dir(package)) and dir(package) == sorted(
        dir(package)
    )
    assert "lazy_example.heavy" not in sys.modules


def test_a_name_that_is_not_there_is_told_as_python_tells_it(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'lazy_example' has no attribute 'four'"):
        package.four  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'four'"):
        exec("from lazy_example import four")
    assert not hasattr(package, "__wrapped__")  # as inspect asks


def test_what_is_missing_below_is_not_taken_for_a_missing_name(package: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_library_anywhere"):
        package.three  # noqa: B018


@pytest.mark.parametrize(
    "name", ["andrea", "andrea.lessons", "andrea.lessons.experiments", "andrea.training"]
)
def test_every_name_of_the_packages_is_there(name: str) -> None:
    found = importlib.import_module(name)
    assert set(found.__all__) <= set(dir(found))
    assert all(hasattr(found, one) for one in found.__all__)
