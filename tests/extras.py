"""Tests of what needs an extra: left out by name where it isn't installed.

By a mark and not by `importorskip`, which skips the module itself, in every run that collects it.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*modules: str, extra: str) -> pytest.MarkDecorator:
    """The mark of tests that import these modules."""
    missing = [name for name in modules if find_spec(name) is None]
    why = f"{' and '.join(missing)} not installed; they come with the extra {extra}"
    return pytest.mark.skipif(bool(missing), reason=why)
