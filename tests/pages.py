"""The fenced blocks of README and docs, and where their commands run."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, the line of its fence, and why it isn't run, if it isn't."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order; one after a line `<!-- not run: reason -->` isn't run."""
    found = []
    lines = page.read_text("utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"\s*(```+)\s*(\S*)", lines[number])
        if fence:
            end = number + 1
            while lines[end].strip() != fence[1]:
                end += 1
            mark = NOT_RUN.fullmatch(lines[number - 1].strip()) if number else None
            text = "\n".join(lines[number + 1 : end]) + "\n"
            found.append(Block(page, number + 1, fence[2], text, mark[1] if mark else None))
            number = end
        number += 1
    return found


def environment(folder: Path) -> dict[str, str]:
    """As in a terminal with the package's environment active, and nothing written outside."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    home = folder / "home"
    home.mkdir()
    return {**os.environ, "PATH": path, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
