"""The process behind disk.Nursery: has `andrea` imported, and forks a child for each call.

Questions come as lines of JSON on standard input, answers go to standard output.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

# What the commands would import only when they need it.
import andrea.data
import andrea.model
import andrea.runs
import andrea.training
import andrea.writing  # noqa: F401
from andrea.cli import main


def live(question: dict[str, Any]) -> NoReturn:
    """The child's life: one call of `andrea` with its own input, output, cache and faults."""
    folder = Path(question["folder"])
    for number, name in enumerate(("in", "out", "err")):
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(question["where"])
    os.environ["XDG_CACHE_HOME"] = str(Path(question["where"]) / ".cache")
    if question["rules"]:
        faults = ctypes.CDLL(None)
        faults.faults_arm(os.fsencode(question["rules"]), os.fsencode(folder / "met"))
    code: Any = 0
    try:
        main.main(question["arguments"], prog_name="andrea")
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def answer(value: int) -> None:
    print(value, flush=True)


for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        answer(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]))
        continue
    pid = os.fork()
    if pid == 0:
        try:
            live(asked)
        finally:
            os._exit(70)  # a traceback was printed
    answer(pid)
