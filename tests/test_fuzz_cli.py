"""Commands on damaged files: they end well, or with one line and exit code 1, never a traceback.

Nor do they call it a bug: that line is for what nobody thought of.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO

import pytest

from andrea.cli import main
from andrea.formats.hf import export_hf
from cli_process import TINY_RUN, Shell
from fuzz.campaign import seeds_for
from fuzz.checkpoints import damage_sealed
from fuzz.damage import damage_bytes, damage_json
from small_weights import small_tokenizer, small_weights

SECONDS = 20.0


@contextlib.contextmanager
def past_python() -> Iterator[IO[bytes]]:
    """The file that the process's standard error goes to for a while."""
    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


class Damaged:
    """A run whose files get damaged, one after the other, and are whole again for the next case."""

    def __init__(self, folder: Path) -> None:
        self.shell = Shell(folder)
        options = ("--steps", "3", "--out", "run", "--save-every", "2")
        code, _, err = self.call("train", "book.txt", *TINY_RUN, *options)
        assert (code, err) == (0, "")
        # Its first step breaks it: what the others were is recorded.
        wild = (*TINY_RUN, "--steps", "3", "--learning-rate", "1e30", "--out", "wild")
        code, _, err = self.call("train", "book.txt", *wild)
        assert (code, err) == (0, "")
        sizes = {"block_size": 8, "n_layer": 1, "n_embd": 8, "n_head": 2}
        export_hf(small_weights(small_tokenizer("bpe"), **sizes), folder / "hub")
        self.runs = folder / "run", folder / "wild", folder / "hub"
        files = [path for run in self.runs for path in run.rglob("*") if path.is_file()]
        self.good = {path: path.read_bytes() for path in files}
        records = [{"text": f"record {number} has a text"} for number in range(30)]
        self.records = "".join(json.dumps(record) + "\n" for record in records).encode()

    def file(self, pattern: str) -> Path:
        """The newest file of a run whose name matches."""
        return max(path for path in self.good if path.match(pattern))

    def restore(self) -> None:
        for run in self.runs:
            for path in run.rglob("*"):
                if path.is_file() and path not in self.good:
                    path.unlink()
        for path, content in self.good.items():
            path.write_bytes(content)

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """A command in this process: exit code, standard output and error.

        Error is also what libraries write past Python, as a panic of Rust does.
        """
        out, err = io.StringIO(), io.StringIO()
        before = os.getcwd()
        os.chdir(self.shell.folder)
        with past_python() as said:
            try:
                with (
                    pytest.MonkeyPatch.context() as patch,
                    contextlib.redirect_stdout(out),
                    contextlib.redirect_stderr(err),
                    pytest.raises(SystemExit) as ended,
                ):
                    patch.setenv("XDG_CACHE_HOME", str(self.shell.folder / ".cache"))
                    main.main(list(arguments), prog_name="andrea")
            finally:
                os.chdir(before)
            said.seek(0)
            errors = said.read().decode("utf-8", "replace") + err.getvalue()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out.getvalue(), errors


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    return Damaged(tmp_path_factory.mktemp("damaged"))


def checkpoint(random: Random, damaged: Damaged) -> None:
    """The newest one; often there is no other to fall back to."""
    path = damaged.file("run/checkpoints/step-*")
    if random.random() < 0.6:
        for other in path.parent.iterdir():
            other.unlink()
    how = random.choice((damage_bytes, damage_sealed))
    path.write_bytes(how(random, damaged.good[path]))


def what_a_resume_reads(random: Random, damaged: Damaged) -> None:
    """Not the sizes of batches and the like: those of another run are none to wait for."""
    path = damaged.file("run/checkpoints/step-*")
    entries = ("tokenizer", "state", "record", "optimizer_steps")
    path.write_bytes(damage_sealed(random, damaged.good[path], entries))


def run_log(random: Random, damaged: Damaged) -> None:
    path = damaged.file("run/log.jsonl")
    lines = damaged.good[path].splitlines()
    where = random.randrange(len(lines))
    if random.random() < 0.7:
        lines[where] = json.dumps(damage_json(random, json.loads(lines[where]))).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
    else:
        path.write_bytes(damage_bytes(random, damaged.good[path]))


def configuration(random: Random, damaged: Damaged) -> None:
    path = damaged.file("run/config.toml")
    path.write_bytes(damage_bytes(random, damaged.good[path]))


def incident(random: Random, damaged: Damaged) -> None:
    path = damaged.file("wild/incidents/*.npz")
    path.write_bytes(damage_bytes(random, damaged.good[path]))


def hub(random: Random, damaged: Damaged) -> None:
    """A folder of another program, most often what its tokenizer.json says."""
    name = random.choice(("tokenizer.json", "tokenizer.json", "config.json", "model.safetensors"))
    path = damaged.file(f"hub/{name}")
    if name.endswith(".json") and random.random() < 0.8:
        path.write_text(json.dumps(damage_json(random, json.loads(damaged.good[path]))))
    else:
        path.write_bytes(damage_bytes(random, damaged.good[path]))


def records(random: Random, damaged: Damaged) -> None:
    (damaged.shell.folder / "records.jsonl").write_bytes(damage_bytes(random, damaged.records))


# Name, what is damaged, and the command that reads it.
CASES = {
    "info": (checkpoint, ("info", "run")),
    "sample": (checkpoint, ("sample", "run", "--tokens", "5")),
    "eval": (checkpoint, ("eval", "run", "book.txt", "--json")),
    "init-from": (checkpoint, ("train", "book.txt", "--init-from", "run", "--steps", "1", "--out")),
    "replay": (incident, ("replay", "wild")),
    "replay of a step": (incident, ("replay", "wild", "--step", "3")),
    "resume": (what_a_resume_reads, ("train", "--resume", "run", "--steps", "4")),
    "resume with its log": (run_log, ("train", "--resume", "run", "--steps", "4")),
    "report": (run_log, ("report", "run", "--out", "page.html")),
    "metrics": (run_log, ("metrics", "run")),
    "config": (configuration, ("train", "--config", "run/config.toml", "--steps", "1", "--out")),
    "import": (hub, ("import", "hub", "--out")),
    "records": (records, ("train", "records.jsonl", *TINY_RUN, "--steps", "1", "--out")),
}


def run_case(name: str, seed: int, damaged: Damaged) -> bool:
    """One case; whether the command ended well."""
    damage, arguments = CASES[name]
    damaged.restore()
    damage(Random(seed), damaged)
    if arguments[-1] == "--out":
        arguments = (*arguments, f"{name}-{seed}")
    code, _, err = damaged.call(*arguments)
    assert "Traceback" not in err, f"seed {seed}: {err}"
    if code == 2:  # click's: an option that cannot be
        assert "Error: " in err and name == "config", f"seed {seed}: {err}"
    elif code:
        is_line = err.startswith("andrea: ") and err.endswith("\n") and err.count("\n") == 1
        assert code == 1 and is_line, f"seed {seed}: exit code {code}, {err!r}"
        assert "a bug in andrea" not in err, f"seed {seed}: {err}"
    return code == 0


@pytest.mark.parametrize("name", CASES)
def test_commands_on_damaged_files(name: str, damaged: Damaged) -> None:
    count = 4 if name in ("eval", "init-from") else 12
    ended_well = [run_case(name, seed, damaged) for seed in range(count)]
    if CASES[name][0] is run_log:
        assert any(ended_well)  # the past of a run is no reason to refuse its future
    else:
        assert not all(ended_well)


@pytest.mark.complete
@pytest.mark.parametrize("name", CASES)
def test_commands_on_damaged_files_for_a_while(name: str, damaged: Damaged) -> None:
    for seed in seeds_for(SECONDS, first=1000):
        run_case(name, seed, damaged)
