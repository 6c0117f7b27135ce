"""Folders and files of an export, which appear whole or not at all, and replace nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from andrea.errors import CheckpointError


def refuse_existing(path: Path) -> None:
    """Refuse to write where something is.

    Raises:
        CheckpointError: there is a file, or a folder that is not empty.
    """
    with contextlib.suppress(OSError):
        if path.is_dir() and not any(path.iterdir()):
            return
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path} is there already: name another place with --out")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place at `path` when all went well.

    Raises:
        CheckpointError: there is something at `path`, or the disk refuses.
    """
    refuse_existing(path)
    unfinished = path.with_name(path.name + ".tmp")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        yield unfinished
        os.replace(unfinished, path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON in UTF-8."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
