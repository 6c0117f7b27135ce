"""How much of the cores other processes used during a measurement, and repeating a disturbed one.

Standard library only: processes that measure PyTorch import it too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Measurement = dict[str, Any]


@dataclass(frozen=True)
class Counters:
    """Seconds since some start, at one moment, of the CPUs this process may run on.

    busy: they worked for anybody, or the host ran another guest on them (steal); own: they worked
    for this process; tick: what busy is counted in.
    """

    wall: float
    busy: float
    own: float
    cpus: int
    tick: float


def read_counters() -> Counters | None:
    """The counters now; None where there is no /proc/stat (anything but Linux)."""
    try:
        cpus = os.sched_getaffinity(0)
        with open("/proc/stat", encoding="ascii") as file:
            lines = file.read().splitlines()
    except (AttributeError, OSError):
        return None
    names = {f"cpu{number}" for number in cpus}
    ticks = 0
    for line in lines:
        name, *fields = line.split()
        if name in names:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    used = os.times()
    own = used.user + used.system + used.children_user + used.children_system
    tick = 1 / os.sysconf("SC_CLK_TCK")
    return Counters(time.monotonic(), ticks * tick, own, len(cpus), tick)


class CoreWatch:
    """Watches the cores from its making on."""

    def __init__(self, read: Callable[[], Counters | None] = read_counters) -> None:
        self._read = read
        self._before = read()

    def others_share(self) -> float | None:
        """The share of the cores' time that others used since; None where it can't be known.

        The kernel counts in ticks, so a tick of each core is not held against anybody.
        """
        before, after = self._before, self._read()
        if before is None or after is None or after.wall <= before.wall:
            return None
        others = (after.busy - before.busy) - (after.own - before.own) - after.cpus * after.tick
        return max(0.0, others) / ((after.wall - before.wall) * after.cpus)


def undisturbed(measure: Callable[[], Measurement], limit: float, attempts: int) -> Measurement:
    """measure(), again while its "others_share" exceeds limit, `attempts` times at most.

    Returns:
        The first undisturbed measurement, else the least disturbed one; with "attempts", how many
        there were, and "disturbed", whether others used more than the limit all the same.
    """
    least: Measurement | None = None
    for attempt in range(1, attempts + 1):
        result = measure()
        share = result["others_share"]
        result["disturbed"] = share is not None and share > limit
        if least is None or not result["disturbed"] or share < least["others_share"]:
            least = result
        least["attempts"] = attempt
        if not result["disturbed"]:
            break
    if least is None:
        raise ValueError(f"a measurement takes at least 1 attempt, not {attempts}")
    return least
