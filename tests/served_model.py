"""A run whose model is small and untrained, and `andrea serve` as a process that answers for it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import andrea
from andrea.runs.folder import RunFolder
from andrea.tokenizers import Tokenizer, train_tokenizer
from andrea.training import TrainState
from cli_process import Shell
from patience import PATIENCE
from small_runs import small_config

BLOCK_SIZE = 64
# A new document would end a text early: an untrained model begins one after every 257th token.
ENDLESS = {"256": -100}


def byte_tokenizer() -> Tokenizer:
    return train_tokenizer("byte", [""]).tokenizer


def byte_model(block_size: int = BLOCK_SIZE) -> andrea.GPT:
    config = andrea.ModelConfig(
        vocab_size=257, block_size=block_size, n_layer=2, n_head=2, n_embd=32
    )
    model = andrea.GPT(config, seed=5, precision="fp32")
    # Untrained, all tokens are alike; so some are likelier than others, and it repeats itself less.
    for tensor in model.parameters().values():
        tensor *= 6.0 if tensor.ndim == 2 else 1.0
    model.refresh()
    return model


def byte_run(folder: Path) -> Path:
    """The folder of a run with `byte_model`."""
    model = byte_model()
    with RunFolder.create(
        folder, model=model.config, train=small_config(), tokenizer=byte_tokenizer()
    ) as run:
        run.save(model, TrainState())
    return folder


class Server:
    """`andrea serve` on a free port; use it in a `with`."""

    def __init__(self, shell: Shell, run: Path, *options: str) -> None:
        self.process = shell.begin("serve", run, "--port", "0", *options, stdout=subprocess.PIPE)
        self.lines: list[str] = []
        assert self.process.stdout is not None
        late = threading.Timer(PATIENCE, self.process.kill)
        late.start()
        try:
            while not self.lines or "Ctrl-C" not in self.lines[-1]:
                line = self.process.stdout.readline().decode("utf-8")
                assert line, self.ended()
                self.lines.append(line)
        finally:
            late.cancel()
        found = re.search(r"http://\S+:(\d+)/v1", self.lines[-1])
        assert found, self.lines
        self.port = int(found[1])
        self.address = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def ended(self) -> tuple[int, str, str]:
        """Exit code and output, once it has ended."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out.decode("utf-8"), err.decode("utf-8")

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of an answer; a body that is no bytes is sent as JSON."""
        connection = self.connect()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            names = {"Content-Type": "application/json"} if body is not None else {}
            names |= {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET" if body is None else "POST", path, data, names)
            answer = connection.getresponse()
            told = answer.read()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, fields, json.loads(told)
        finally:
            connection.close()

    def refused(self, path: str, body: Any, **headers: str) -> tuple[int, str | None, str]:
        """Status, field and message of a request that is refused."""
        status, _, told = self.ask(path, body, **headers)
        error = told["error"]
        assert status >= 400 and "\n" not in error["message"], told
        return status, error["param"], error["message"]
