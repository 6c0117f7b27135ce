"""Ctrl-C, SIGTERM and a closed terminal: while training the first one saves and stops, a second
Ctrl-C or SIGTERM exits at once. SIGUSR1: saves and goes on.

A step of a large model can hold the main thread inside the engine for minutes, where Python runs no
signal handler; so a thread listens at the interpreter's wake-up socket and acts without waiting.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any


def _known(*names: str) -> tuple[signal.Signals, ...]:
    """Those of the signals that this system has."""
    return tuple(number for name in names if (number := getattr(signal, name, None)) is not None)


_SAVING = _known("SIGUSR1")
# A terminal that closes may say so twice, and is no reason to hurry.
_HANGING_UP = _known("SIGHUP")
_STOPPING = (signal.SIGINT, signal.SIGTERM, *_HANGING_UP)
# Where nothing is to be saved, the main thread gets so long to clean up behind itself.
_GRACE_SECONDS = 2.0


class StopSignals:
    """Within `with`, turns the signals that ask to stop into a request, or an exit.

    Outside of `postponed` the first signal ends what is going on, as KeyboardInterrupt or
    SystemExit in the main thread, and the process if that does not help. `before_exit` is called
    from the listening thread before it ends the process.
    """

    def __init__(self, *, before_exit: Callable[[], None]) -> None:
        self._before_exit = before_exit
        self._on_request: Callable[[], None] | None = None
        self._received: int | None = None
        self._is_save_wanted = False
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._previous_wakeup = -1

    @property
    def requested(self) -> bool:
        """Whether a stop was asked for while it was postponed."""
        return self._received is not None

    def take_save_request(self) -> bool:
        """Whether a save was asked for since this was last called."""
        wanted, self._is_save_wanted = self._is_save_wanted, False
        return wanted

    @property
    def exit_code(self) -> int:
        """128 + the number of the first signal, as shells count; 0 when there was none."""
        return 0 if self._received is None else 128 + self._received

    @contextlib.contextmanager
    def postponed(self, on_request: Callable[[], None]) -> Iterator[None]:
        """The first signal only sets `requested`, and calls `on_request` from the listener."""
        self._on_request = on_request
        try:
            yield
        finally:
            self._on_request = None

    def __enter__(self) -> StopSignals:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._listener = threading.Thread(target=self._listen, name="stop-signals", daemon=True)
        self._listener.start()
        self._previous_wakeup = signal.set_wakeup_fd(
            self._writer.fileno(), warn_on_full_buffer=False
        )
        for number in _SAVING:
            self._previous_handlers[number] = signal.signal(number, self._handle_save)
        for number in _STOPPING:
            # nohup has it ignored, for the run to outlive its terminal.
            if number not in _HANGING_UP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous_handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._writer.send(b"\0")
        self._listener.join()
        self._writer.close()
        self._reader.close()

    def _handle_save(self, _number: int, _frame: FrameType | None) -> None:
        # Before training there is nothing to save, and nothing is lost.
        self._is_save_wanted = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # Runs in the main thread between two bytecodes; the listener was usually here before.
        if self._on_request is not None:
            self._received = self._received or number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    def _listen(self) -> None:
        first: int | None = None
        while True:
            is_leaving = first is not None and self._on_request is None
            self._reader.settimeout(_GRACE_SECONDS if is_leaving else None)
            try:
                number = self._reader.recv(1)[0]
            except TimeoutError:
                # Unless training began in the very moment of the signal: then that will see it.
                if self._on_request is None:
                    self._exit(first or 0)
                continue
            if number == 0:
                return
            if number not in _STOPPING:
                continue
            if first is not None:
                if number in _HANGING_UP:
                    continue
                self._exit(number)
            first = number
            if self._on_request is not None:
                self._received = number
                self._on_request()

    def _exit(self, number: int) -> None:
        self._before_exit()
        os._exit(128 + number)
