"""Tables in plain text of at most 100 columns, and the same figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLUMNS = 100


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the first column to the left, all others to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = []
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    assert all(len(line) <= COLUMNS for line in lines), "a table wider than a terminal"
    return lines


def figure(value: float | None, digits: int = 3) -> str:
    """A number with at least that many digits that count, thousands apart; "?" for None."""
    if value is None:
        return "?"
    decimals = 0
    while decimals < 4 and abs(value) * 10**decimals < 10 ** (digits - 1):
        decimals += 1
    return f"{value:,.{decimals}f}"


def percent(value: float | None) -> str:
    """A share of 1 in percent."""
    return "?" if value is None else f"{100 * value:.0f}%"


def others(told: dict[str, Any]) -> str:
    """What others used of the cores at most; "!" behind it where a measurement stayed disturbed."""
    share = told["others_share"]
    mark = "!" if told["disturbed_rounds"] else ""
    return ("?" if share is None else f"{100 * share:.1f}%") + mark


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """The figures as a file; numbers that are not finite are refused."""
    path.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n", encoding="utf-8")
