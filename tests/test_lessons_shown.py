"""What the lessons show of experiments that take minutes: the tables are today's experiments' own.

Their numbers are not measured again; headings, and what the rows are called, are.
"""

from __future__ import annotations

import itertools
import re
import shlex

import pytest

from andrea.cli.experiment_text import result_lines
from andrea.lessons.experiments import Experiment, build
from andrea.lessons.experiments.custom import custom, parse_vary
from pages import Block, blocks_of
from test_experiments_lessons import made_up
from test_lessons_pages import PAGES

# What the verdicts are printed below.
_TABLES_END = "losses: "


def shown() -> list[tuple[Block, str]]:
    """Blocks of output that are not compared with a run, and their command."""
    found = []
    for page in PAGES:
        blocks = blocks_of(page)
        for before, block in itertools.pairwise(blocks):
            command = before.text.strip()
            if before.reason and block.language == "text" and "andrea experiment" in command:
                found.append((block, command))
    return found


def experiment_of(command: str) -> Experiment:
    words = shlex.split(command)[2:]
    mode = "full" if "--full" in words else "quick"
    words = [word for word in words if word != "--full"]
    given = dict(zip(words[1::2], words[2::2], strict=True))
    vary = [value for name, value in zip(words[1::2], words[2::2], strict=True) if name == "--vary"]
    steps = int(given["--steps"])
    if words[0] == "custom":
        return custom(mode, 257, dict(map(parse_vary, vary)), steps)
    return build(words[0], mode, 257, steps)


def first_cell(line: str) -> str:
    return re.split(r" {2,}", line.strip())[0]


def tables_of(block: Block) -> list[str]:
    """The lines of tables: those before the first that tells of a verdict."""
    lines = [line for line in block.text.splitlines() if line != "..."]
    verdict = re.compile(r"(claim|holds|does not hold|undecided|verdict)  ")
    ends = [place for place, line in enumerate(lines) if verdict.match(line)]
    return lines[: ends[0]] if ends else lines


@pytest.mark.skipif(not PAGES, reason="no pages beside the tests")
@pytest.mark.parametrize(
    ("block", "command"), [pytest.param(*one, id=str(one[0])) for one in shown()]
)
def test_a_table_is_as_the_experiment_prints_it(block: Block, command: str) -> None:
    printed = list(result_lines(made_up(experiment_of(command), {}), (1.0, 1.0), 80))
    end = next(at for at, line in enumerate(printed) if line.startswith(_TABLES_END))
    printed = printed[:end]
    lines = tables_of(block)
    assert lines
    headings = [line for line in lines if not re.search(r"\d\.\d|\d$", line)]
    assert headings
    for line in headings:
        assert line.split() in [each.split() for each in printed], f"{block}: {line}"
    for line in lines:
        assert first_cell(line) in map(first_cell, printed), f"{block}: {line}"
