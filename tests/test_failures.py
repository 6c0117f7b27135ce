"""What a failing test says, and that it says so at once."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from native_build import TESTS


def test_wrong_bits_are_told_in_a_few_lines() -> None:
    one, other = (random.Random(seed).randbytes(4000) for seed in (1, 2))
    with pytest.raises(AssertionError) as failure:
        assert one == other
    assert len(str(failure.value).splitlines()) < 10


def test_on_a_build_machine_too() -> None:
    this = f"test_failures.py::{test_wrong_bits_are_told_in_a_few_lines.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", this],
        cwd=TESTS,
        env={**os.environ, "CI": "true", "BUILD_NUMBER": "7"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
