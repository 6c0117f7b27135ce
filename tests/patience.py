"""How long a test waits for what must come: long enough for a machine with other work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

# In seconds. Only a failure takes as long; a build of the engine with sanitizers is slow.
PATIENCE = 300.0 * float(os.environ.get("ANDREA_TEST_PATIENCE", "1"))


def wait_until(come: Callable[[], bool], what: object = "what was awaited") -> None:
    """Ask again and again until it has come; fail with `what` when patience ends."""
    end = time.monotonic() + PATIENCE
    while not come():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.01)
