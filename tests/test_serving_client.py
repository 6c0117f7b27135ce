"""`andrea serve` as OpenAI's own client sees it, and as raw HTTP does; one process for all."""

from __future__ import annotations

import concurrent.futures
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea.sampling import SamplingConfig
from andrea.writing import generate_texts
from cli_process import Shell
from extras import needs
from patience import PATIENCE, wait_until
from served_model import BLOCK_SIZE, ENDLESS, Server, byte_model, byte_run, byte_tokenizer

pytestmark = needs("starlette", "uvicorn", extra="serve")

TOKENIZER = byte_tokenizer()
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serving")
    run = byte_run(folder / "runs" / "toy")
    options = ("--parallel", "3", "--queue", "2", "--max-tokens", "1000000")
    with Server(Shell(folder), run, *options) as server:
        yield server
        assert server.process.poll() is None
        server.stop()
        assert server.ended() == (0, "", "")  # no request made it complain


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    openai = pytest.importorskip("openai", reason="openai's client is not installed")
    return openai.OpenAI(
        base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    )


def expected(prompt: str, count: int = 1, max_tokens: int = 30, seed: int = 0) -> list[str]:
    """What `andrea sample` writes with the same model."""
    texts = [""] * count
    pieces = generate_texts(
        byte_model(),
        TOKENIZER,
        prompt,
        num_samples=count,
        max_tokens=max_tokens,
        sampling=SamplingConfig(temperature=0.8, top_p=0.95),
        seed=seed,
    )
    for index, piece in pieces:
        texts[index] += piece
    return texts


SETTINGS = {"model": "toy", "temperature": 0.8, "top_p": 0.95, "max_tokens": 30}


# ---- OpenAI's client


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("toy", "model", "andrea")
    assert model.context_length == BLOCK_SIZE and "base model" in model.chat
    assert client.models.retrieve("toy").id == "toy"


def test_completions(client: Any) -> None:
    answer = client.completions.create(prompt="To be", n=2, seed=4, **SETTINGS)
    assert [choice.text for choice in answer.choices] == expected("To be", 2, seed=4)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert {choice.finish_reason for choice in answer.choices} <= {"length", "stop"}
    usage = answer.usage
    assert usage.prompt_tokens == 5 and usage.total_tokens == 5 + usage.completion_tokens
    assert answer.model == "toy" and abs(answer.created - time.time()) < 60


def test_completions_stream(client: Any) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = list(client.completions.create(prompt="To be", n=2, seed=4, **SETTINGS, **options))
    texts = ["", ""]
    for event in events[:-1]:
        (choice,) = event.choices
        texts[choice.index] += choice.text
    assert texts == expected("To be", 2, seed=4)
    reasons = [event.choices[0].finish_reason for event in events[:-1]]
    assert sum(reason is not None for reason in reasons) == 2
    assert events[-1].choices == [] and events[-1].usage.prompt_tokens == 5
    assert len({event.id for event in events}) == 1 and len(events) > 20


def test_several_prompts_and_tokens(client: Any) -> None:
    prompts = ["To be", "or not"]
    answer = client.completions.create(prompt=prompts, seed=1, **SETTINGS)
    assert [choice.text for choice in answer.choices] == [
        expected(prompt, seed=1)[0] for prompt in prompts
    ]
    tokens = TOKENIZER.encode("To be").tolist()
    same = client.completions.create(prompt=tokens, seed=1, **SETTINGS)
    assert same.choices[0].text == answer.choices[0].text
    echoed = client.completions.create(prompt="To be", seed=1, echo=True, **SETTINGS)
    assert echoed.choices[0].text == "To be" + answer.choices[0].text


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(messages=HELLO, seed=2, **SETTINGS)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == expected("User: Hello\nAssistant:", seed=2)[0].lstrip()
    assert answer.object == "chat.completion" and answer.usage.prompt_tokens == 22
    events = client.chat.completions.create(messages=HELLO, seed=2, stream=True, **SETTINGS)
    deltas = [event.choices[0].delta for event in events]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content


def test_stop(client: Any) -> None:
    whole = expected("To be", max_tokens=30, seed=4)[0]
    stop = whole[10:12]
    for stream in (False, True):
        told = client.completions.create(
            prompt="To be", seed=4, stop=[stop, "never"], stream=stream, **SETTINGS
        )
        choices = [event.choices[0] for event in told] if stream else [told.choices[0]]
        assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
        assert choices[-1].finish_reason == "stop"


def test_logprobs_of_completions(client: Any) -> None:
    answer = client.completions.create(
        prompt="To be", seed=4, logprobs=2, logit_bias=ENDLESS, **SETTINGS
    )
    (choice,) = answer.choices
    odds = choice.logprobs
    assert len(odds.tokens) == len(odds.token_logprobs) == len(odds.text_offset) == 30
    for token, logprob, likeliest, offset in zip(
        odds.tokens, odds.token_logprobs, odds.top_logprobs, odds.text_offset, strict=True
    ):
        assert likeliest[token] == logprob < 0 and 2 <= len(likeliest) <= 3
        if not token.startswith("bytes:"):
            # Bytes before it that make no character are shown with it.
            assert token in choice.text[offset : offset + 3]


def test_logprobs_of_chat_are_those_of_the_model(client: Any) -> None:
    settings = {**SETTINGS, "logit_bias": ENDLESS, "logprobs": True, "top_logprobs": 4}
    whole = client.chat.completions.create(messages=HELLO, seed=2, **settings)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == 30
    written = [entry.bytes[0] for entry in entries]
    prompt = TOKENIZER.encode("User: Hello\nAssistant:").tolist()
    logits = byte_model().logits(np.array([prompt + written[:-1]]))[0, len(prompt) - 1 :]
    logits = logits.astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for entry, row in zip(entries, logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[entry.bytes[0]], abs=1e-4)
        likeliest = [each.logprob for each in entry.top_logprobs]
        np.testing.assert_allclose(likeliest, np.sort(row)[::-1][:4], atol=1e-4)
    events = client.chat.completions.create(messages=HELLO, seed=2, stream=True, **settings)
    streamed = [
        entry
        for event in events
        if event.choices[0].logprobs
        for entry in event.choices[0].logprobs.content
    ]
    assert [(e.bytes, round(e.logprob, 3)) for e in streamed] == [
        (e.bytes, round(e.logprob, 3)) for e in entries
    ]


def test_errors_are_those_of_the_client(client: Any) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match='"toy" does'):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        client.completions.create(model="toy", prompt="a", temperature=-1)
    assert refused.value.param == "temperature" and refused.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "x" * 99}]
        )
    assert refused.value.code == "context_length_exceeded"


def test_many_clients_at_once(client: Any) -> None:
    """More than are written at once: some wait, and each gets its own text."""

    def write(seed: int) -> str:
        answer = client.completions.create(prompt="To be", seed=seed, **SETTINGS)
        return str(answer.choices[0].text)

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        assert list(pool.map(write, range(15))) == [
            expected("To be", seed=seed)[0] for seed in range(15)
        ]


# ---- what HTTP says


def until(server: Server, **wanted: int) -> None:
    """Wait for so many texts that are written, or that wait."""

    def told() -> bool:
        health = server.ask("/health")[2]
        return all(health[name] == number for name, number in wanted.items())

    wait_until(told, wanted)


def endless(**changes: Any) -> dict[str, Any]:
    return {"prompt": "a", "max_tokens": 1_000_000, "logit_bias": ENDLESS, **changes}


def begin(server: Server, **changes: Any) -> socket.socket:
    """Send a request whose answer has no end, and don't wait for it."""
    body = json.dumps(endless(**changes)).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_that_nobody_waits_for_is_not_written(server: Server, stream: bool) -> None:
    connections = [begin(server, stream=stream) for _ in range(4)]
    until(server, writing=3, waiting=1)
    for connection in connections:
        connection.close()
    until(server, writing=0, waiting=0)


def test_too_many_at_once_are_refused(server: Server) -> None:
    connections = [begin(server, stream=True, n=n) for n in (3, 2)]
    try:
        until(server, writing=3, waiting=2)
        status, headers, told = server.ask("/v1/completions", {"prompt": "a"})
        assert (status, headers["retry-after"]) == (429, "1")
        assert told["error"]["type"] == "rate_limit_error"
    finally:
        for connection in connections:
            connection.close()
    until(server, writing=0, waiting=0)
    assert server.ask("/v1/completions", {"prompt": "a"})[0] == 200


def test_what_is_too_large_is_refused(server: Server) -> None:
    large = {"prompt": "a" * 2**20}
    assert server.refused("/v1/completions", large)[0] == 413
    # Without a length, it is counted as it comes.
    connection = server.connect()
    parts = iter([b"a" * 2**18] * 4 + [b"a"])
    connection.request("POST", "/v1/completions", parts, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 413
    connection.close()
    assert server.refused("/v1/completions", {"prompt": "a", "n": 4})[:2] == (400, "n")
    assert server.ask("/health")[2]["status"] == "ok"


@pytest.mark.parametrize("field", [f"Content-Length: {2**24 + 1}", "Transfer-Encoding: chunked"])
def test_what_is_far_too_large_is_cut_off(server: Server, field: str) -> None:
    """By its length before it comes; without one, once it has come for too long."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as sender:
        sender.sendall(f"{head}\r\n{field}\r\n\r\n".encode())
        if "chunked" in field:
            with pytest.raises(ConnectionError):
                for _ in range(2**10):
                    sender.sendall(b"10000\r\n" + b"a" * 2**16 + b"\r\n")
        else:
            assert sender.recv(12) == b"HTTP/1.1 413"
    assert server.ask("/health")[2]["status"] == "ok"


def test_only_json_that_is_sent_here_is_taken(server: Server) -> None:
    """Another page can send a form without asking, or point a name of its own to this machine."""
    body = b'{"prompt": "a", "max_tokens": 2}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert server.refused("/v1/completions", body, Content_Type=kind)[0] == 415
    for path in ("/health", "/v1/models"):
        for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example"):
            status, _, told = server.ask(path, None, Host=host)
            assert status == 403 and "localhost" in told["error"]["message"]
        for host in ("localhost", f"LOCALHOST:{server.port}", f"[::1]:{server.port}"):
            assert server.ask(path, None, Host=host)[0] == 200
    assert server.refused("/v1/completions", body, Host="evil.example")[0] == 403


def test_other_ways_lead_nowhere(server: Server) -> None:
    assert server.ask("/v2")[0] == server.ask("/v1/models/other")[0] == 404
    assert server.ask("/../pyproject.toml")[0] == server.ask("/page.html")[0] == 404
    status, headers, told = server.ask("/v1/completions")
    assert status == 405 and "GET" in told["error"]["message"] and headers["allow"] == "POST"
    assert server.refused("/v1/completions", b"{")[0] == 400


def test_lone_surrogates_are_no_accident(server: Server) -> None:
    body = b'{"prompt": "\\ud800a", "echo": true, "max_tokens": 1, "logit_bias": {"66": 100}}'
    status, _, told = server.ask("/v1/completions", body)
    assert status == 200 and told["choices"][0]["text"] == "\ufffdaB"
    assert server.refused("/v1/completions", b'{"model": "\\ud800"}')[0] == 404


def test_the_files_of_the_page(server: Server) -> None:
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/jav")):
        connection = server.connect()
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200 and str(answer.getheader("content-type")).startswith(kind)
        assert "default-src 'none'" in str(answer.getheader("content-security-policy"))
        assert len(answer.read()) > 1000
        connection.close()


def test_a_body_that_stalls_holds_up_nobody(server: Server, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as stalled:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
        stalled.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
        assert server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
