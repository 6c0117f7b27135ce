"""No test is judged by a clock: on a busy machine everything takes as long as it takes."""

from __future__ import annotations

import re
from pathlib import Path

TEXTS = {
    path.name: path.read_text("utf-8")
    for path in sorted(Path(__file__).parent.rglob("*.py"))
    if path != Path(__file__)
}


def test_what_must_come_is_waited_for_with_patience() -> None:
    alone = re.compile(r"\btimeout ?= ?[\d.]+(?![\d.]| ?\*).*")
    fixed = {name: alone.findall(text) for name, text in TEXTS.items()}
    assert not {name: found for name, found in fixed.items() if found}, "use patience.PATIENCE"


def test_examples_have_no_deadline() -> None:
    """Hypothesis gives each of them 200 ms where nothing else is said."""
    for name, text in TEXTS.items():
        assert len(re.findall("^@given", text, re.MULTILINE)) == text.count("deadline=None"), name
