"""Numbers as people read them: counts, bytes, durations; for messages, the report and the CLI."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """A length of time in at most two units: 8s, 1m 20s, 3h 05m, 2d 04h."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s".replace(".0s", "s")
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def count(number: float) -> str:
    """A count with a decimal at most: 950, 12.3k, 92.3M, 1.2G, 5.5T."""
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,950 would round to 1000.0k: it belongs to the next unit.
        if number >= size * 0.99995 and number >= 1000:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def decimal(number: float, digits: int) -> str:
    """A number with so many digits after the point: 1,234.50, and 0.00 rather than -0.00."""
    # Adding 0 turns -0 into 0.
    return f"{round(number, digits) + 0.0:,.{digits}f}"


def size(number: float) -> str:
    """A number of bytes in decimal units: 465 KB, 1.8 GB."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if number >= scale * 0.9995:
            value = number / scale
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{number:.0f} byte{'' if number == 1 else 's'}"


def plural(number: int, noun: str, many: str = "") -> str:
    """A count with its noun: 1 document, 12,000 documents."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def percent(share: float) -> str:
    """A share as a percentage with a decimal, small ones with two digits: 61.4%, 0.042%, 0%."""
    amount = 100 * share
    if abs(amount) >= 0.1:
        return f"{amount:.1f}%"
    if not amount:
        return "0%"
    digits = min(1 - math.floor(math.log10(abs(amount))), 9)
    return f"{amount:.{digits}f}".rstrip("0").rstrip(".") + "%"
