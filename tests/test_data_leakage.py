"""Repetition: passages on both sides of the split, documents that come twice or nearly so."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from andrea.data import leakage, prepare
from andrea.data.leakage import PASSAGE_BYTES, RepetitionCheck, Sketch, passage_share, sketch

RANDOM = random.Random(1)
VOCABULARY = ["".join(RANDOM.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(3000)]


def prose(num_words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(VOCABULARY, k=num_words))


def repetition(
    documents: list[bytes], is_validation: list[bool], share: float = 1.0
) -> leakage.Repetition:
    check = RepetitionCheck()
    found = sketch(documents, np.array(is_validation), share)
    check.add(found, np.ones(len(documents), dtype=np.bool_))
    return check.finish([len(one) for one in documents], [hash(one) % 2**63 for one in documents])


def windows(document: bytes) -> list[bytes]:
    if 0 < len(document) < PASSAGE_BYTES:
        return [document]
    return [document[n : n + PASSAGE_BYTES] for n in range(len(document) - PASSAGE_BYTES + 1)]


def test_passages_are_counted_as_by_looking() -> None:
    common = prose(60, 1)
    documents = [
        (prose(2000, 2) + common + prose(3000, 3)).encode(),
        (prose(500, 4) + common[100:] + "é" + prose(400, 5)).encode(),
        b"short",
        b"short",
        b"",
        common[: PASSAGE_BYTES - 1].encode(),
        common[:PASSAGE_BYTES].encode(),
        b"another",
    ]
    sides = [False, True, False, True, True, True, True, True]
    training = {
        window for text, side in zip(documents, sides, strict=True) if not side
        for window in windows(text)
    }  # fmt: skip
    expected = [
        window in training for text, side in zip(documents, sides, strict=True) if side
        for window in windows(text)
    ]  # fmt: skip
    found = repetition(documents, sides)
    assert found.passages == len(expected) > 5000
    assert found.leaked == sum(expected) > 300
    assert found.leaked_share == pytest.approx(sum(expected) / len(expected))


@pytest.mark.parametrize("size", [31, 32, 63, 64, 65, 127, 128, 500])
def test_texts_about_as_long_as_a_window(size: int) -> None:
    text = prose(100, 1).encode()[:size]
    found = repetition([text, text], [False, True])
    assert found.passages == found.leaked == len(windows(text))
    assert (found.repeated, found.documents) == (1, 2)


def test_no_passage_spans_two_documents() -> None:
    text = prose(100, 1).encode()
    parts = [text[n : n + 70] for n in range(0, 700, 70)]
    found = repetition([text, *parts], [False] + [True] * len(parts))
    assert found.passages == found.leaked == 10 * (70 - PASSAGE_BYTES + 1)
    joined = repetition([*parts, text], [False] * len(parts) + [True])
    assert joined.leaked == 10 * (70 - PASSAGE_BYTES + 1)
    assert joined.passages == len(text) - PASSAGE_BYTES + 1


def same(first: Sketch, second: Sketch) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_what_is_kept_does_not_depend_on_the_work_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [prose(n, n).encode() for n in (3000, 1, 2, 9, 50, 700)]
    sides = np.array([False, True, False, True, False, True])
    expected = sketch(documents, sides, 0.1)
    assert len(expected.train) > 1000 and len(expected.validation) > 300
    for block in (64, 1000, 1 << 20):
        monkeypatch.setattr(leakage, "_BLOCK", block)
        assert same(sketch(documents, sides, 0.1), expected)


def test_a_sample_of_the_passages_is_even() -> None:
    common = prose(10_000, 1)
    documents = [(prose(10_000, 2) + common).encode(), (common + prose(30_000, 3)).encode()]
    found = repetition(documents, [False, True], 1 / 64)
    assert found.passages == pytest.approx(len(documents[1]) / 64, rel=0.1)
    assert found.leaked_share == pytest.approx(0.25, abs=0.03)
    assert repetition(documents, [False, True], 0).passages == 0
    short = [prose(1, n).encode() for n in range(1000)]
    found = repetition(short * 2, [False] * 1000 + [True] * 1000, 1 / 4)
    assert 200 < found.passages < 300 and found.leaked == found.passages


def test_memory_for_passages_is_bounded() -> None:
    assert passage_share(0) == passage_share(1_000_000) == 0.25
    assert passage_share(5 * 10**9) * 5 * 10**9 == pytest.approx(1 << 20)


def test_a_passage_without_end_takes_no_memory() -> None:
    check = RepetitionCheck()
    text = b"all work and no play " * 5000
    for number in range(20):
        found = sketch([text], np.array([number > 15]), 0.5)
        assert len(found.train) + len(found.validation) <= 21
        check.add(found, np.ones(1, dtype=np.bool_))
    result = check.finish([len(text)] * 20, [1] * 20)
    assert result.passages == result.leaked > 4 * 5000


# ---- documents


def changed(text: str, every: int) -> str:
    words = text.split(" ")
    words[::every] = ["changed"] * len(words[::every])
    return " ".join(words)


def test_copies_and_near_copies_are_told_from_others() -> None:
    originals = [prose(300, seed) for seed in range(200)]
    documents = [*originals, *originals[:50], *(changed(text, 250) for text in originals[50:150])]
    found = repetition([text.encode() for text in documents], [False] * len(documents))
    assert found.documents == 350
    assert found.repeated == 50
    # Two words of 300: 95% of the shingles stay, of which 98% should be found.
    assert 92 <= found.near_repeated <= 100
    others = [text.encode() for text in originals + [changed(text, 3) for text in originals]]
    found = repetition(others, [False] * len(others))
    assert (found.repeated, found.near_repeated) == (0, 0)


def test_texts_without_enough_shingles_are_only_compared_whole() -> None:
    documents = [b"a short line", b"a short lime", b"a short line", b"", b"x" * 40, b"y" * 40]
    found = repetition(documents, [False] * len(documents))
    assert (found.documents, found.repeated, found.near_repeated) == (6, 1, 0)


def test_one_stretch_in_common_makes_no_near_copy() -> None:
    generator = np.random.default_rng(1)
    documents = []
    for _ in range(2000):
        one, other = generator.integers(97, 123, (2, 60), dtype=np.uint8)
        other[:32] = one[-32:]
        documents += [one.tobytes(), other.tobytes()]
    found = repetition(documents, [False] * len(documents), 0)
    assert (found.documents, found.repeated, found.near_repeated) == (4000, 0, 0)


def test_a_document_in_many_segments_is_one_document() -> None:
    texts = [prose(2000, seed).encode() for seed in (1, 2, 1, 3)]
    check = RepetitionCheck()
    minima = []
    for text in texts:
        cuts = [text[n : n + 5000] for n in range(0, len(text), 5000)]
        of_cuts = sketch(cuts, np.zeros(len(cuts), dtype=np.bool_), 0.1).minima
        minima.append(of_cuts.min(axis=0))
        for batch in (cuts[:1], cuts[1:3], cuts[3:]):
            starts = np.zeros(len(batch), dtype=np.bool_)
            starts[0] = batch[0] is cuts[0]
            check.add(sketch(batch, np.zeros(len(batch), dtype=np.bool_), 0.1), starts)
    # Digests that differ: they can only be found to be alike by their shingles.
    found = check.finish([len(text) for text in texts], [1, 2, 3, 4])
    assert (found.documents, found.repeated, found.near_repeated) == (4, 0, 1)
    np.testing.assert_array_equal(np.concatenate(check._minima), minima)


def test_a_segment_may_end_one_document_before_others_start() -> None:
    first, second = prose(900, 1).encode(), prose(900, 2).encode()
    check = RepetitionCheck()
    sides = np.zeros(3, dtype=np.bool_)
    half = len(first) // 2
    check.add(sketch([second, first[:half]], sides[:2], 0.1), np.array([True, True]))
    check.add(sketch([first[half:], second, first], sides, 0.1), np.array([False, True, True]))
    found = check.finish([1, 2, 3, 4], [1, 2, 3, 4])
    assert (found.documents, found.near_repeated) == (4, 2)


def test_only_the_first_documents_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leakage, "_MOST_DOCUMENTS", 10)
    texts = [prose(100, seed % 8).encode() for seed in range(40)]
    check = RepetitionCheck()
    for first in range(0, 40, 4):
        batch = texts[first : first + 4]
        check.add(sketch(batch, np.zeros(4, dtype=np.bool_), 0.1), np.ones(4, dtype=np.bool_))
    found = check.finish(list(map(len, texts)), [seed % 8 for seed in range(40)])
    assert (found.documents, found.repeated) == (10, 2)
    assert sum(map(len, check._minima)) <= 12


def test_nothing_at_all() -> None:
    found = RepetitionCheck().finish([], [])
    assert found == leakage.Repetition(0, 0, 0, 0, 0)
    assert found.leaked_share == 0 and list(found.notes()) == []


# ---- preparation


def test_a_book_twice_in_a_file_is_told(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text(prose(20_000, 1) * 2)
    prepared = prepare([book], cache_dir=tmp_path / "cache", tokenizer="byte")
    assert prepared.repetition is not None and prepared.repetition.leaked_share > 0.99
    (note,) = [note for note in prepared.notes if note.startswith("leakage")]
    assert note.startswith("leakage: 100% of the validation text stands in the training text")
    again = prepare([book], cache_dir=tmp_path / "cache", tokenizer="byte")
    assert again.cached and again.notes == prepared.notes
    assert again.repetition == prepared.repetition


def test_a_book_without_repetition_has_no_note(shakespeare: Path, tmp_path: Path) -> None:
    prepared = prepare([shakespeare], cache_dir=tmp_path, tokenizer="byte")
    assert prepared.repetition is not None
    assert prepared.repetition.passages > 20_000 and prepared.repetition.leaked < 100
    assert not [note for note in prepared.notes if note.startswith(("leakage", "repetition"))]


def test_records_that_come_twice_are_told_and_stay_on_one_side(tmp_path: Path) -> None:
    texts = [prose(40, seed) for seed in range(300)]
    records = tmp_path / "records.jsonl"
    records.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts + texts[:100]))
    prepared = prepare([records], cache_dir=tmp_path / "cache", tokenizer="byte")
    found = prepared.repetition
    assert found is not None and prepared.validation_documents > 20
    assert (found.documents, found.repeated, found.near_repeated) == (400, 100, 0)
    # Copies go to one side together, but for those of the last document that is chosen.
    assert found.passages > 1000 and found.leaked_share < 1.5 / prepared.validation_documents
    note = "repetition: 100 of 400 documents are copies of an earlier one, 0 more nearly so"
    assert note in prepared.notes
