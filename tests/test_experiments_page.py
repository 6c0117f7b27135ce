"""The folder of an experiment: numbers, table, pictures and the page, also in a browser."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from andrea.errors import LibraryError, RunError
from andrea.lessons import pictures
from andrea.lessons.experiments import Results, write_report
from andrea.lessons.experiments.report import new_folder
from browser import Browser, Page
from extras import needs
from test_experiments_runner import VOCAB_SIZE, build, results_of, shrunk

WITH_PICTURES = needs("matplotlib", extra="plots")


@pytest.fixture(scope="module")
def results() -> Results:
    return results_of(shrunk(build("residual-init", "quick", VOCAB_SIZE, steps=4)))


@pytest.fixture(scope="module")
def folder(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = new_folder(tmp_path_factory.mktemp("experiment") / "residual-init")
    assert write_report(results, folder) == ""
    return folder


def test_without_matplotlib_there_is_all_but_pictures(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise LibraryError("pictures need <matplotlib>")

    monkeypatch.setattr(pictures, "require_matplotlib", refuse)
    assert write_report(results, tmp_path) == "pictures need <matplotlib>"
    assert {path.name for path in tmp_path.iterdir()} == {
        "report.html",
        "results.json",
        "table.txt",
    }
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "No pictures: pictures need &lt;matplotlib&gt;." in page and "<img" not in page


@WITH_PICTURES
def test_the_folder_has_every_number(results: Results, folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "report.html",
        "results.json",
        "table.txt",
        *(f"{drawing.name}.svg" for drawing in results.experiment.drawings),
    }
    found = json.loads((folder / "results.json").read_text("utf-8"))
    assert found == json.loads(json.dumps(results.to_dict()))
    table = (folder / "table.txt").read_text("utf-8")
    for variant in results.experiment.variants:
        loss = results.loss(variant)
        assert loss is not None and f"{loss.mean:.4f}" in table and variant.name in table
    for judged in results.judged:
        assert f"{judged.contrast.claim}: {judged.verdict.outcome}" in table


@WITH_PICTURES
def test_pictures_have_labelled_axes(results: Results, folder: Path) -> None:
    for drawing in results.experiment.drawings:
        root = ElementTree.parse(folder / f"{drawing.name}.svg").getroot()
        words = {"".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")}
        assert words & {"block, counted from the embeddings", "depth (blocks passed)"} or (
            {"steps of training", "validation loss (nats per token)"} <= words
        )
        shown = " ".join(words)
        assert "16 blocks, scaled" in shown and "$" not in shown


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("")
    with pytest.raises(RunError, match="not empty"):
        new_folder(tmp_path)
    with pytest.raises(RunError, match="cannot make"):
        new_folder(tmp_path / "something" / "below")
    assert new_folder(tmp_path / "new").is_dir()
    assert new_folder(tmp_path / "new").is_dir()  # an empty one will do


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@WITH_PICTURES
@pytest.mark.parametrize("width", [1400, 390], ids=["wide", "narrow"])
def test_the_page_in_a_browser(browser: Browser, folder: Path, width: int) -> None:
    """It loads nothing, is as wide as the window, and shows its pictures and its verdicts."""
    page = Page(browser, folder / "report.html", width, 900, dark=width < 500)
    assert page.complaints() == []
    assert all(re.match("file:|data:image/svg", one) for one in page.requests())
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width] * 2
    sizes = page.evaluate("[...document.images].map((one) => [one.naturalWidth, one.width])")
    assert len(sizes) == 3 and all(
        natural > 400 and 300 < shown < width for natural, shown in sizes
    )
    boxes = "document.querySelectorAll('figure .scroll')"
    assert page.evaluate(f"[...{boxes}].every((one) => one.scrollWidth <= one.clientWidth)")
    assert page.evaluate("document.querySelectorAll('.claims li').length") == 3
    assert "at this size" in page.text(".status")
