"""The folder of an experiment: numbers, table, pictures and the page, also in a browser."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from andrea.errors import LibraryError, RunError
from andrea.lessons import pictures
from andrea.lessons.experiments import Results, drawings, write_report
from andrea.lessons.experiments.custom import custom
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
    assert "± sd is the standard deviation over the seeds." in table
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


def heights(path: Path) -> dict[str, float]:
    """Where the words of a picture stand, from the top."""
    nodes = ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    found = {}
    for node in nodes:
        place = re.search(r"translate\(\S+ (\S+)\)", node.get("transform", ""))
        found["".join(node.itertext())] = float(place[1] if place else node.get("y", "nan"))
    return found


@WITH_PICTURES
def test_names_of_curves_stand_below_the_axes(
    results: Results, folder: Path, tmp_path: Path
) -> None:
    """Within them they would hide a curve, or be struck through by one."""
    found = heights(folder / "loss.svg")
    names = [found["16 blocks, scaled"], found["16 blocks, unscaled"]]
    assert min(names) > found["steps of training"] > 0
    # Many names: the picture grows, and the axes keep their height.
    values = tuple(range(1, 25))
    many = custom("quick", VOCAB_SIZE, {"n_layer": (1,), "learning_rate": values}, steps=1)
    runs = [dataclasses.replace(results.runs[0], variant=one.name) for one in many.variants]
    drawn = dataclasses.replace(results, experiment=many, runs=tuple(runs))
    picture = next(picture for one, picture in drawings.pictures(drawn) if one.name == "loss")
    picture.write(tmp_path / "many.svg")
    large = heights(tmp_path / "many.svg")
    assert sum(name.startswith("learning_rate") for name in large) == 24
    assert min(large[one.name] for one in many.variants) > large["steps of training"]
    assert abs(large["steps of training"] - found["steps of training"]) < 15
    # No half steps where there are few.
    assert {"1", "2", "3", "4"} <= found.keys() and not {"1.0", "1.5"} & found.keys()
    # A name that is wider than the picture is broken.
    long = tuple(dataclasses.replace(run, variant="steps " * 20 + run.variant) for run in runs[:2])
    names = {run.variant for run in long}
    variants = [dataclasses.replace(many.variants[0], name=name) for name in names]
    wide = dataclasses.replace(many, variants=tuple(variants))
    picture = drawings.loss_curves("loss", lambda one: True).draw(
        dataclasses.replace(results, experiment=wide, runs=long)
    )
    picture.write(tmp_path / "wide.svg")
    assert 20 < max(map(len, heights(tmp_path / "wide.svg"))) < 65


@WITH_PICTURES
@pytest.mark.parametrize("decades", [15, 1])
def test_gradients_are_told_by_whole_powers_or_where_few_by_1_2_and_5(
    results: Results, tmp_path: Path, decades: int
) -> None:
    runs = []
    for run in results.runs:
        blocks = results.experiment.variant(run.variant).model.n_layer
        norms = tuple(10.0 ** (-decades * block / (blocks - 1)) for block in range(blocks))
        runs.append(dataclasses.replace(run, gradients={0: norms}))
    drawn = dataclasses.replace(results, runs=tuple(runs))
    for one, picture in drawings.pictures(drawn):
        if one.name == "gradients-start":
            picture.write(tmp_path / "gradients.svg")
    words = [word for word in heights(tmp_path / "gradients.svg") if re.match(r"[\d.e-]+$", word)]
    whole = [math.log10(float(word)).is_integer() for word in words if float(word) < 1]
    assert len(whole) >= 3 and all(whole) == (decades > 3), words
    assert all(word.lstrip("0.")[0] in "125" for word in words if float(word) < 1), words


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
    assert page.text(".keys") == "± sd is the standard deviation over the seeds."
    facts = page.text(".cards")
    assert re.search(r"vocab_size \d+, block_size \d+, n_layer \d+, n_head \d+", facts)
    # Words of pictures have the ink of the page.
    ink = page.evaluate(
        """(() => {
          const canvas = document.createElement("canvas"), image = document.images[0];
          [canvas.width, canvas.height] = [2 * image.naturalWidth, 2 * image.naturalHeight];
          const drawing = canvas.getContext("2d");
          drawing.drawImage(image, 0, 0, canvas.width, canvas.height);
          const dots = drawing.getImageData(0, 0, canvas.width, canvas.height).data;
          const found = { a39e94: 0, 767676: 0 };
          for (let at = 0; at < dots.length; at += 4)
            for (const colour in found)
              found[colour] += [0, 1, 2].every(
                (part) => Math.abs(dots[at + part] - parseInt(colour.substr(2 * part, 2), 16)) < 2
              ) && dots[at + 3] > 250;
          return found;
        })()"""
    )
    assert (ink["a39e94"] > 100) == (width < 500), ink
    # A table is as wide as its numbers, not as the page.
    assert page.evaluate("document.querySelector('table').offsetWidth") < 700
