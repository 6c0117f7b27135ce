"""Numbers as people read them (andrea.words), times and counts as they type them, text to print."""

from __future__ import annotations

import datetime
import re

from andrea.words import count, duration, percent, plural, size

__all__ = [
    "count",
    "duration",
    "next_moment",
    "parse_count",
    "parse_duration",
    "percent",
    "plural",
    "printable",
    "size",
]

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


_SCALES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_COUNT = re.compile(r"(\d+)(?:\.(\d+))?([kmgbt]?)")


def parse_count(text: str) -> int:
    """A whole number such as 5000, 800k, 10M or 1.5G.

    Raises:
        ValueError: the text is none, or the number is not whole, or 0, or 2**63 or more.
    """
    match = _COUNT.fullmatch(text.strip().lower().replace(",", "").replace("_", ""))
    if match is None:
        raise ValueError(f"{text!r} is not a count; write 5000, 800k, 10M or 1.5G")
    whole, decimals, unit = match[1], match[2] or "", match[3]
    below_1: int = 10 ** len(decimals)
    number, rest = divmod(int(whole + decimals) * _SCALES[unit], below_1)
    if rest or not 0 < number < 2**63:
        raise ValueError(f"{text!r} must be a whole number, 1 or more")
    return number


def next_moment(text: str, now: datetime.datetime) -> float:
    """The next time at which a local clock shows HH:MM, or YYYY-MM-DD HH:MM; seconds since 1970.

    Raises:
        ValueError: the text is neither, or a date that is over.
    """
    compact = " ".join(text.replace("T", " ").split())
    try:
        return _local(datetime.datetime.combine(now, _clock(compact)), now)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.strptime(compact, "%Y-%m-%d %H:%M")
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time of day; write 07:30, or 2031-05-06 07:30"
        ) from None
    if moment <= now:
        raise ValueError(f"{text!r} is over: it is {now:%Y-%m-%d %H:%M}")
    return moment.timestamp()


def _clock(text: str) -> datetime.time:
    return datetime.datetime.strptime(text, "%H:%M").time()


def _local(moment: datetime.datetime, now: datetime.datetime) -> float:
    # Added to the date, not to the seconds: a day may have 23 or 25 hours.
    if moment <= now:
        moment += datetime.timedelta(days=1)
    return moment.timestamp()


def printable(text: str) -> str:
    """Text that cannot steer a terminal: without control characters other than newline and tab."""
    return text.translate(_CONTROLS)
