"""The pages of docs/lessons: their commands run, print what the pages show, and draw the figures.

Numbers may differ a little from machine to machine, words may not. A figure's command stands in the
table of docs/lessons/figures/README.md, beside the file that it writes.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from andrea.cli import main
from andrea.lessons.experiments import NAMES, build
from andrea.lessons.experiments.custom import custom, parse_vary
from extras import needs
from native_build import REPOSITORY, find_tool
from pages import Block, blocks_of, environment
from patience import PATIENCE

LESSONS = REPOSITORY / "docs" / "lessons"
FIGURES = LESSONS / "figures"
PAGES = sorted(LESSONS.glob("[0-9]*.md"))
# Of a number that is printed: a tenth of it, and so many of its last places.
SHARE, PLACES = 0.1, 5
# Of a figure: points of 1/72 inch, and of 255 for a colour's red, green and blue.
POINTS, SHADES = 3.0, 40

_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")

pytestmark = pytest.mark.skipif(not PAGES, reason="no pages beside the tests")


@dataclass(frozen=True)
class FigureRow:
    """A line of the table: which file, of which page, by which command, and where that puts it."""

    name: str
    page: str
    command: str
    written: str


def figure_rows() -> list[FigureRow]:
    text = (FIGURES / "README.md").read_text("utf-8") if PAGES else ""
    lines = [line for line in text.splitlines() if line.startswith("| [")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [
        FigureRow(re.findall(r"\((.+)\)", row[0])[0], *(cell.strip("`") for cell in row[1:]))
        for row in rows
    ]


@needs("matplotlib", extra="plots")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_prints_and_draws_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lesson"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in {**environment(tmp_path), "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    compare_printed(page, {block.line: printed_by(block) for block in run_blocks(page)})
    # Files of commands that aren't run aren't there.
    commands = {"code", *(line for block in run_blocks(page) for line in lines_of(block))}
    for row in figure_rows():
        if row.page == page.name and row.command in commands:
            compare_figures(FIGURES / row.name, folder / row.written)


def run_blocks(page: Path) -> list[Block]:
    return [block for block in blocks_of(page) if block.language != "text" and not block.reason]


def printed_by(block: Block) -> list[str]:
    """What a block prints in the working folder. In this process: most of a command's time would go
    into starting Python."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(printed):
        if block.language == "python":
            Path("block.py").write_text(block.text, "utf-8")
            runpy.run_path("block.py")
        for line in lines_of(block):
            program, *words = shlex.split(line)
            if program == "andrea":
                with pytest.raises(SystemExit) as ended:
                    main.main(words, prog_name="andrea")
                assert not ended.value.code, f"{block}: {line}"
            else:
                subprocess.run([find_tool("bash", "sh"), "-c", line], check=True, timeout=PATIENCE)
    printed.seek(0)
    return printed.read().splitlines()


def compare_printed(page: Path, printed: dict[int, list[str]]) -> None:
    """Every line that a page shows stands in what the commands before it printed, in that order."""
    left: list[str] = []
    is_run = False
    for block in blocks_of(page):
        if block.language != "text":
            left = list(printed.get(block.line, ()))
            is_run = block.line in printed
        elif is_run:
            for line in block.text.splitlines():
                if line == "...":
                    continue
                place = next((at for at, had in enumerate(left) if alike(line, had)), None)
                assert place is not None, f"{block}: not printed: {line}\n" + "\n".join(left)
                left = left[place + 1 :]


def alike(one: str, other: str) -> bool:
    """The same words, and about the same numbers; single characters may change places."""
    if words_of(one) != words_of(other):
        return False
    numbers, others = _NUMBER.findall(one), _NUMBER.findall(other)
    return len(numbers) == len(others) and all(map(near, numbers, others))


def words_of(line: str) -> list[str]:
    return re.findall(r"[^\W\d]{2,}", line)


def near(one: str, other: str) -> bool:
    a, b = (float(text.replace(",", "").replace("−", "-")) for text in (one, other))
    digits, _, power = one.partition("e")
    last = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return abs(a - b) <= SHARE * max(abs(a), abs(b)) + PLACES * last


def compare_figures(kept: Path, drawn: Path) -> None:
    """The same words at the same places, the same curves and about the same colours."""
    ours, theirs = (ElementTree.parse(path).getroot() for path in (kept, drawn))
    for get in (texts_of, coordinates_of, colours_of):
        a, b = get(ours), get(theirs)
        assert len(a) == len(b), f"{kept.name}: {get.__name__}: {len(a)} and {len(b)}"
    assert all(map(alike, texts_of(ours), texts_of(theirs))), kept.name
    for get, most in ((coordinates_of, POINTS), (colours_of, SHADES)):
        pairs = zip(get(ours), get(theirs), strict=True)
        far = max((abs(a - b) for a, b in pairs), default=0)
        assert far <= most, f"{kept.name}: {get.__name__} differ by {far}"


def texts_of(svg: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in svg.iter() if each.tag.endswith("}text")]


def coordinates_of(svg: ElementTree.Element) -> list[float]:
    paths = [each.get("d", "") for each in svg.iter() if each.tag.endswith("}path")]
    return [float(number) for path in paths for number in re.findall(r"-?[\d.]+", path)]


def colours_of(svg: ElementTree.Element) -> list[int]:
    styles = " ".join(each.get("style", "") for each in svg.iter())
    codes = re.findall(r"#([0-9a-f]{6})", styles)
    return [int(code[at : at + 2], 16) for code in codes for at in (0, 2, 4)]


def lines_of(block: Block) -> list[str]:
    """The commands of a block of sh, those of several lines joined."""
    if block.language != "sh":
        return []
    return block.text.replace("\\\n", "").splitlines()


def test_numbers_words_and_figures_that_differ_are_told(tmp_path: Path) -> None:
    assert alike("length 0.322:  -0.0122", "length 0.324:  -0.0123")
    assert not alike("length 0.322:  -0.0122", "length 0.522:  -0.0122")
    assert not alike("length 0.322", "change 0.322") and not alike("at 1 2", "at 1")
    assert near("3411", "3413") and not near("1e-07", "1e-05")
    kept = FIGURES / figure_rows()[0].name
    svg = kept.read_text("utf-8")
    compare_figures(kept, kept)
    word = next(text for text in texts_of(ElementTree.fromstring(svg)) if words_of(text))
    changed = tmp_path / "changed.svg"
    for what, instead in ((word, "other words"), ("L ", "L 9"), ("#0072b2", "#ff0000")):
        assert what in svg
        changed.write_text(svg.replace(what, instead), "utf-8")
        with pytest.raises(AssertionError):
            compare_figures(kept, changed)


def test_both_languages_have_the_same_pages_commands_outputs_and_figures() -> None:
    for page in [*PAGES, LESSONS / "README.md"]:
        other = LESSONS / "id" / page.name
        ours, theirs = (
            [(block.language, block.text, block.reason) for block in blocks_of(each)]
            for each in (page, other)
        )
        assert ours == theirs, page.name
        figures = [
            re.findall(r"!\[.+?\]\((.+?)\)", each.read_text("utf-8")) for each in (page, other)
        ]
        assert [f"../{path}" for path in figures[0]] == figures[1], page.name
    assert len(list((LESSONS / "id").iterdir())) == len(PAGES) + 1


def test_every_figure_is_on_its_page_with_the_command_that_made_it() -> None:
    rows = figure_rows()
    assert sorted(row.name for row in rows) == sorted(path.name for path in FIGURES.glob("*.svg"))
    for row in rows:
        page = LESSONS / row.page
        assert f"](figures/{row.name})" in page.read_text("utf-8"), row
        if row.command == "code":
            assert any(f'"{row.written}"' in block.text for block in blocks_of(page)), row
        else:
            assert row.command in [line for block in blocks_of(page) for line in lines_of(block)], (
                row
            )
        assert (FIGURES / row.name).stat().st_size < 60_000, row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_take_long_are_accepted(page: Path) -> None:
    commands = [shlex.split(line) for block in blocks_of(page) for line in lines_of(block)]
    commands = [words[1:] for words in commands if words[0] == "andrea"]
    assert commands
    for name, *arguments in commands:
        command = main.get_command(click.Context(main), name)
        assert command is not None, name
        given = command.make_context(name, list(arguments)).params
        if name == "experiment":
            assert given["name"] in NAMES
            if given["name"] == "custom":
                custom("quick", 257, dict(map(parse_vary, given["vary"])), given["steps"])
            else:
                build(given["name"], "quick", 257, given["steps"])
