"""The cache's limit: what was not used for longest goes, and nothing that is not the cache's."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea.data import PreparedData, prepare
from andrea.data.cache import CACHE_LIMIT, TokenCache, _items, cache_size
from andrea.errors import DataError

TEXTS = ("Call me Ishmael. ", "It is a truth universally acknowledged, ", "Alice was beginning ")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def prepare_number(tmp_path: Path, number: int, **settings: Any) -> PreparedData:
    book = tmp_path / f"{number}.txt"
    book.write_text(TEXTS[number] * 100)
    given = {"cache_dir": tmp_path / "cache", "tokenizer": "byte"} | settings
    return prepare([book], **given)


def entries(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.is_dir()}


def entry_size(cache: Path, prepared: PreparedData) -> int:
    return sum(file.stat().st_size for file in (cache / prepared.fingerprint).iterdir())


def set_last_use(path: Path, days_ago: int) -> None:
    moment = 1_700_000_000 - days_ago * 86_400
    os.utime(path, (moment, moment))


def three_texts(tmp_path: Path, cache: Path) -> list[PreparedData]:
    """Prepare all texts; the first was used longest ago."""
    prepared = [prepare_number(tmp_path, number) for number in range(3)]
    for number, one in enumerate(prepared):
        set_last_use(cache / one.fingerprint / "record.json", 10 - number)
    for tokenizer in cache.glob("*.json"):
        set_last_use(tokenizer, 0)
    return prepared


def test_nothing_is_removed_below_the_limit(tmp_path: Path, cache: Path) -> None:
    prepared = three_texts(tmp_path, cache)
    assert entries(cache) == {one.fingerprint for one in prepared}
    assert CACHE_LIMIT == 20_000_000_000


def test_what_was_not_used_for_longest_goes(tmp_path: Path, cache: Path) -> None:
    first, second, third = three_texts(tmp_path, cache)
    everything = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    assert prepare_number(tmp_path, 0).cached  # used now, so that the second is the oldest
    char = prepare_number(tmp_path, 0, tokenizer="char", cache_limit=everything)
    assert entries(cache) == {first.fingerprint, third.fingerprint, char.fingerprint}
    taken = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    assert taken <= everything
    again = prepare_number(tmp_path, 1)
    assert not again.cached
    np.testing.assert_array_equal(again.train, second.train)


def test_a_text_larger_than_the_limit_stays_alone(tmp_path: Path, cache: Path) -> None:
    three_texts(tmp_path, cache)
    last = prepare_number(tmp_path, 0, tokenizer="char", cache_limit=10)
    assert entries(cache) == {last.fingerprint}
    assert not list(cache.glob("*.json")), "tokenizers are part of what is bounded"
    assert len(last.train) == len(TEXTS[0]) * 90 + 1
    again = prepare_number(tmp_path, 0, tokenizer="char", cache_limit=10)
    assert again.fingerprint == last.fingerprint
    assert not list(cache.glob("unfinished-*"))


def test_tokens_in_use_stay_readable(tmp_path: Path, cache: Path) -> None:
    first = prepare_number(tmp_path, 0)
    expected = bytes((TEXTS[0] * 90).encode())
    prepare_number(tmp_path, 1, cache_limit=10)
    assert first.fingerprint not in entries(cache)
    assert first.tokenizer.decode_bytes(first.train) == expected


def test_other_files_of_the_folder_are_left_alone(tmp_path: Path, cache: Path) -> None:
    cache.mkdir()
    others = [cache / "notes.json", cache / "novel", cache / f"{'0' * 31}g", cache / ("0" * 32)]
    others[0].write_text("mine")
    for folder in others[1:]:
        folder.mkdir()
        (folder / "chapter.txt").write_text("mine " * 1000)
    prepare_number(tmp_path, 0, cache_limit=10)
    prepare_number(tmp_path, 1, cache_limit=10)
    assert others[0].read_text() == "mine"
    assert all((folder / "chapter.txt").exists() for folder in others[1:])


def test_a_cache_that_can_only_be_read_serves(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_number(tmp_path, 0)

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("andrea.data.cache.os.utime", refuse)
    assert prepare_number(tmp_path, 0).cached


def test_a_full_disk_names_the_way_out(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_number(tmp_path, 0)
    with (cache / prepared.fingerprint / "train.npy").open("r+b") as file:
        file.truncate(2_340_000_000)  # sparse: takes no space

    def refuse(self: object, tokens: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("andrea.data.token_file.TokenWriter.append", refuse)
    with pytest.raises(DataError) as caught:
        prepare_number(tmp_path, 1)
    assert re.fullmatch(
        rf"{re.escape(str(cache))}: the disk is full: free some space there \(prepared texts take "
        r"2\.3 GB and may be deleted\), or choose another cache folder with --cache",
        str(caught.value),
    )


def test_what_vanishes_meanwhile_is_no_error(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_number(tmp_path, 0)
    texts, taken = cache_size(cache)
    assert texts == 1 and taken > entry_size(cache, prepared)
    items = _items(cache)
    assert {item.path.name for item in items} >= {prepared.fingerprint}
    monkeypatch.setattr("andrea.data.cache._items", lambda folder: items)
    store = TokenCache(cache, 0)
    store._remove_least_used("")
    store._remove_least_used("")
    assert list(cache.iterdir()) == []


def test_the_size_of_no_cache(tmp_path: Path) -> None:
    assert cache_size(tmp_path / "nowhere") == (0, 0)
    (tmp_path / "book.txt").write_text("not a prepared text")
    assert cache_size(tmp_path) == (0, 0)
