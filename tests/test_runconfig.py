"""A run's configuration as a file: written and read back, and refused in one line."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.errors import AndreaError, ConfigError
from andrea.runconfig import SECTIONS, read_config, write_config

# A value of every kind; the keys of a section in the order of the file.
VALUES: dict[str, Any] = {
    "steps": 12,
    "epochs": 0.1 + 0.2,
    "for": "20m",
    "sample_prompt": 'Zoë said: "go"\\\n\t\x7f',
    "report": False,
    "n_layer": 2,
    "learning_rate": 1e-300,
    "seed": 2**63 - 1,
    "skip_outliers": True,
    "text": ["book.txt", "-", "a 'b'\n.txt"],
    "device": "cpu",
}


def refusal(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    line = str(caught.value)
    assert "\n" not in line and line.count(str(path)) >= 1, line
    return line


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write_config(path, VALUES | {"tokens": None}, title="A run.\nOf a test.")
    read = read_config(path)
    texts = [str(tmp_path / "book.txt"), "-", str(tmp_path / "a 'b'\n.txt")]
    assert read == {**VALUES, "text": texts}
    assert {name: type(value) for name, value in read.items()} == {
        name: type(value) for name, value in VALUES.items()
    }
    assert path.read_text("utf-8").startswith("# A run.\n# Of a test.\n")


def test_equal_values_give_equal_bytes_in_the_order_of_the_sections(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    write_config(one, VALUES, remarks={"seed": "chosen by a dice"})
    write_config(two, dict(reversed(VALUES.items())), remarks={"seed": "chosen by a dice"})
    assert one.read_bytes() == two.read_bytes()
    lines = one.read_text("utf-8").splitlines()
    headings = [line[1:-1] for line in lines if line.startswith("[")]
    assert headings == list(SECTIONS)
    assert f"seed = {2**63 - 1} # chosen by a dice" in lines
    assert not list(tmp_path.glob("*.tmp"))


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "run.toml").write_text(
        '[run]\nout = "runs/one"\n[data]\ntext = ["/data/a.txt", "../b.txt", "-"]\n'
    )
    monkeypatch.chdir(tmp_path)
    read = read_config("project/run.toml")
    assert read["out"] == str(folder / "runs" / "one")
    assert read["text"] == ["/data/a.txt", str(folder / ".." / "b.txt"), "-"]


@pytest.mark.skipif(os.name == "nt", reason="names of files are not bytes there")
def test_names_of_files_that_are_not_utf8_survive(tmp_path: Path) -> None:
    name = os.fsdecode(b"/texts/caf\xe9.txt")
    write_config(tmp_path / "run.toml", {"text": [name]})
    assert read_config(tmp_path / "run.toml")["text"] == [name]


def test_a_time_of_day_needs_no_quotes(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    for written, expected in (
        ("07:30:00", "07:30"),
        ('"07:30"', "07:30"),
        ("2031-05-06T07:30:00", "2031-05-06 07:30"),
    ):
        path.write_text(f"[run]\nuntil = {written}\n")
        assert read_config(path)["until"] == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[training]\nlearnig_rate = 1", "[training] has no key 'learnig_rate'; did you mean"),
        ("[training]\nlearning-rate = 1", "did you mean learning_rate in [training]?"),
        ("[training]\nlayers = 1", "did you mean n_layer in [model]?"),
        ("[training]\nn_layer = 1", "[training] n_layer belongs in [model]"),
        ("n_layer = 1", "n_layer belongs in [model]"),
        ("number = 1", "number stands in no section and is no key; did you mean"),
        ("[trainign]\nsteps = 1", "unknown section [trainign]; did you mean [training]?"),
        ("[x]\n", "unknown section [x]; there are [run], [model]"),
        ("[[run]]\nsteps = 1", "run stands in no section"),
        ("[run]\nsteps = 1.0", "[run] steps must be a whole number, got 1.0"),
        ("[run]\nsteps = true", "steps must be a whole number, got True"),
        ("[run]\nreport = 1", "report must be true or false, got 1"),
        ('[training]\nbeta1 = "0.9"', "beta1 must be a number, got '0.9'"),
        ('[data]\ntext = "book.txt"', 'text must be a list of paths such as ["book.txt"]'),
        ("[data]\ntext = [1]", "text must be a list of paths"),
        ("[run.steps]\nx = 1", "steps must be a whole number, got {'x': 1}"),
        ("[run]\nsample_prompt = 3", "sample_prompt must be text in quotes"),
        ("[run]\nsteps = 1\nsteps = 2", "is no TOML: "),
        ("[run]\nsteps = ", "is no TOML: "),
        (b"\xff\xfe[\x00r\x00", "is no TOML: "),
        (b"\x00" * 100, "is no TOML: "),
        ("x = " + "[" * 100_000, "is no TOML that can be read"),
        ("x = 1" + "0" * 10_000, "is no TOML that can be read"),
        ("#" * (1 << 21), "is too long"),
    ],
)
def test_mistakes_are_told_in_one_line(text: str | bytes, told: str, tmp_path: Path) -> None:
    assert told in refusal(tmp_path / "run.toml", text)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(ConfigError, match="cannot read "):
            read_config(path)


def test_unknown_keys_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no key 'n_layers'; did you mean n_layer in"):
        write_config(tmp_path / "run.toml", {"n_layers": 2})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*run\.toml: No such file"):
        write_config(tmp_path / "absent" / "run.toml", {"steps": 2})


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(-(2**63), 2**63 - 1),
        "eps": st.floats(allow_nan=False),
        "sample_prompt": texts,
        "text_key": texts,
        "skip_bad": st.booleans(),
        "beta2": st.floats(allow_nan=False, allow_infinity=False),
    },
)


@settings(max_examples=150, deadline=None)
@given(values=values)
def test_any_value_survives(values: dict[str, Any], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    write_config(path, values)
    assert read_config(path) == values


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_or_hold_known_keys(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.toml"
    write_config(path, VALUES)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        read = read_config(path)
    except AndreaError as error:
        assert "\n" not in str(error)
    else:
        known = {key for keys in SECTIONS.values() for key in keys}
        assert set(read) <= known
        assert all(isinstance(read.get(key, 0), int) for key in ("steps", "n_layer"))


def test_infinity_is_a_number_that_others_refuse(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[training]\neps = inf\n")
    assert read_config(tmp_path / "run.toml") == {"eps": math.inf}
