"""The process behind disk.Nursery: has `andrea` imported, and forks a child for each call.

Questions come as lines of JSON on standard input, answers go to standard output.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from andrea.cli import main


def run(question: dict[str, Any]) -> int:
    """One call of `andrea` with its own input, output, cache and faults; returns its exit code."""
    folder = Path(question["folder"])
    for number, name in enumerate(("in", "out", "err")):
        descriptor = os.open(folder / name, os.O_RDWR | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    # A shell starts jobs in the background with SIGINT ignored, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def fork(question: dict[str, Any]) -> int:
    """Start a child that runs a call of `andrea`; its number."""
    pid = os.fork()
    if pid == 0:
        code = 70  # where a traceback was printed
        try:
            code = run(question)
            if question.get("modules"):
                Path(question["modules"]).write_text(json.dumps(list(sys.modules)))
        finally:
            os._exit(code)
    return pid


def import_what_is_used(question: dict[str, Any]) -> None:
    """Import what a child needed for a call, so that the next ones find it here."""
    os.waitpid(fork(question), 0)
    for name in json.loads(Path(question["modules"]).read_text()):
        with contextlib.suppress(ImportError):  # some are made by others, and not found by name
            importlib.import_module(name)


for line in sys.stdin:
    asked = json.loads(line)
    if "wait" in asked:
        value = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    elif "modules" in asked:
        import_what_is_used(asked)
        value = 0
    else:
        value = fork(asked)
    print(value, flush=True)
