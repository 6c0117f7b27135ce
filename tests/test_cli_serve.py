"""`andrea serve` as a process: what it says, how it ends, what keeps it from beginning."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from typing import Any

import pytest

from andrea.serving import server as serving
from cli_process import Shell
from extras import needs
from patience import wait_until
from served_model import ENDLESS, Server, byte_run

pytestmark = needs("starlette", "uvicorn", extra="serve")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    folder = tmp_path_factory.mktemp("serve")
    byte_run(folder / "toy")
    return Shell(folder)


def test_it_says_where_it_is_and_ends_as_it_is_told(shell: Shell) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with Server(shell, shell.folder / "toy", "--name", "my model") as server:
            assert server.lines[0].startswith("my model (") and "on cpu" in server.lines[0]
            assert server.lines[1].split() == ["page", f"{server.address}/"]
            assert server.ask("/v1/models")[2]["data"][0]["id"] == "my model"
            server.stop(number)
            assert server.ended() == (0, "", "")


class _Request(threading.Thread):
    """A request whose answer takes a while."""

    def __init__(self, server: Server, max_tokens: int, **changes: Any) -> None:
        super().__init__()
        self._server = server
        self._body = {"prompt": "a", "max_tokens": max_tokens, "logit_bias": ENDLESS, **changes}
        self.status = 0
        self.told = b""
        self.start()
        wait_until(lambda: server.ask("/health")[2]["writing"] > 0, "the answer's beginning")

    def run(self) -> None:
        connection = self._server.connect()
        headers = {"Content-Type": "application/json"}
        try:
            connection.request("POST", "/v1/completions", json.dumps(self._body), headers)
            answer = connection.getresponse()
            self.status, self.told = answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_begun_is_written_to_its_end(shell: Shell, stream: bool) -> None:
    with Server(shell, shell.folder / "toy") as server:
        request = _Request(server, 3000, stream=stream)
        server.stop()
        request.join()
        code, _, err = server.ended()
    assert request.status == 200
    if stream:
        assert request.told.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(request.told)["usage"]["completion_tokens"] == 3000
    assert (code, err) == (
        0,
        "andrea: stopping once 1 text is written; Ctrl-C again ends at once\n",
    )


def test_patience_ends(shell: Shell) -> None:
    options = ("--grace", "0", "--max-tokens", "100000000")
    with Server(shell, shell.folder / "toy", *options) as server:
        request = _Request(server, 100_000_000)
        server.stop()
        code, _, err = server.ended()
        request.join()
    assert code == 0 and err.count("\n") == 1 and "Traceback" not in err
    assert request.status == 503 and "stopping" in json.loads(request.told)["error"]["message"]


def begins_nothing(server: Server) -> bool:
    """Whether nobody listens any more."""
    try:
        server.ask("/v1/completions", {"prompt": "a"})
    except OSError:
        return True
    return False


def test_it_begins_nothing_while_it_stops_and_a_second_interrupt_ends_it(shell: Shell) -> None:
    with Server(shell, shell.folder / "toy", "--max-tokens", "100000000") as server:
        request = _Request(server, 100_000_000, stream=True)
        server.stop(signal.SIGINT)
        assert server.process.stderr is not None and server.process.stderr.readline()
        wait_until(lambda: begins_nothing(server), "the end of its listening")
        server.stop(signal.SIGINT)
        code, _, err = server.ended()
        request.join()
    assert code == 0 and err == ""


def test_a_port_that_is_taken(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = shell.refuse("serve", "toy", "--port", port)
    assert f"port {port}: Address already in use" in line and "--port" in line


def test_addresses_that_are_none(shell: Shell) -> None:
    for options in (("--host", "192.0.2.1"), ("--port", "70000"), ("--host", "x" * 300)):
        assert "cannot listen on" in shell.refuse("serve", "toy", *options)


def test_a_run_that_is_none(shell: Shell) -> None:
    assert "isn't there" in shell.refuse("serve", "nothing", "--port", "0")


def test_without_its_libraries_it_says_what_to_install(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_PARTS", ("starlette", "no_such_library"))
    line = shell.refuse("serve", "toy", "--port", "0")
    assert "needs no_such_library: install" in line and "andrea[serve]" in line


def test_beyond_this_machine_only_when_asked_to(shell: Shell) -> None:
    options = ("--host", "0.0.0.0", "--chat", "plain")
    with Server(shell, shell.folder / "toy", *options) as server:
        assert server.ask("/health", None, Host="somewhere.example")[0] == 200
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
        assert server.ask("/v1/chat/completions", body)[2]["usage"]["prompt_tokens"] == 5
        server.stop()
        code, _, err = server.ended()
    assert code == 0 and err == (
        "andrea: whoever reaches this machine can use the model: there is no password\n"
    )
