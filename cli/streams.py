"""The standard streams: there, whatever started the program."""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Give a program that was started without some of them streams that lead nowhere.

    Else the next file that is opened, a checkpoint say, gets the number of a missing stream, and
    with it what libraries print there. That standard input is missing stays to be seen in sys.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the program runs
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
