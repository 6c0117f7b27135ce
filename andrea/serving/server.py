"""From a loaded model to a server that answers, and that ends without breaking answers off."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from andrea.errors import ArgumentError, LibraryError

if TYPE_CHECKING:
    from .app import Service

_PARTS = ("starlette", "uvicorn")


def require_parts() -> None:
    """Refuse to begin where the server's libraries are not installed.

    Raises:
        LibraryError: one of them is missing.
    """
    missing = [name for name in _PARTS if importlib.util.find_spec(name) is None]
    if missing:
        raise LibraryError(
            f"serving needs {' and '.join(missing)}: install them with pip install 'andrea[serve]'"
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0 takes a free one.

    Raises:
        ArgumentError: there is no such address here, or the port is taken.
    """
    try:
        if port > 65535:  # which some systems would wrap
            raise OverflowError("ports end at 65535")
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ArgumentError(
            f"cannot listen on {host} port {port}: {why}; choose others with --host and --port"
        ) from error


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def address_of(listener: socket.socket) -> str:
    """Where it answers, as a browser wants it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    service: Service,
    listener: socket.socket,
    *,
    grace_seconds: int,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Answer until SIGINT or SIGTERM; begun answers may take grace_seconds more.

    A second SIGINT ends them at once. on_stop is called when a signal has come. Without signals
    where this is not the main thread.
    """
    import uvicorn

    config = uvicorn.Config(
        service.application(),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,
    )
    server = uvicorn.Server(config)

    async def watch() -> None:
        while not server.should_exit:
            await asyncio.sleep(0.05)
        service.is_stopping = True
        on_stop()

    async def run() -> None:
        watching = asyncio.create_task(watch())
        try:
            await server.serve(sockets=[listener])
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    with _handling_signals(stop):
        asyncio.run(run())


@contextlib.contextmanager
def _handling_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Before uvicorn has its own handlers, and after, when it sends itself the signal again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
