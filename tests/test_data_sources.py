"""Every kind of input: what is read, what is skipped and counted, and what is refused and how."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from andrea.data import PreparedData, prepare
from andrea.data import decoding as decoding_module
from andrea.data.decoding import decode_in_parts
from andrea.errors import AndreaError, ArgumentError, DataError

Prepare = Callable[..., PreparedData]
TEXT = "To be, or not to be: that is the question.\n" * 10


@pytest.fixture
def prepare_here(tmp_path: Path) -> Prepare:
    """Prepare with a cache of its own and the byte tokenizer, whole text for training."""

    def prepare_bytes(*sources: Path | str, **settings: Any) -> PreparedData:
        defaults: dict[str, Any] = {"tokenizer": "byte", "validation_fraction": 0}
        return prepare(sources, cache_dir=tmp_path / "cache", **(defaults | settings))

    return prepare_bytes


def documents_of(prepared: PreparedData) -> list[str]:
    """Return the texts between the beginning-of-document tokens."""
    tokens = np.asarray(prepared.train)
    starts = np.flatnonzero(tokens == prepared.tokenizer.beginning_of_document)
    return [prepared.tokenizer.decode(part) for part in np.split(tokens, starts[1:])]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        call()
    assert isinstance(caught.value, AndreaError | ValueError)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 500
    return message


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# ---- what is read


def test_one_file_byte_for_byte(tmp_path: Path, prepare_here: Prepare) -> None:
    text = "Ünï\r\nline\rend 猫😀\n\n last"
    prepared = prepare_here(write(tmp_path / "book.txt", text))
    assert documents_of(prepared) == [text]
    assert prepared.train_bytes == prepared.num_bytes == len(text.encode())
    assert prepared.documents == 1 and dict(prepared.skipped) == {}


def test_several_files_are_documents_in_the_order_given(
    tmp_path: Path, prepare_here: Prepare
) -> None:
    files = [write(tmp_path / name, name * 2) for name in ("b", "a.md", "c.rst")]
    assert documents_of(prepare_here(*files)) == ["bb", "a.mda.md", "c.rstc.rst"]


def test_folder_is_read_in_order_and_the_rest_is_counted(
    tmp_path: Path, prepare_here: Prepare
) -> None:
    folder = tmp_path / "texts"
    write(folder / "b.txt", "second")
    write(folder / "a" / "deep.MD", "first")
    write(folder / "c.jsonl", '{"text": "third"}\n{"text": "fourth"}\n')
    write(folder / "d.txt.gz", gzip.compress(b"fifth"))
    write(folder / "picture.png", b"\x89PNG")
    write(folder / "script.py", "print()")
    write(folder / ".hidden.txt", "unseen")
    write(folder / ".git" / "notes.txt", "unseen")
    (folder / "broken.txt").symlink_to(folder / "nowhere")
    prepared = prepare_here(folder)
    assert documents_of(prepared) == ["first", "second", "third", "fourth", "fifth"]
    assert dict(prepared.skipped) == {"other files": 3}
    assert any("3 other files skipped" in note for note in prepared.notes)


def test_json_lines(tmp_path: Path, prepare_here: Prepare) -> None:
    lines = ['{"text": "one\\nline"}', "", '{"id": 3, "text": "tw\\u00f6 \\ud83d\\ude00"}', "  "]
    prepared = prepare_here(write(tmp_path / "records.jsonl", "\r\n".join(lines)))
    assert documents_of(prepared) == ["one\nline", "twö 😀"]


def test_json_lines_with_another_key(tmp_path: Path, prepare_here: Prepare) -> None:
    file = write(tmp_path / "records.ndjson", '{"body": "text"}')
    assert documents_of(prepare_here(file, text_key="body")) == ["text"]


def test_gzip_is_recognised_whatever_its_name(tmp_path: Path, prepare_here: Prepare) -> None:
    packed = gzip.compress(b"first ") + gzip.compress(b"second")
    assert documents_of(prepare_here(write(tmp_path / "plain.txt", packed))) == ["first second"]
    records = gzip.compress(b'{"text": "record"}')
    assert documents_of(prepare_here(write(tmp_path / "r.jsonl.gz", records))) == ["record"]


def test_standard_input(prepare_here: Prepare) -> None:
    assert documents_of(prepare_here("-", stdin=io.BytesIO(b"piped"))) == ["piped"]
    packed = io.BytesIO(gzip.compress(b"packed"))
    assert documents_of(prepare_here("-", stdin=packed)) == ["packed"]
    records = io.BytesIO(b'{"t": "a"}\n{"t": "b"}')
    assert documents_of(prepare_here("-", stdin=records, text_key="t")) == ["a", "b"]


def test_sys_stdin_is_the_default(prepare_here: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"typed")))
    assert documents_of(prepare_here("-")) == ["typed"]
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refusal(lambda: prepare_here("-"))


def test_a_pipe_is_read_once(tmp_path: Path, prepare_here: Prepare) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread = threading.Thread(target=lambda: pipe.write_bytes(b"through a pipe"))
    thread.start()
    assert documents_of(prepare_here(pipe)) == ["through a pipe"]
    thread.join()


def test_parquet(tmp_path: Path, prepare_here: Prepare) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"text": ["one", None, "", "twö"], "id": [1, 2, 3, 4]})
    file = tmp_path / "rows.parquet"
    parquet.write_table(table, file)
    prepared = prepare_here(file)
    assert documents_of(prepared) == ["one", "twö"]
    assert dict(prepared.skipped) == {"empty documents": 2}
    message = refusal(lambda: prepare_here(file, text_key="body"))
    assert "no column 'body' among its keys ('text', 'id')" in message and "--text-key" in message
    assert "column 'id' holds int64" in refusal(lambda: prepare_here(file, text_key="id"))
    file.write_bytes(file.read_bytes()[:-30])
    assert "rows.parquet: damaged Parquet file" in refusal(lambda: prepare_here(file))


def test_parquet_without_pyarrow_names_the_command(
    tmp_path: Path, prepare_here: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = write(tmp_path / "rows.parquet", b"PAR1")
    assert 'pip install "andrea[parquet]"' in refusal(lambda: prepare_here(file))


def test_no_source_is_the_python_reference(prepare_here: Prepare) -> None:
    topics = pytest.importorskip("pydoc_data.topics").topics
    prepared = prepare_here()
    assert prepared.documents == len(topics)
    assert documents_of(prepared) == [topics[name] for name in sorted(topics)]


def test_python_without_its_reference(
    prepare_here: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "name a text file" in refusal(lambda: prepare_here())


def test_long_files_are_decoded_across_chunks(
    tmp_path: Path, prepare_here: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 3 bytes cut every character and JSON line somewhere."""
    monkeypatch.setattr("andrea.data.sources.CHUNK", 3)
    text = "aé猫😀\n" * 30
    assert documents_of(prepare_here(write(tmp_path / "a.txt", text))) == [text]
    lines = "".join(json.dumps({"text": text[:n]}, ensure_ascii=False) + "\n" for n in range(1, 9))
    prepared = prepare_here(write(tmp_path / "a.jsonl", lines))
    assert documents_of(prepared) == [text[:n] for n in range(1, 9)]
    wide = write(tmp_path / "wide.txt", text.encode("utf-16"))
    assert documents_of(prepare_here(wide, encoding="utf-16")) == [text]


# ---- what is skipped, stripped or replaced, and counted


def test_empty_blank_and_bom_only_documents(tmp_path: Path, prepare_here: Prepare) -> None:
    bom = b"\xef\xbb\xbf"
    contents = [b"", b" \n\t\r\n", bom, bom + b" ", b"text", bom + b"marked"]
    files = [write(tmp_path / f"{n}.txt", content) for n, content in enumerate(contents)]
    prepared = prepare_here(*files)
    assert documents_of(prepared) == ["text", "marked"]
    assert dict(prepared.skipped) == {"empty documents": 4, "byte-order marks": 3}
    note = prepared.notes[-1]
    assert "4 empty documents skipped" in note and "3 byte-order marks removed" in note


def test_empty_records(tmp_path: Path, prepare_here: Prepare) -> None:
    texts = ["", " ", "\ufeff", "kept", "\ufeffalso"]
    lines = "\n".join(json.dumps({"text": text}) for text in texts)
    prepared = prepare_here(write(tmp_path / "r.jsonl", lines))
    assert documents_of(prepared) == ["kept", "also"]
    assert dict(prepared.skipped) == {"empty documents": 3, "byte-order marks": 2}


def test_blank_start_of_a_document_is_kept(
    tmp_path: Path, prepare_here: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andrea.data.sources.CHUNK", 2)
    assert documents_of(prepare_here(write(tmp_path / "a.txt", "\n\n \n\n text"))) == [
        "\n\n \n\n text"
    ]


def test_records_may_hold_nul_and_lone_surrogates(tmp_path: Path, prepare_here: Prepare) -> None:
    file = write(tmp_path / "r.jsonl", '{"text": "a\\u0000b\\ud800c"}')
    prepared = prepare_here(file)
    assert documents_of(prepared) == ["a\x00b\ufffdc"]
    assert dict(prepared.skipped) == {"undecodable characters": 1}


@pytest.mark.parametrize(
    ("encoding", "content", "text", "replaced"),
    [
        ("latin-1", b"caf\xe9", "café", 0),
        ("cp1252", b"\x93hi\x94 \x81", "“hi” \ufffd", 1),
        ("utf-8", b"\xef\xbb\xbfa\xffb\xe7\x8c", "a\ufffdb\ufffd", 2),
        ("utf-8", "legit \ufffd".encode() + b"\xff", "legit \ufffd\ufffd", 1),
        ("utf-16", "häß".encode("utf-16"), "häß", 0),
        ("utf-16-be", "\ufeffhäß".encode("utf-16-be") + b"\x00", "häß\ufffd", 1),
        ("utf-32", "猫".encode("utf-32"), "猫", 0),
        ("shift_jis", "猫です".encode("shift_jis"), "猫です", 0),
    ],
)
def test_with_an_encoding_bad_bytes_are_replaced_and_counted(
    tmp_path: Path, prepare_here: Prepare, encoding: str, content: bytes, text: str, replaced: int
) -> None:
    prepared = prepare_here(write(tmp_path / "a.txt", content), encoding=encoding)
    assert documents_of(prepared) == [text]
    assert prepared.skipped.get("undecodable characters", 0) == replaced
    if replaced:
        characters = "character" if replaced == 1 else "characters"
        assert f"{replaced} undecodable {characters} replaced by U+FFFD" in prepared.notes[-1]


# ---- what is refused


@pytest.mark.parametrize(
    ("content", "seen", "advice"),
    [
        ("häß und so".encode("utf-16"), "byte-order mark of UTF-16 (FF FE)", "--encoding utf-16"),
        (b"\xfe\xff" + "ab".encode("utf-16-be"), "UTF-16 (FE FF)", "--encoding utf-16"),
        ("ab".encode("utf-32"), "UTF-32 (FF FE 00 00)", "--encoding utf-32"),
        (TEXT.encode("utf-16-le"), "NUL at byte 1, as every second", "--encoding utf-16-le"),
        (TEXT.encode("utf-16-be"), "NUL at byte 0, as every second", "--encoding utf-16-be"),
        (b"some text\x00\x01\x02", "NUL at byte 9: this is binary", "leave it out"),
        (b"caf\xe9 au lait " * 50, "byte 0xE9 at 3 is not UTF-8", "--encoding latin-1"),
        (b"ok " * 400_000 + b"\xe9t\xe9", "byte 0xE9 at 1200000", "--encoding latin-1"),
        (b"abc\xed\xa0\x80", "byte 0xED at 3", "--encoding utf-8 replaces"),
        (b"caf\xc3", "ends within a character, at byte 3", "--encoding utf-8 replaces"),
        (bytes(range(1, 256)) * 4, "control bytes are around it", "binary"),
        (b"%PDF-1.7\n\xe2\xe3\xcf\xd3", "this is a PDF", "extract its text"),
        (b"PK\x03\x04\x14\x00\x06\x00", "this is a zip archive", ".docx"),
        (b"\x7fELF\x02\x01\x01\x00", "this is a program", ""),
        (b"PAR1\x15\x04\x15\x00", "this is a Parquet file", "name it .parquet"),
    ],
)
def test_what_is_not_utf8_text_is_explained(
    tmp_path: Path, prepare_here: Prepare, content: bytes, seen: str, advice: str
) -> None:
    file = write(tmp_path / "book.txt", content)
    message = refusal(lambda: prepare_here(file))
    assert message.startswith(f"{file}: ")
    assert seen in message and advice in message


def test_offset_is_right_when_a_character_lies_across_chunks(
    tmp_path: Path, prepare_here: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andrea.data.sources.CHUNK", 4)
    file = write(tmp_path / "a.txt", "aé猫".encode() + b"\xe7\x8cX")
    assert "byte 0xE7 at 6 is" in refusal(lambda: prepare_here(file))


@pytest.mark.parametrize("part", [1, 2, 3, 1000])
@pytest.mark.parametrize("errors", ["strict", "replace", "ignore"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "cp1252", "gb18030"])
def test_decoding_in_parts_is_decoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, part: int
) -> None:
    monkeypatch.setattr(decoding_module, "_PART", part)
    make = codecs.getincrementaldecoder(encoding)
    text = "aé猫🙂" if encoding.startswith(("utf", "gb")) else "aé"
    good = (text * 3).encode(encoding)
    for data in (b"", good, good[:-1], good[:9] + b"\xff\xfe" + good[9:], b"\x81\xf0\x9f" * 4):
        expected, found = make(errors), make(errors)
        for stretch in (data, good[-1:]):  # what is held back comes with what follows
            wanted = outcome(lambda: expected.decode(stretch))  # noqa: B023
            assert outcome(lambda: decode_in_parts(found, stretch)) == wanted  # noqa: B023
            if isinstance(wanted, tuple):
                break


def outcome(decode: Callable[[], str]) -> str | tuple[type[UnicodeError], str]:
    try:
        return decode()
    except UnicodeError as error:
        return type(error), str(error)


@pytest.mark.parametrize("encoding", ["utf-99", "base64", "", "rot13", "a\x00b"])
def test_unknown_encodings(tmp_path: Path, prepare_here: Prepare, encoding: str) -> None:
    file = write(tmp_path / "a.txt", TEXT)
    message = refusal(lambda: prepare_here(file, encoding=encoding))
    assert "no text encoding is called" in message


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{broken", "not a JSON object: Expecting property name"),
        ("[1, 2]", "a JSON list where an object with 'text' is needed"),
        ('"text"', "a JSON text where"),
        ("3", "a JSON number where"),
        ("null", "a JSON null where"),
        ('{"body": "x", "id": 1}', "no 'text' among its keys ('body', 'id')"),
        ("{}", "no 'text' among its keys (none at all)"),
        ('{"text": null}', "'text' is a null, not a text"),
        ('{"text": {"a": 1}}', "'text' is a object, not a text"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_lines_are_refused_with_their_number_or_counted(
    tmp_path: Path, prepare_here: Prepare, line: str, complaint: str
) -> None:
    file = write(tmp_path / "r.jsonl", f'{{"text": "good"}}\n\n{line}\n{{"text": "too"}}\n')
    message = refusal(lambda: prepare_here(file))
    assert message.startswith(f"{file}:3: ") and complaint in message and "--skip-bad" in message
    prepared = prepare_here(file, skip_bad=True)
    assert documents_of(prepared) == ["good", "too"]
    assert dict(prepared.skipped) == {"bad lines": 1}
    assert "1 bad line skipped" in prepared.notes[-1]


def test_a_line_without_end_does_not_fill_the_memory(
    tmp_path: Path, prepare_here: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andrea.data.records._LONGEST_LINE", 1000)
    file = write(tmp_path / "r.jsonl", "x" * 2000)
    assert "a line is longer than 1,000 characters" in refusal(lambda: prepare_here(file))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "not gzip", "empty"])
def test_damaged_gzip(tmp_path: Path, prepare_here: Prepare, damage: str) -> None:
    packed = bytearray(gzip.compress(os.urandom(4000).hex().encode()))
    if damage == "truncated":
        del packed[-100:]
    elif damage == "flipped":
        packed[len(packed) // 2] ^= 0xFF
    else:
        packed = bytearray(b"plain text" if damage == "not gzip" else b"")
    file = write(tmp_path / "a.txt.gz", bytes(packed))
    message = refusal(lambda: prepare_here(file))
    assert message.startswith(f"{file}: ")
    assert ("damaged gzip" if damage in ("truncated", "flipped") else "called .gz") in message


def test_missing_and_useless_paths(tmp_path: Path, prepare_here: Prepare) -> None:
    assert "nowhere.txt: no such file or folder" in refusal(
        lambda: prepare_here(tmp_path / "nowhere.txt")
    )
    folder = tmp_path / "pictures"
    write(folder / "a.png", b"")
    message = refusal(lambda: prepare_here(folder))
    assert "no text in this folder, 1 other file:" in message and ".jsonl" in message
    inside = write(tmp_path / "file.txt", TEXT) / "below"
    assert "cannot be read: Not a directory" in refusal(lambda: prepare_here(inside))


def test_no_permission(
    tmp_path: Path, prepare_here: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "secret.txt", TEXT)
    if os.geteuid() == 0:  # root may read everything: let open() refuse in its place

        def refuse(path: object, *rest: object, **more: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("andrea.data.sources.open", refuse, raising=False)
    else:
        file.chmod(0)
    assert f"{file}: no permission to read it" in refusal(lambda: prepare_here(file))


@pytest.mark.parametrize(
    ("content", "counted"),
    [
        (b"", "1 empty document skipped"),
        (b" \n ", "1 empty document"),
        (b"\xef\xbb\xbf", "1 byte-order mark removed"),
    ],
)
def test_nothing_to_train_on(
    tmp_path: Path, prepare_here: Prepare, content: bytes, counted: str
) -> None:
    file = write(tmp_path / "empty.txt", content)
    for tokenizer in ("auto", "byte", "char", "bpe"):
        message = refusal(lambda name=tokenizer: prepare_here(file, tokenizer=name))  # type: ignore[misc]
        assert "empty.txt: no text to train on" in message and counted in message


def test_json_lines_of_nothing(tmp_path: Path, prepare_here: Prepare) -> None:
    file = write(tmp_path / "r.jsonl", "\n\n")
    assert "no text to train on (no documents)" in refusal(lambda: prepare_here(file))


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_impossible_fractions(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(ArgumentError):
        prepare([], cache_dir=tmp_path, validation_fraction=fraction)


def test_known_file_table_has_no_text() -> None:
    """Nothing that a text could start with is taken for binary on sight."""
    for magic in decoding_module._KNOWN_FILES:
        text = decoding_module.decode(iter([magic + b" plain"]), "x", None, {})  # type: ignore[arg-type]
        try:
            assert magic.decode() in "".join(text)
        except (DataError, UnicodeDecodeError):
            assert 0 in magic or not magic.isascii()
