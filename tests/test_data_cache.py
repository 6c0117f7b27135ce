"""The cache: never stale, half written or damaged, and safe for two processes at once."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import andrea
from andrea.data import PreparedData, prepare
from andrea.data.cache import TokenCache, read_sealed, write_sealed
from andrea.errors import DataError, TokenizerError
from andrea.tokenizers import ByteTokenizer, CharTokenizer, tokenizer_from_dict
from patience import PATIENCE

TEXT = "Call me Ishmael. Some years ago, never mind how long precisely. " * 50


@pytest.fixture
def book(tmp_path: Path) -> Path:
    file = tmp_path / "book.txt"
    file.write_text(TEXT)
    return file


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def same(first: PreparedData, second: PreparedData) -> bool:
    return (
        np.array_equal(first.train, second.train)
        and np.array_equal(first.validation, second.validation)
        and first.tokenizer == second.tokenizer
        and first.fingerprint == second.fingerprint
        and first.notes == second.notes
        and dict(first.skipped) == dict(second.skipped)
        and (first.train_bytes, first.validation_bytes, first.documents)
        == (second.train_bytes, second.validation_bytes, second.documents)
    )


def entry_of(cache: Path, prepared: PreparedData) -> Path:
    return cache / prepared.fingerprint


@pytest.mark.parametrize("tokenizer", ["auto", "byte", "char", "bpe"])
def test_second_time_comes_from_the_cache(book: Path, cache: Path, tokenizer: str) -> None:
    first = prepare([book], cache_dir=cache, tokenizer=tokenizer)
    second = prepare([book], cache_dir=cache, tokenizer=tokenizer)
    assert not first.cached and second.cached
    assert same(first, second)
    assert sorted(path.name for path in entry_of(cache, first).iterdir()) == [
        "record.json",
        "train.npy",
        "validation.npy",
    ]


def test_resume_with_the_stored_tokenizer_finds_the_same_entry(book: Path, cache: Path) -> None:
    first = prepare([book], cache_dir=cache, tokenizer="bpe")
    stored = tokenizer_from_dict(json.loads(json.dumps(first.tokenizer.to_dict())))
    again = prepare([book], cache_dir=cache, tokenizer=stored)
    assert again.cached and again.fingerprint == first.fingerprint


def test_name_and_time_of_a_file_do_not_matter_but_its_content_does(
    book: Path, cache: Path, tmp_path: Path
) -> None:
    first = prepare([book], cache_dir=cache, tokenizer="byte")
    moved = tmp_path / "other name.md"
    book.rename(moved)
    assert prepare([moved], cache_dir=cache, tokenizer="byte").cached
    before = moved.stat()
    moved.write_text(TEXT.replace("long", "Long"))  # same size
    os.utime(moved, ns=(before.st_atime_ns, before.st_mtime_ns))  # same time
    changed = prepare([moved], cache_dir=cache, tokenizer="byte")
    assert not changed.cached and changed.fingerprint != first.fingerprint
    assert b"Long" in changed.tokenizer.decode_bytes(changed.train)


def test_every_setting_is_part_of_the_key(book: Path, cache: Path, tmp_path: Path) -> None:
    parts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    parts[0].write_text(TEXT[:1000])
    parts[1].write_text(TEXT[1000:])
    requests: list[tuple[list[Path], dict[str, Any]]] = [
        ([book], {"tokenizer": "byte"}),
        ([book], {"tokenizer": "char"}),
        ([book], {"tokenizer": CharTokenizer(TEXT + "#")}),
        ([book], {"tokenizer": "bpe", "vocab_size": 280}),
        ([book], {"tokenizer": "bpe", "vocab_size": 281}),
        ([book], {"tokenizer": "byte", "validation_fraction": 0.2}),
        ([book], {"tokenizer": "byte", "encoding": "latin-1"}),
        (parts, {"tokenizer": "byte"}),
        (parts[::-1], {"tokenizer": "byte"}),
        ([book, book], {"tokenizer": "byte"}),
    ]
    prepared = [prepare(paths, cache_dir=cache, **settings) for paths, settings in requests]
    assert not any(each.cached for each in prepared)
    assert len({each.fingerprint for each in prepared}) == len(requests)


def test_a_list_of_files_is_not_their_concatenation(cache: Path, tmp_path: Path) -> None:
    """Moving a border between files, or calling text JSON lines, changes the documents."""
    first, second = tmp_path / "1.txt", tmp_path / "2.txt"
    prints = []
    for cut in (100, 200):
        first.write_text(TEXT[:cut])
        second.write_text(TEXT[cut:])
        prints.append(prepare([first, second], cache_dir=cache, tokenizer="byte").fingerprint)
    line = json.dumps({"text": TEXT})
    for name in ("r.txt", "r.jsonl"):
        (tmp_path / name).write_text(line)
        prints.append(prepare([tmp_path / name], cache_dir=cache, tokenizer="byte").fingerprint)
    assert len(set(prints)) == 4


def test_files_that_are_not_read_do_not_matter_but_are_counted_anew(
    cache: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    assert not prepare([folder], cache_dir=cache, tokenizer="byte").skipped
    (folder / "photo.jpg").write_bytes(b"")
    again = prepare([folder], cache_dir=cache, tokenizer="byte")
    assert again.cached and dict(again.skipped) == {"other files": 1}


@pytest.mark.parametrize(
    "damage",
    [
        "bit",
        "shorter",
        "longer",
        "missing",
        "record",
        "record bit",
        "header",
        "no folder",
        "length",
    ],
)
@pytest.mark.parametrize("name", ["train.npy", "validation.npy"])
def test_damaged_entry_is_built_again(book: Path, cache: Path, damage: str, name: str) -> None:
    first = prepare([book], cache_dir=cache, tokenizer="byte")
    expected = np.array(first.train)
    entry = entry_of(cache, first)
    file = entry / ("record.json" if damage.startswith("record") else name)
    content = bytearray(file.read_bytes())
    if damage in ("bit", "record bit"):
        content[-20] ^= 1
    elif damage == "shorter":
        del content[-2:]
    elif damage == "longer":
        content += b"\0\0"
    elif damage == "record":
        content = content[: len(content) // 2]
    elif damage == "header":
        content[0:128] = bytes(128)
    elif damage == "length":
        content[0:128] = content[0:128].replace(b"(", b"(1")[:128]
    if damage in ("missing", "no folder"):
        file.unlink()
        if damage == "no folder":
            for path in entry.iterdir():
                path.unlink()
            entry.rmdir()
            entry.write_text("a file in its place")
    else:
        file.write_bytes(content)
    again = prepare([book], cache_dir=cache, tokenizer="byte")
    assert not again.cached
    np.testing.assert_array_equal(again.train, expected)
    assert prepare([book], cache_dir=cache, tokenizer="byte").cached
    assert not list(cache.glob("unfinished-*"))


def test_damaged_tokenizer_record_is_trained_again(book: Path, cache: Path) -> None:
    first = prepare([book], cache_dir=cache, tokenizer="bpe")
    (record,) = cache.glob("*.json")
    record.write_text(record.read_text().replace("[", "[[", 1))
    again = prepare([book], cache_dir=cache, tokenizer="bpe")
    assert same(first, again) and again.cached


@pytest.mark.parametrize("content", ["", "null", "[]", '{"digest": 1}', '{"content": {}}', "\xff"])
def test_sealed_records(tmp_path: Path, content: str) -> None:
    path = tmp_path / "record.json"
    assert read_sealed(path) is None
    path.write_text(content, "latin-1")
    assert read_sealed(path) is None
    write_sealed(path, {"a": [1, "ü"]})
    assert read_sealed(path) == {"a": [1, "ü"]}
    path.write_text(path.read_text().replace("1", "2"))
    assert read_sealed(path) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    book: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    kept = prepare([book], cache_dir=cache, tokenizer="char")

    def refuse(self: object, tokens: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("andrea.data.token_file.TokenWriter.append", refuse)
        with pytest.raises(DataError) as caught:
            prepare([book], cache_dir=cache, tokenizer="byte")
    message = str(caught.value)
    assert str(cache) in message and "\n" not in message
    assert ("disk is full" if number == errno.ENOSPC else "Input/output error") in message
    assert not list(cache.glob("unfinished-*"))
    assert prepare([book], cache_dir=cache, tokenizer="char").fingerprint == kept.fingerprint


FULL_DISK = """
import resource, sys
from pathlib import Path
from andrea.data import prepare
from andrea.errors import DataError
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    prepare([sys.argv[1]], cache_dir=sys.argv[2], tokenizer="byte")
except DataError as error:
    print(error)
"""


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    root = Path(andrea.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_a_write_the_system_refuses(tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("resource")
    book = tmp_path / "long.txt"
    book.write_text(TEXT * 3)
    done = run_python(FULL_DISK, book, cache)
    assert done.returncode == 0, done.stderr
    assert "cannot be written (File too large)" in done.stdout
    assert done.stdout.count("\n") == 1
    assert not list(cache.glob("unfinished-*"))


def test_cache_folder_that_cannot_be_made(book: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"book.txt.below: cannot be written \(Not a directory\)"):
        prepare([book], cache_dir=book / "below")


CRASH = """
import os, sys
from andrea.data import prepare
def die(stage, done, total):
    if stage == "encode" and done > 0:
        os.kill(os.getpid(), 9)
prepare([sys.argv[1]], cache_dir=sys.argv[2], tokenizer="byte", progress=die)
"""


def test_a_killed_process_leaves_no_half_entry(book: Path, cache: Path) -> None:
    assert run_python(CRASH, book, cache).returncode == -9
    (left,) = cache.glob("unfinished-*")
    prepared = prepare([book], cache_dir=cache, tokenizer="byte")
    assert not prepared.cached and len(prepared.train) > 0
    assert left.exists(), "another process may still be writing there"
    yesterday = time.time() - 2 * 24 * 3600
    for path in [*left.rglob("*"), left]:
        os.utime(path, (yesterday, yesterday))
    TokenCache(cache)
    assert not left.exists()


COUNT = """
import sys
from andrea.data import prepare
prepared = prepare([sys.argv[1]], cache_dir=sys.argv[2], tokenizer="byte")
print(prepared.fingerprint, int(prepared.train.sum()))
"""


def test_many_processes_at_once(book: Path, cache: Path) -> None:
    command = [sys.executable, "-c", COUNT, str(book), str(cache)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    results = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert results[0] and len(set(results)) == 1
    assert not list(cache.glob("unfinished-*"))


def test_losing_the_race_serves_the_winner(
    book: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = TokenCache.publish

    def publish_late(self: TokenCache, *arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(TokenCache, "publish", publish)
            prepare([book], cache_dir=cache, tokenizer="byte")
        publish(self, *arguments)

    monkeypatch.setattr(TokenCache, "publish", publish_late)
    prepared = prepare([book], cache_dir=cache, tokenizer="byte")
    assert prepared.tokenizer == ByteTokenizer()
    assert not list(cache.glob("unfinished-*"))


def test_a_failed_tokenizer_leaves_nothing(book: Path, cache: Path) -> None:
    with pytest.raises(TokenizerError):
        prepare([book], cache_dir=cache, tokenizer=CharTokenizer("abc"))
    assert not list(cache.iterdir())
