"""The HTTP side: routes, limits on what comes in, streams of events, and the page at /.

Needs the extra `serve` (Starlette). Everything runs in one asyncio loop but the writing itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from andrea.errors import StateError

from .answers import Answer
from .errors import RequestError
from .fields import parse_object
from .requests import Request, Served, parse_chat, parse_completion
from .text import Piece
from .writer import BatchWriter

_MOST_BYTES = 2**20
_MOST_DISCARDED = 2**24  # of a body that is too large: who still sends doesn't hear the refusal
_BODY_SECONDS = 30.0  # a body comes in within this time
_RETRY_SECONDS = 1
_CLOSED_REQUEST = 499  # nobody reads it: the client is gone
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
}
_PAGE = {"": ("page.html", "text/html"), "page.css": ("page.css", "text/css")}
_PAGE["page.js"] = ("page.js", "text/javascript")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

Handler = Callable[[HttpRequest], Awaitable[Response]]


class Service:
    """What the routes do, for one model.

    hosts: names that a request may be addressed to, None: any. A server that only this machine can
    reach must refuse others, or any web page could reach it by a name that it points here.
    on_error hears of failures that are not the client's.
    """

    def __init__(
        self,
        served: Served,
        writer: BatchWriter,
        *,
        hosts: tuple[str, ...] | None = LOCAL_NAMES,
        on_error: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._served = served
        self._writer = writer
        self._hosts = hosts
        self._on_error = on_error
        self._created = int(time.time())
        self.is_stopping = False

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self._guarded(self._health)),
            Route("/v1/models", self._guarded(self._models)),
            Route("/v1/models/{name:path}", self._guarded(self._model)),
            Route("/v1/completions", self._guarded(self._completions), methods=["POST"]),
            Route("/v1/chat/completions", self._guarded(self._chat), methods=["POST"]),
            *(Route(f"/{name}", self._guarded(self._file)) for name in _PAGE),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})

    def _guarded(self, handler: Handler) -> Handler:
        """A handler whose errors become answers."""

        async def guarded(http: HttpRequest) -> Response:
            try:
                self._check_host(http)
                return await handler(http)
            except RequestError as error:
                return _refusal(error)
            except asyncio.CancelledError:
                if not self.is_stopping:
                    raise
                return _refusal(RequestError("the server is stopping", status=503))
            except ClientDisconnect:
                return Response(status_code=_CLOSED_REQUEST)
            except Exception as error:
                return _refusal(self._server_error(error))

        return guarded

    def _server_error(self, error: Exception) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, StateError) and self.is_stopping:
            return RequestError(str(error), status=503, code="stopping")
        self._on_error(error)
        return RequestError("the server could not go on: its terminal says why", status=500)

    def _check_host(self, http: HttpRequest) -> None:
        host = http.headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._hosts is not None and name.lower() not in self._hosts:
            raise RequestError("this server answers to localhost alone", status=403)

    # ---- routes

    async def _health(self, _http: HttpRequest) -> Response:
        facts = {
            "status": "stopping" if self.is_stopping else "ok",
            "model": self._served.name,
            "writing": self._writer.num_writing,
            "waiting": self._writer.num_waiting,
        }
        return _json(facts, status=503 if self.is_stopping else 200)

    def _description(self) -> dict[str, Any]:
        served = self._served
        return {
            "id": served.name,
            "object": "model",
            "created": self._created,
            "owned_by": "andrea",
            "context_length": served.block_size,
            "max_tokens": served.most_tokens,
            "tokenizer": served.tokenizer.describe(),
            "chat": f"A base model: chat completions go on with {served.template.describe}.",
        }

    async def _models(self, _http: HttpRequest) -> Response:
        return _json({"object": "list", "data": [self._description()]})

    async def _model(self, http: HttpRequest) -> Response:
        if http.path_params["name"] != self._served.name:
            raise RequestError(
                "there is no such model; GET /v1/models lists what there is",
                status=404,
                field="model",
                code="model_not_found",
            )
        return _json(self._description())

    async def _file(self, http: HttpRequest) -> Response:
        name, kind = _PAGE[http.url.path.removeprefix("/")]
        data = resources.files("andrea.serving").joinpath(name).read_bytes()
        return Response(data, media_type=kind, headers={**_SECURITY, "Cache-Control": "no-cache"})

    async def _completions(self, http: HttpRequest) -> Response:
        return await self._answer(http, parse_completion)

    async def _chat(self, http: HttpRequest) -> Response:
        return await self._answer(http, parse_chat)

    # ---- writing

    async def _answer(
        self, http: HttpRequest, parse: Callable[[dict[str, Any], Served], Request]
    ) -> Response:
        request = parse(parse_object(await _read_body(http)), self._served)
        pieces = _Pieces(self._writer, request)
        answer = Answer(request, self._served)
        if request.streams:
            return StreamingResponse(
                self._events(answer, pieces),
                media_type="text/event-stream",
                headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
                background=BackgroundTask(pieces.close_later),
            )
        gone = asyncio.ensure_future(_until_gone(http))
        written = asyncio.ensure_future(_collect(answer, pieces))
        try:
            await asyncio.wait({gone, written}, return_when=asyncio.FIRST_COMPLETED)
            if not written.done():
                raise ClientDisconnect
            written.result()
            return _json(answer.whole())
        finally:
            for task in (gone, written):
                task.cancel()
            pieces.close()

    async def _events(self, answer: Answer, pieces: _Pieces) -> AsyncIterator[bytes]:
        try:
            for event in answer.opening():
                yield _event(event)
            while not answer.is_whole:
                index, piece = await pieces.next()
                told = answer.event(index, piece)
                if told is not None:
                    yield _event(told)
            for event in answer.closing():
                yield _event(event)
            yield b"data: [DONE]\n\n"
        except Exception as error:
            yield _event(self._server_error(error).body())
        finally:
            pieces.close()


class _Pieces:
    """The pieces of a request's texts, brought from the writing thread into the loop."""

    def __init__(self, writer: BatchWriter, request: Request) -> None:
        loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue()
        self._writer = writer

        def deliver(index: int, piece: Piece | Exception) -> None:
            loop.call_soon_threadsafe(self._queue.put_nowait, (index, piece))

        self._ticket = writer.submit(request.wishes, deliver)

    async def next(self) -> tuple[int, Piece]:
        """The next piece; raises what kept a text from being written."""
        # A queue that is not empty gives at once. But the loop has to have its turn: others wait,
        # and this client may be gone.
        await asyncio.sleep(0)
        index, piece = await self._queue.get()
        if isinstance(piece, Exception):
            raise piece
        return index, piece

    def close(self) -> None:
        """Let the texts be written no further."""
        self._writer.cancel(self._ticket)

    async def close_later(self) -> None:
        """The same, for a stream that ended before its first event."""
        self.close()


async def _collect(answer: Answer, pieces: _Pieces) -> None:
    while not answer.is_whole:
        answer.add(*await pieces.next())


async def _until_gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _read_body(http: HttpRequest) -> bytes:
    """The body, if it is JSON by its header and not too large.

    Only JSON: what a form of another web page can send here is not.
    """
    kind = http.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError("the content type must be application/json", status=415)
    too_large = RequestError(
        f"the body is larger than {_MOST_BYTES:,} bytes", status=413, code="request_too_large"
    )
    length = http.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > _MOST_DISCARDED:
        raise too_large

    async def read() -> bytes:
        body, size = bytearray(), 0
        async for part in http.stream():
            size += len(part)
            if size <= _MOST_BYTES:
                body += part
            elif size > _MOST_DISCARDED:
                break
        if size > _MOST_BYTES:
            raise too_large
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), _BODY_SECONDS)
    except asyncio.TimeoutError as error:
        raise RequestError(
            f"the body did not come within {_BODY_SECONDS:g} seconds", status=408
        ) from error


def _dump(value: Mapping[str, Any]) -> bytes:
    # ASCII: a text may hold lone surrogates, which UTF-8 has no bytes for.
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(_dump(value), status, media_type="application/json")


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + _dump(value) + b"\n\n"


def _refusal(error: RequestError) -> Response:
    answer = _json(error.body(), error.status)
    if error.status in (429, 503):
        answer.headers["Retry-After"] = str(_RETRY_SECONDS)
    if error.status in (408, 413):
        answer.headers["Connection"] = "close"  # what is still on its way is not read
    return answer


async def _no_such_route(http: HttpRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        message = f"there is no {http.url.path[:100]} here; the interface is below /v1"
    else:
        message = f"{http.url.path[:100]} does not take {http.method}"
    answer = _json(RequestError(message, status=status).body(), status)
    if isinstance(error, HTTPException) and error.headers:
        answer.headers.update(error.headers)
    return answer
