"""Numbers as people read them (andrea.words), durations as they type them, text to print."""

from __future__ import annotations

import re

from andrea.words import count, duration, plural, size

__all__ = ["count", "duration", "parse_duration", "plural", "printable", "size"]

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
# Carriage returns go: texts with CRLF would show a mark at each line's end.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160))} | {9: 9, 10: 10, 13: None}
_DURATION = re.compile(
    r"(?:(?P<d>\d+(?:\.\d+)?)d)?(?:(?P<h>\d+(?:\.\d+)?)h)?"
    r"(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?"
)


def parse_duration(text: str) -> float:
    """Seconds in a duration such as 90, 90s, 20m, 1h30m or 2d.

    Raises:
        ValueError: the text is not a duration, or is not above zero.
    """
    compact = text.strip().lower().replace(" ", "")
    match = _DURATION.fullmatch(compact)
    if not compact or match is None:
        raise ValueError(f"{text!r} is not a duration; write 90, 90s, 20m, 1h30m or 2d")
    parts = match.groupdict()
    seconds = sum(float(parts[unit]) * size for unit, size in _UNITS.items() if parts[unit])
    if seconds <= 0:
        raise ValueError(f"{text!r} is no time at all; give more than 0 seconds")
    return seconds


def printable(text: str) -> str:
    """Text that cannot steer a terminal: without control characters other than newline and tab."""
    return text.translate(_CONTROLS)
