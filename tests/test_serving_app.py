"""The application without a network: what the others' tests cannot bring about from outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from andrea.errors import OutOfMemoryError
from andrea.serving.batch import Batch
from andrea.serving.chat import TEMPLATES
from andrea.serving.requests import Served
from andrea.serving.writer import BatchWriter
from extras import needs
from patience import PATIENCE
from served_model import BLOCK_SIZE, byte_model, byte_tokenizer

pytestmark = needs("starlette", extra="serve")
if find_spec("starlette") is not None:
    from andrea.serving import app

TOKENIZER = byte_tokenizer()
SERVED = Served("toy", TOKENIZER, BLOCK_SIZE, "", TEMPLATES["plain"], 100, 2)


@pytest.fixture
def writer() -> Iterator[BatchWriter]:
    with BatchWriter(byte_model(), TOKENIZER, parallel=2, queue=0) as writer:
        yield writer


async def ask(
    service: app.Service, body: bytes, *, stalls: bool = False
) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, headers and body of the answer to a completion; one that stalls lacks its end."""
    parts = [{"type": "http.request", "body": body, "more_body": stalls}]
    told: list[Any] = []

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await asyncio.sleep(2 * PATIENCE)

    async def send(message: Any) -> None:
        told.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    await asyncio.wait_for(service.application()(scope, receive, send), PATIENCE)  # type: ignore[arg-type]
    return told[0]["status"], dict(told[0]["headers"]), b"".join(m["body"] for m in told[1:])


@pytest.mark.parametrize("stream", [False, True])
def test_a_failing_engine_is_told_at_the_terminal(
    writer: BatchWriter, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def fail(_self: Batch) -> Any:
        raise OutOfMemoryError("no room for secrets of the machine")

    monkeypatch.setattr(Batch, "logits", fail)
    errors: list[Exception] = []
    service = app.Service(SERVED, writer, on_error=errors.append)
    body = json.dumps({"prompt": "a", "stream": stream}).encode()
    status, _, told = asyncio.run(ask(service, body))
    assert [str(error) for error in errors] == ["no room for secrets of the machine"]
    assert status == (200 if stream else 500) and b"secrets" not in told
    error = json.loads(told.removeprefix(b"data: "))["error"]
    assert error["type"] == "server_error" and "terminal" in error["message"]


def test_a_body_that_never_ends_is_given_up(
    writer: BatchWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_BODY_SECONDS", 0.05)
    service = app.Service(SERVED, writer)
    status, headers, told = asyncio.run(ask(service, b'{"prompt": "a"', stalls=True))
    assert status == 408 and headers[b"connection"] == b"close"
    assert "did not come within" in json.loads(told)["error"]["message"]


def test_a_writer_that_is_closed(writer: BatchWriter) -> None:
    service = app.Service(SERVED, writer)
    assert asyncio.run(ask(service, b'{"prompt": "a", "max_tokens": 3}'))[0] == 200
    writer.close()
    service.is_stopping = True
    status, headers, told = asyncio.run(ask(service, b'{"prompt": "a"}'))
    assert status == 503 and b"retry-after" in headers
    assert json.loads(told)["error"]["code"] == "stopping"
