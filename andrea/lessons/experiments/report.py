"""The folder of an experiment: its numbers, its table, its pictures and its page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from andrea.errors import LibraryError, RunError
from andrea.runs.whole_file import whole_file, write_all

from .drawings import pictures
from .page import Pictures, about, headline, keys, render
from .results import Results

PAGE, NUMBERS, TABLE = "report.html", "results.json", "table.txt"


def new_folder(path: Path) -> Path:
    """Make the folder of an experiment; one that is empty will do.

    Raises:
        RunError: something is there already, or the folder cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise RunError(f"{path} is not empty: name another folder with --out")
    except OSError as error:
        raise RunError(f"cannot make the folder {path}: {error.strerror or error}") from error
    return path


def write_report(results: Results, folder: Path) -> str:
    """Write results.json, table.txt, a picture for each drawing, and report.html with all of it.

    Returns:
        Why there are no pictures; "" where there are.

    Raises:
        RunError: a file cannot be written.
    """
    drawn: Pictures = ()
    missing = ""
    try:
        drawn = [(drawing, picture.svg()) for drawing, picture in pictures(results)]
    except LibraryError as error:
        missing = str(error)
    numbers = json.dumps(results.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    contents = {
        NUMBERS: numbers + "\n",
        TABLE: "\n".join(text_report(results)) + "\n",
        **{f"{drawing.name}.svg": svg for drawing, svg in drawn},
        PAGE: render(results, drawn, missing),
    }
    for name, text in contents.items():
        try:
            with whole_file(folder / name) as descriptor:
                write_all(descriptor, text.encode("utf-8"))
        except OSError as error:
            path = folder / name
            raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return missing


def text_report(results: Results) -> Iterator[str]:
    """The tables and verdicts as lines of text, as long as they need to be."""
    for table in results.tables():
        yield table.title
        rows = (table.header, *table.rows)
        widths = [max(len(row[place]) for row in rows) for place in range(len(table.header))]
        for row in rows:
            cells = [
                cell.ljust(width) if place < table.left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            yield "  ".join(cells).rstrip()
        yield ""
    told = keys(results)
    if told:
        yield from (told, "")
    yield results.experiment.claim
    for one in results.judged:
        yield f"- {one.contrast.claim}: {one.verdict.outcome}"
        yield f"  {one.verdict.why}"
    yield f"{headline(results)}. {about(results)}"
