"""Runs many damaged cases of a reader, and says with which seed one went wrong.

A case may be accepted with the right value, or refused by an AndreaError of one line; nothing else.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Protocol

from andrea.errors import AndreaError


class Reader(Protocol):
    """Something that reads what may be damaged."""

    def case(self, random: Random, folder: Path) -> str:
        """Damage something, read it and check what was read; says in a word what came of it.

        Raises:
            AndreaError: the reader refused.
        """
        ...


def run_case(reader: Reader, seed: int, folder: Path) -> str:
    """Run the case of a seed: "refused", or what the reader says."""
    try:
        return reader.case(Random(seed), folder)
    except AndreaError as error:
        text = str(error)
        assert text and "\n" not in text, f"seed {seed}: not one line: {text!r}"
        return "refused"
    except Exception as error:
        raise AssertionError(f"seed {seed} of {type(reader).__name__}: {error!r}") from error


def run_cases(reader: Reader, seeds: Iterable[int], folder: Path) -> Counter[str]:
    """Run the cases of some seeds and count what came of them."""
    return Counter(run_case(reader, seed, folder) for seed in seeds)


def seeds_for(seconds: float, first: int = 1_000_000) -> Iterator[int]:
    """Seeds until the time is over."""
    end = time.monotonic() + seconds
    for seed in count(first):
        if time.monotonic() > end:
            return
        yield seed
