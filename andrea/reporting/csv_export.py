"""A run's log as a table: one row a step, with the evaluation of that step.

Read and written line by line: a log of weeks needs no more memory than one of minutes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .events import Event, log_path, read_events, whole

COLUMNS = (
    "step",
    "time",
    "loss",
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "skipped",
    "outlier_z",
    "validation_loss",
    "bits_per_byte",
    "coherence",
)
# Type of the event -> its fields -> their columns.
_FIELDS = {
    "run.loss": {
        "ts": "time",
        "loss": "loss",
        "lr": "learning_rate",
        "gradient_norm": "gradient_norm",
        "tokens_per_second": "tokens_per_second",
        "skipped": "skipped",
        "outlier": "outlier_z",
    },
    "run.eval": {"score": "validation_loss", "bits_per_byte": "bits_per_byte"},
    "run.sample": {"coherence": "coherence"},
}

Row = dict[str, Any]


def rows(path: Path) -> Iterator[Row]:
    """One row a step in rising order, by column; what is not known is left out.

    Numbers are as logged: losses in nats per token, times in ISO 8601 (UTC).

    Raises:
        RunError: there is no log, or it cannot be read.
    """
    row: Row = {}
    for event in read_events(log_path(path)):
        step = whole(event.get("step"))
        fields = _FIELDS.get(str(event.get("type")))
        if step is None or fields is None:
            continue
        if step != row.get("step"):
            if step < row.get("step", 0):
                continue  # told late, or of a damaged log: the row of its step is gone
            if len(row) > 1:
                yield row
            row = {"step": step}
        row.update(_cells(event, fields))
    if len(row) > 1:
        yield row


def write_csv(path: Path, file: IO[str]) -> int:
    """Write the rows under a header; return how many there were.

    Raises:
        RunError: there is no log, or it cannot be read.
    """
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    count = 0
    for row in rows(path):
        writer.writerow(row)
        count += 1
    return count


def _cells(event: Event, fields: dict[str, str]) -> Row:
    cells: Row = {}
    for name, column in fields.items():
        value = event.get(name)
        if column == "time":
            value = value if isinstance(value, str) else None
        elif value is True:
            value = 1
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            value = None
        if value is not None:
            cells[column] = value
    return cells
