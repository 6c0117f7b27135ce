"""Bad input, one clear line each: what was seen, what to do; and nothing that existed is lost."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_process import ANDREA, TEXT, TINY_RUN, Shell, checkpoints, content_of

LATIN = "Der Bär läuft über die Straße.\n" * 100


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    made = Shell(tmp_path_factory.mktemp("bad"))
    made.succeed("train", "book.txt", *TINY_RUN, "--steps", "3", "--out", "run")
    return made


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no text to train on"),
        (b" \n\t\n", "no text to train on"),
        (b"a", "too short"),
        (bytes(range(256)) * 20, "binary"),
        (LATIN.encode("utf-16"), "--encoding utf-16"),
        (LATIN.encode("utf-16-le"), "--encoding utf-16-le"),
        (LATIN.encode("latin-1"), "--encoding latin-1"),
        (b"\x1f\x8b\x08\x00damaged", "gzip"),
        (b"%PDF-1.4 \xff\xfe", "PDF"),
    ],
)
def test_texts_that_cannot_be_read(shell: Shell, data: bytes, complaint: str) -> None:
    (shell.folder / "odd.txt").write_bytes(data)
    line = shell.refuse("train", "odd.txt", *TINY_RUN, "--steps", "2", "--out", "odd")
    assert complaint in line
    assert not (shell.folder / "odd").exists()


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (LATIN.encode("latin-1"), ("--encoding", "latin-1")),
        (LATIN.encode("utf-16"), ("--encoding", "utf-16")),
        (b"\xef\xbb\xbf" + LATIN.encode(), ()),
    ],
)
def test_the_way_out_works(shell: Shell, data: bytes, encoding: tuple[str, ...]) -> None:
    (shell.folder / "way.txt").write_bytes(data)
    output = shell.succeed("train", "way.txt", *TINY_RUN, "--steps", "1", *encoding)
    assert f"{len(LATIN.encode()) / 1000:.1f} KB" in output


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--block-size", "5000"), "a context of 5,000 needs 5,001"),
        (("--n-head", "3"), "n_embd is 32, n_head is 3"),
        (("--tokenizer", "char", "--vocab-size", "99"), "not 99"),
        (("--tokenizer", "bpe", "--vocab-size", "100"), "257"),
        (("--preset", "andrea-1m"), "andrea-nano"),
        (("--device", "tpu"), "'tpu'"),
        (("--precision", "fp8"), "'fp8'"),
        (("--threads", "5000"), "5000"),
        (("--encoding", "klingon"), "klingon"),
        (("--sample-prompt", "Ω"), "'Ω'"),
        (("--n-embd", "1000000", "--n-layer", "1000"), "smaller"),
        (("--out", "run"), "--resume run"),
        (("--out", "book.txt/run"), "book.txt"),
    ],
)
def test_options_that_do_not_fit(shell: Shell, options: tuple[str, ...], complaint: str) -> None:
    before = content_of(shell.folder / "run")
    arguments = ["--steps", "2", *(() if "--out" in options else ("--out", "misfit"))]
    assert complaint in shell.refuse("train", "book.txt", *TINY_RUN, *arguments, *options)
    assert content_of(shell.folder / "run") == before
    assert not (shell.folder / "misfit").exists()


def test_a_missing_text_and_a_bad_line(shell: Shell) -> None:
    assert "missing.txt: no such file" in shell.refuse("train", "missing.txt")
    (shell.folder / "notes.jsonl").write_text('{"text": "one"}\n{"txt": "two"}\n' * 9)
    line = shell.refuse("train", "notes.jsonl", *TINY_RUN, "--steps", "1")
    assert "notes.jsonl:2: " in line and "--text-key" in line and "--skip-bad" in line


@pytest.mark.parametrize("value", ['out = ""', 'out = "a\\u0000b"', 'init_from = ""'])
def test_paths_of_a_configuration_that_name_nothing(shell: Shell, value: str) -> None:
    """An empty one would be the folder of the file."""
    (shell.folder / "odd.toml").write_text(f"[run]\nsteps = 1\n{value}\n")
    assert "must be a path in quotes" in shell.refuse("train", "--config", "odd.toml")
    (shell.folder / "odd.toml").write_text('[data]\ntext = [""]\n')
    assert "must be a list of paths" in shell.refuse("train", "--config", "odd.toml")


@pytest.mark.parametrize(
    "arguments", [("train", ""), ("train", "--out", ""), ("train", "--resume", ""), ("sample", "")]
)
def test_an_empty_path_is_not_the_current_folder(shell: Shell, arguments: tuple[str, ...]) -> None:
    """A script's unset variable, say."""
    before = content_of(shell.folder)
    done = shell.run(*arguments)
    assert done.returncode == 2 and "the path is empty" in done.stderr
    assert content_of(shell.folder) == before


def test_a_folder_whose_name_looks_like_an_option(shell: Shell) -> None:
    """What is proposed can be pasted."""
    done = shell.call("train", "book.txt", *TINY_RUN, "--steps", "1", "--out=-odd")
    assert "andrea train --resume ./-odd " in done
    shell.call("sample", "./-odd", "--tokens", "2")


def test_names_of_files_cannot_steer_a_terminal(shell: Shell) -> None:
    texts = shell.folder / "strange"
    texts.mkdir()
    (texts / "a\x1b[31m\nb.txt").write_bytes(TEXT.encode())
    assert "\x1b" not in shell.call("train", *texts.iterdir(), *TINY_RUN, "--steps", "1")
    (texts / "a\x1b[31m\nb.txt").write_bytes(b"\xff" * 30)
    assert "\x1b" not in shell.refuse("train", "strange", *TINY_RUN, "--steps", "1")
    assert "\x1b" not in shell.refuse("replay", "no\x1b[31m\nrun")


@pytest.mark.parametrize("command", [("metrics", "--format", "csv"), ("report",)])
def test_nothing_is_written_over_what_a_run_is_made_of(
    shell: Shell, command: tuple[str, ...]
) -> None:
    """A table in place of the log it is made of would leave neither."""
    run = shell.folder / "run"
    before = content_of(run)
    for name in ("log.jsonl", "config.toml", "checkpoints/new.html", "../run/log.jsonl"):
        line = shell.refuse(command[0], "run", *command[1:], "--out", run / name)
        assert "is a part of the run itself" in line
    assert content_of(run) == before


def test_a_folder_that_holds_its_own_run_is_learned_from_again(shell: Shell) -> None:
    texts = shell.folder / "notes"
    texts.mkdir()
    (texts / "one.txt").write_text(TEXT, encoding="utf-8")
    shell.call("train", "notes", *TINY_RUN, "--steps", "1", "--out", "notes/runs/first")
    shell.call("train", "--resume", "notes/runs/first", "--steps", "2")
    shell.call("train", "notes", *TINY_RUN, "--steps", "1", "--out", "notes/runs/second")


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def alter(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


@pytest.mark.parametrize("damage", [truncate, alter, lambda data: b"", lambda data: data[:7]])
@pytest.mark.parametrize("command", [("sample",), ("info",), ("train", "--resume")])
def test_damaged_checkpoints(
    shell: Shell, tmp_path: Path, damage: Callable[[bytes], bytes], command: tuple[str, ...]
) -> None:
    run = tmp_path / "damaged"
    newest = checkpoints(shell.folder / "run")[-1]
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / newest.name).write_bytes(damage(newest.read_bytes()))
    before = content_of(run)
    line = shell.refuse(*command, run)
    assert newest.name in line
    assert content_of(run) == before


def test_a_full_disk_loses_nothing(shell: Shell) -> None:
    """A limit on file sizes stands in for the full disk: the checkpoint's write fails."""
    run = shell.folder / "run"
    before = {path: path.read_bytes() for path in checkpoints(run)}

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    def limited(*arguments: str) -> str:
        done = subprocess.run(
            [ANDREA, *arguments],
            cwd=shell.folder,
            env=shell.environment({}),
            capture_output=True,
            text=True,
            preexec_fn=limit,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("andrea: ") and done.stderr.count("\n") == 1
        return done.stderr

    assert all(len(content) > 100_000 for content in before.values())
    assert "step-00000005.safetensors" in limited("train", "--resume", "run", "--steps", "5")
    assert {path: path.read_bytes() for path in checkpoints(run)} == before
    assert "step-00000000.safetensors" in limited("train", "book.txt", *TINY_RUN, "--steps", "5")
    shell.succeed("train", "--resume", "run", "--steps", "5")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(shell: Shell) -> None:
    locked = shell.folder / "locked"
    locked.mkdir(mode=0o500)
    line = shell.refuse("train", "book.txt", *TINY_RUN, "--steps", "1", "--out", "locked/run")
    assert "locked" in line


def test_a_cache_that_cannot_be_written(shell: Shell) -> None:
    (shell.folder / "taken").write_text(TEXT)
    line = shell.refuse("train", "book.txt", *TINY_RUN, "--steps", "1", "--cache", "taken")
    assert "taken" in line
