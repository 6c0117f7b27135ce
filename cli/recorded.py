"""What `andrea train` records of a run beside its settings: as it should be, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from andrea.runs.folder import RunFolder


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _or_none(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "sources": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "text_key": _or_none(_is_text),
    "encoding": _or_none(_is_text),
    "skip_bad": _or_none(_is_flag),
    "fingerprint": _is_text,
    "documents": _is_count,
    "train_tokens": _is_count,
    "validation_tokens": _is_count,
    "num_bytes": _is_count,
    "device": _is_text,
    "precision": _is_text,
    "report": _or_none(_is_flag),
    "sample_tokens": _or_none(_is_count),
    "tensorboard": _or_none(_is_flag),
    "sample_prompt": _or_none(_is_text),
    "init_from": _or_none(_is_text),
}
_KEPT_FOLDERS = ("checkpoints", "incidents")
_OF_THE_TEXT = ("documents", "train_tokens", "validation_tokens", "num_bytes")


def check_record(run: RunFolder) -> None:
    """Refuse a run whose record is not as `andrea train` writes it; programs may leave it empty.

    Raises:
        CheckpointError: a value is of another kind.
    """
    check_values(run.info.record, run.checkpoint_path)


def refuse_part_of_run(out: Path, log: Path) -> None:
    """Refuse to write over the files that a run goes on from, or is judged by.

    Raises:
        RunError: `out` is one of them.
    """
    from andrea.errors import RunError

    log, place = log.resolve(), out.resolve()
    is_kept = place.parent.parent == log.parent and place.parent.name in _KEPT_FOLDERS
    if is_kept or place in (log, log.with_name("config.toml")):
        raise RunError(f"{out} is a part of the run itself: name another file with --out")


def check_values(record: Mapping[str, Any], path: Path) -> None:
    """Refuse a record that is in the file at `path`, as `check_record` does."""
    from andrea.errors import CheckpointError

    for name, is_right in _KINDS.items():
        if name in record and not is_right(record[name]):
            raise CheckpointError(
                f"{path}: its record has {name} {record[name]!r:.60}: "
                "it was written by another program, or is damaged"
            )
    missing = [name for name in _OF_THE_TEXT if name not in record]
    if 0 < len(missing) < len(_OF_THE_TEXT):
        raise CheckpointError(f"{path}: its record has no {missing[0]}")
