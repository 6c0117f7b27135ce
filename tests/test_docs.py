"""Runs what README and docs tell the reader to run, verbatim.

Blocks fenced as sh run in order, each page in a folder of its own; blocks of python run as scripts;
blocks of c compile, and run where they have a main. A block after a line
`<!-- not run: reason -->` is left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import click
import pytest

from andrea._library import library_path
from andrea.cli import main
from native_build import REPOSITORY, c_compiler, find_tool, run
from pages import Block, blocks_of, environment
from patience import PATIENCE

PAGES = [
    *(
        page
        for page in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md")
        if page.is_file()
    ),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
# test_lessons_pages.py runs those, and looks at what they print and draw.
LESSONS = REPOSITORY / "docs" / "lessons"
# A page may name what lies in a checkout. Not its andrea/: Python would find it before the package.
CHECKOUT = ("CMakeLists.txt", "native", "docs")

pytestmark = pytest.mark.skipif(not PAGES, reason="no pages beside the tests")


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def to_run(language: str) -> list[Block]:
    return [
        block
        for block in BLOCKS
        if block.language == language and block.reason is None and LESSONS not in block.page.parents
    ]


def test_every_fence_is_of_a_kind_that_is_checked() -> None:
    for block in BLOCKS:
        assert block.language in ("sh", "python", "c", "text"), f"{block}: {block.language!r}"
        if block.language == "text":
            assert block.reason is None


def test_every_mark_is_on_a_block() -> None:
    for page in PAGES:
        marks = len(re.findall("not run:", page.read_text("utf-8")))
        assert marks == sum(block.reason is not None for block in blocks_of(page)), page.name


@pytest.mark.parametrize(
    "page", sorted({block.page for block in to_run("sh")}), ids=lambda page: page.name
)
def test_shell_commands(page: Path, tmp_path: Path) -> None:
    blocks = [block for block in to_run("sh") if block.page == page]
    if any("cmake" in block.text for block in blocks):
        find_tool("cmake")
    if any("pkg-config" in block.text for block in blocks):
        find_tool("pkg-config")
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in CHECKOUT:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        elif source.is_file():
            shutil.copy(source, folder)
    # One shell for the page, as a reader has; a command that fails ends it.
    script = ["set -e", *(f"echo '### {block}'\n{block.text}" for block in blocks)]
    done = subprocess.run(
        [find_tool("bash", "sh"), "-c", "\n".join(script)],
        cwd=folder,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "Traceback" not in done.stdout, done.stdout[-4000:]


@pytest.mark.parametrize("block", to_run("python"), ids=str)
def test_python_blocks(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block.text, "utf-8")
    run(sys.executable, script, cwd=tmp_path, env=environment(tmp_path))


@pytest.mark.parametrize("block", to_run("c"), ids=str)
def test_c_blocks(block: Block, tmp_path: Path) -> None:
    source, include = tmp_path / "block.c", resources.files("andrea") / "include"
    source.write_text(block.text, "utf-8")
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", f"-I{include}"]
    if "int main(" not in block.text:
        run(*c_compiler(), *strict, "-fsyntax-only", source)
        return
    library = library_path().parent
    link = [f"-L{library}", "-lmicrogpt_cuda", f"-Wl,-rpath,{library}"]
    run(*c_compiler(), *strict, source, *link, "-o", tmp_path / "block")
    run(tmp_path / "block")


def test_the_readme_names_every_command_and_has_the_figures_of_the_page() -> None:
    readme = PAGES[0].read_text("utf-8")
    assert PAGES[0].name == "README.md"
    missing = [
        name for name in main.list_commands(click.Context(main)) if f"`andrea {name}`" not in readme
    ]
    assert missing == []
    # Speeds are measured again from time to time, and told in two places.
    measured = (REPOSITORY / "docs" / "performance.md").read_text("utf-8")
    table = readme.partition("| Andrea, tokens/s |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[3:7]] for row in table.splitlines()[2:]]
    assert len(rows) == 4
    for andrea, torch, ratio, memory in rows:
        found = rf"\| {andrea} \|.*\| {torch} (eager|compiled) \| {ratio} .*\| {memory} \|"
        assert re.search(found, measured), (andrea, torch, ratio, memory)
